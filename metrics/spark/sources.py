"""Sources of lines: a folder (local, or any that Hadoop knows) or a Kafka topic.

Each source gives the same DataFrame, one column `value` with a line each, as a batch and as a
stream. A folder of Parquet files with the fields of the log is read as it is.
"""

import os
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from metrics.spark.error_messages import SPARK_ERRORS, known_cause

CLOSED_FILES = "{*.jsonl,*.jsonl.gz,*.jsonl.zst,part-*.json,part-*.json.gz}"
ALL_FILES = "{*.jsonl,*.jsonl.gz,*.jsonl.zst,part-*.json,part-*.json.gz,*.jsonl.open}"
"""The same and the files that still grow: their last line may be half, and is then set aside."""

_ANY_AGE = "36500d"
"""The greatest age of a file; Spark's default ignores files a week older than the newest."""

_PATTERNS = (*ALL_FILES.strip("{}").split(","), "*.parquet")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The begin of an address, with one slash: `Path` leaves one where an address had two."""

_AS_EFFECTIVE = os.access in os.supports_effective_ids

_NO_FOLDER = "there is no such folder"
_NO_FILES = "no event files (events-*.jsonl, .jsonl.open, or .parquet) in this folder"
_MIXED = "holds both lines (.jsonl) and Parquet; give each a folder of its own, and report on one"

_GLOB = re.compile(r"[][{}*?\\]")


class SourceError(Exception):
    """The events cannot be read; the text says which and why."""


class LineSource(Protocol):
    """Lines of the event log, at once or as they come."""

    def batch(self, spark: SparkSession) -> DataFrame:
        """Give all lines that are there."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """Give the lines as a stream; a checkpoint remembers how far it was read."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The event files below a folder. A stream reads only closed files: they never change."""

    path: str

    def batch(self, spark: SparkSession) -> DataFrame:
        """Read closed files, and open ones as far as they are written."""
        reader = spark.read.option("pathGlobFilter", ALL_FILES)
        return reader.option("recursiveFileLookup", True).text(literal(self.path))

    def stream(self, spark: SparkSession) -> DataFrame:
        """Read each closed file once, however old it is when it comes."""
        reader = spark.readStream.option("pathGlobFilter", CLOSED_FILES)
        reader = reader.option("maxFileAge", _ANY_AGE)
        return reader.option("recursiveFileLookup", True).text(literal(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A topic whose values are lines of the log, read by Spark's own connector."""

    bootstrap_servers: str
    topic: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    """Further options of the connector, e.g. `kafka.security.protocol`, or a password."""

    def batch(self, spark: SparkSession) -> DataFrame:
        """Read the topic from its beginning to its present end."""
        reader = spark.read.format("kafka").options(**self._options())
        return reader.load().selectExpr("CAST(value AS STRING) AS value")

    def stream(self, spark: SparkSession) -> DataFrame:
        """Read the topic from its beginning, then from where the checkpoint left off."""
        reader = spark.readStream.format("kafka").options(**self._options())
        return reader.load().selectExpr("CAST(value AS STRING) AS value")

    def _options(self) -> dict[str, str]:
        return {
            "startingOffsets": "earliest",
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
        }


def is_remote(path: str) -> bool:
    """Return True for an address for Hadoop, such as `s3a://bucket/events` or `file:/events`."""
    return _SCHEME.match(path) is not None


def literal(path: str) -> str:
    """Give a path as Spark's readers take it, which see patterns in names; an address as it is."""
    return path if is_remote(path) else _GLOB.sub(r"\\\g<0>", path)


def holds_parquet(spark: SparkSession, path: str) -> bool:
    """Return True if a folder holds Parquet files, not lines.

    Raises SourceError with a clear sentence if a remote one holds neither, or both; a local one was
    looked at before Spark was started (`local_bytes`).
    """
    if is_remote(path):
        parquet = _listed(spark, path, "*.parquet")
        _refuse(path, parquet=parquet, lines=_listed(spark, path, ALL_FILES))
        return parquet
    return holds_parquet_here(path)


def holds_parquet_here(path: str) -> bool:
    """Return True if a local folder holds Parquet files, not lines."""
    folder = Path(path)
    return folder.suffix == ".parquet" or any(folder.glob("**/*.parquet"))


def _refuse(path: str, *, parquet: bool, lines: bool) -> None:
    """Raise SourceError unless a folder holds one of the two."""
    if parquet == lines:
        raise SourceError(f"{path}: {_MIXED if lines else _NO_FILES}")


def _listed(spark: SparkSession, path: str, names: str) -> bool:
    """Return True if there are files of such names, by the Hadoop file system of the address."""
    reader = spark.read.option("pathGlobFilter", names).option("recursiveFileLookup", True)
    try:
        return bool(reader.text(path).inputFiles())
    except SPARK_ERRORS as error:
        missing = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
        cause = _NO_FOLDER if missing else known_cause(error)
        if cause is None:
            raise
        raise SourceError(f"{path}: {cause}") from None


def local_bytes(path: str) -> int | None:
    """Size of the event files below a local folder, as JSON lines; None: it is elsewhere.

    Raises SourceError with a clear sentence if nothing can be read there, or two kinds of files.
    """
    if is_remote(path):
        return None
    folder = Path(path)
    try:
        if not folder.exists():
            raise SourceError(f"{path}: {_NO_FOLDER}")
    except PermissionError as error:
        raise SourceError(f"{path}: {error.strerror}; check its permissions") from None
    files = [folder] if folder.is_file() else _event_files(folder)
    parquet = {file.suffix == ".parquet" for file in files}
    _refuse(path, parquet=True in parquet, lines=False in parquet)
    for file in files:
        if not os.access(file, os.R_OK, effective_ids=_AS_EFFECTIVE):
            raise SourceError(f"{file}: this file may not be read; check its permissions")
    return sum(file.stat().st_size * _expansion(file.name) for file in files)


def _expansion(name: str) -> int:
    """Return about how many times as large a file would be as JSON lines."""
    return 30 if name.endswith((".parquet", ".gz", ".zst")) else 1


def _event_files(folder: Path) -> list[Path]:
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise SourceError(f"{error.filename}: {error.strerror}; check its permissions")

    for directory, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            if any(fnmatchcase(name, pattern) for pattern in _PATTERNS):
                found.append(Path(directory) / name)
    return found
