"""Event rows for Spark, from a folder (local or on any file system of Hadoop), a topic, or a state.

A state is a folder with the rows of all runs. A structured stream appends the rows of new lines as
Parquet, and Spark does the bookkeeping: the checkpoint has the position in the source, and the log
of the file sink lists the valid files, so a killed run neither loses nor duplicates a line.

    STATE/checkpoint    the position
    STATE/rows          the rows, with Spark's `_spark_metadata`
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from metrics.readiness.errors import ReportError
from metrics.readiness.events import DDL, FIELDS, bounded
from metrics.readiness.folder import (
    NO_FOLDER,
    PATTERNS,
    event_files,
    is_remote,
    refuse_unless_one_kind,
)
from metrics.readiness.settings import Settings
from metrics.spark.error_messages import SPARK_ERRORS, known_cause
from metrics.spark.files import HadoopFiles

_LINES: Final = [pattern for pattern in PATTERNS if pattern != "*.parquet"]
ALL_FILES: Final = f"{{{','.join(_LINES)}}}"
CLOSED_FILES: Final = f"{{{','.join(each for each in _LINES if not each.endswith('.open'))}}}"

_ANY_AGE: Final = "36500d"
"""Maximum age of a file; Spark's default ignores files a week older than the newest."""

_GLOB: Final = re.compile(r"[][{}*?\\]")

_NOTHING_YET: Final = (
    "nothing to report on yet: with --state event files are read once they are closed (.jsonl), and"
    " no file is"
)
_STATE_OF_PARQUET: Final = "--state takes lines (.jsonl): Parquet is read as fast as a state"


def event_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the events as rows, after adding new lines to the state if there is one.

    Raises ReportError and `SPARK_ERRORS`.
    """
    if settings.topic is None and holds_parquet(spark, settings.events):
        if settings.state is not None:
            raise ReportError(_STATE_OF_PARQUET)
        reader = spark.read.schema(DDL).option("pathGlobFilter", "*.parquet")
        return reader.option("recursiveFileLookup", True).parquet(literal(settings.events))
    if settings.state is not None:
        return _rows_of_state(spark, settings, settings.state)
    return parsed(lines(spark.read, settings, ALL_FILES))


def _rows_of_state(spark: SparkSession, settings: Settings, state: str) -> DataFrame:
    files, rows = HadoopFiles(spark, state), below(state, "rows")
    if files.exists(below(state, "counts")):
        raise ReportError(f"{state}: is a --state of an earlier version; give another folder")
    stream = spark.readStream.option("maxFileAge", _ANY_AGE)
    query = (
        parsed(lines(stream, settings, CLOSED_FILES))
        .writeStream.format("parquet")
        .option("path", rows)
        .option("checkpointLocation", below(state, "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if files.exists(below(rows, "_spark_metadata")):
        # not as a literal: Spark does not expand the name of a folder with such a log
        found = spark.read.schema(DDL).parquet(rows)
        if found.inputFiles():
            return found
    raise ReportError(_NOTHING_YET)


def lines(reader: Any, settings: Settings, names: str) -> DataFrame:
    """Return the lines (column `value`) of a folder's files with these names, or of a topic.

    `reader`: `spark.read`, or `spark.readStream` to read only what its checkpoint has not seen.
    """
    if settings.topic is None:
        reader = reader.option("pathGlobFilter", names).option("recursiveFileLookup", True)
        return reader.text(literal(settings.events))  # type: ignore[no-any-return]
    options = {"startingOffsets": "earliest", "subscribe": settings.topic}
    rows = reader.format("kafka").options(**options, **settings.kafka).load()
    return rows.selectExpr("CAST(value AS STRING) AS value")  # type: ignore[no-any-return]


def parsed(given: DataFrame, fields: Mapping[str, str] = FIELDS) -> DataFrame:
    """Parse JSON lines (column `value`) into fields of the log; a bad line becomes nulls.

    A line is valid if and only if DuckDB's reader accepts it: one JSON object, which may end in
    a comma, and nothing after it. A number in another notation is converted, or becomes null.
    """
    schema = ", ".join(f"{name} STRING" for name in fields)
    # in a list, only another element can follow the object
    alone = f.expr("try_parse_json(concat('[', value, ']'))")
    more = f.try_variant_get("alone", "$[1]", "variant")
    rows = (
        given.where(f.trim("value") != "")
        .select(f.expr("CASE WHEN is_valid_utf8(value) THEN value END").alias("value"))
        .select(f.regexp_replace("value", r",\s*\}\s*$", "}").alias("value"))
        .select("value", alone.alias("alone"))
        .select(f.when(f.col("alone").isNotNull() & more.isNull(), f.col("value")).alias("line"))
        .select(f.from_json("line", schema).alias("event"))
        .select("event.*")
        .select(*(_typed(name, kind).alias(name) for name, kind in fields.items()))
    )
    return rows.withColumns({name: f.expr(text) for name, text in bounded().items()})


def _typed(name: str, kind: str) -> Column:
    match kind:
        case "string":
            return f.col(name)
        case "long":
            rounded = f"try_cast(bround(try_cast({name} AS DOUBLE)) AS BIGINT)"
            return f.expr(f"coalesce(try_cast({name} AS BIGINT), {rounded})")
        case "boolean":
            return f.expr(f"coalesce(try_cast({name} AS BOOLEAN), try_cast({name} AS DOUBLE) <> 0)")
        case _:
            return f.from_json(f.when(f.col(name).startswith("["), f.col(name)), kind)


def literal(path: str) -> str:
    """Escape a local path for Spark's readers, which expand patterns; keep an address as it is."""
    return path if is_remote(path) else _GLOB.sub(r"\\\g<0>", path)


def below(root: str, name: str) -> str:
    """Return the path, or address, of a name in a folder."""
    return f"{root.rstrip('/')}/{name}" if is_remote(root) else str(PurePath(root) / name)


def holds_parquet(spark: SparkSession, path: str) -> bool:
    """Return True if a folder holds Parquet files, not lines.

    Raises ReportError with a clear sentence if it holds neither, or both.
    """
    if not is_remote(path):
        folder = event_files(path)
        for file, reason in folder.aside.items():
            raise ReportError(f"{file}: {reason}; move it away, or use --engine duckdb")
        return folder.parquet
    parquet = _has_files(spark, path, "*.parquet")
    refuse_unless_one_kind(path, parquet=parquet, lines=_has_files(spark, path, ALL_FILES))
    return parquet


def _has_files(spark: SparkSession, path: str, names: str) -> bool:
    """Return True if Hadoop's file system finds files of these names."""
    reader = spark.read.option("pathGlobFilter", names).option("recursiveFileLookup", True)
    try:
        return bool(reader.text(path).inputFiles())
    except SPARK_ERRORS as error:
        missing = isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"
        cause = NO_FOLDER if missing else known_cause(error)
        if cause is None:
            raise
        raise ReportError(f"{path}: {cause}") from None
