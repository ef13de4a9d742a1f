"""Sources of lines for Spark: a folder (local, or any that Hadoop knows) or a Kafka topic.

Each source gives the same DataFrame, one column `value` with a line each, as a batch and as a
stream. A folder of Parquet files with the fields of the log is read as it is.
"""

import re
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from metrics.readiness.errors import ReportError
from metrics.readiness.folder import (
    NO_FOLDER,
    PATTERNS,
    event_files,
    is_remote,
    refuse_unless_one_kind,
)
from metrics.spark.error_messages import SPARK_ERRORS, known_cause

_LINES = [pattern for pattern in PATTERNS if pattern != "*.parquet"]
ALL_FILES = f"{{{','.join(_LINES)}}}"
CLOSED_FILES = f"{{{','.join(each for each in _LINES if not each.endswith('.open'))}}}"

_ANY_AGE = "36500d"
"""The greatest age of a file; Spark's default ignores files a week older than the newest."""

_GLOB = re.compile(r"[][{}*?\\]")


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


def literal(path: str) -> str:
    """Give a path as Spark's readers take it, which see patterns in names; an address as it is."""
    return path if is_remote(path) else _GLOB.sub(r"\\\g<0>", path)


def holds_parquet(spark: SparkSession, path: str) -> bool:
    """Return True if a folder holds Parquet files, not lines.

    Raises ReportError with a clear sentence if it holds neither, or both.
    """
    if not is_remote(path):
        folder = event_files(path)
        for file, reason in folder.aside.items():
            raise ReportError(f"{file}: {reason}; move it away, or use --engine duckdb")
        return folder.parquet
    parquet = _listed(spark, path, "*.parquet")
    refuse_unless_one_kind(path, parquet=parquet, lines=_listed(spark, path, ALL_FILES))
    return parquet


def _listed(spark: SparkSession, path: str, names: str) -> bool:
    """Return True if there are files of such names, by the Hadoop file system of the address."""
    reader = spark.read.option("pathGlobFilter", names).option("recursiveFileLookup", True)
    try:
        return bool(reader.text(path).inputFiles())
    except SPARK_ERRORS as error:
        missing = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
        cause = NO_FOLDER if missing else known_cause(error)
        if cause is None:
            raise
        raise ReportError(f"{path}: {cause}") from None
