"""Copies of generated connections, made by Spark: moved in time and given to other clients."""

from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.event_schema import EVENT_SCHEMA
from metrics.period import MINUTE_MS
from metrics.spark.lines import parsed
from metrics.spark.spark_session import make_session

_TIMES = (
    "timestamp_ms",
    "connected_ms",
    "authenticated_ms",
    "last_request_ms",
    "period_start_ms",
    "active_from_ms",
)
"""Fields that are moved, by whole minutes, so that the bits of `active_minutes` stay right."""

_EVENTS_A_FILE = 1_000_000

ALL_FIELDS = {column.name: column.type for column in EVENT_SCHEMA}


def schema_ddl() -> str:
    """Return the schema of events as Spark takes it (`DataFrameReader.schema`)."""
    names = {"long": "BIGINT", "string": "STRING", "boolean": "BOOLEAN"}
    return ", ".join(
        f"{column.name} {names.get(column.type, column.type)}" for column in EVENT_SCHEMA
    )


def write_copies(
    templates: Path, out: Path, *, copies: int, groups: int, clients: int, parquet: bool
) -> int:
    """Write `copies` of every event in the files of `templates`; return the number of events."""
    spark = make_session(master="local[*]", input_bytes=None)
    events = parsed(spark.read.text(str(templates)), ALL_FIELDS).persist()
    count = events.count() * copies
    rows = copied(events, copies=copies, groups=groups, clients=clients)
    files = max(2, count // _EVENTS_A_FILE)
    writer = rows.repartition(files, "connection_id").write.mode("overwrite")
    if parquet:
        writer.parquet(str(out))
    else:
        writer.json(str(out))
    return count


def copied(templates: DataFrame, *, copies: int, groups: int, clients: int) -> DataFrame:
    """Copy every event `copies` times; a copy belongs to one of `groups` sets of clients."""
    copy = f.col("copy")
    later = (copy * 7 % 1440) * MINUTE_MS
    group = copy % groups
    numbers = templates.sparkSession.range(copies).withColumnRenamed("id", "copy")
    moved = {name: f.col(name) + later for name in _TIMES}
    number = f.substring_index("client_id", "-", -1).cast("bigint") + group * clients
    renamed = {
        "connection_id": f.concat_ws("-", "connection_id", copy),
        "client_id": f.concat(f.lit("client-"), number),
        "principal": _of_group("principal", group),
        "intervals": f.transform("intervals", lambda each: _moved_interval(each, later)),
    }
    columns = [column.name for column in EVENT_SCHEMA]
    return (
        f.broadcast(numbers).crossJoin(templates).withColumns(moved | renamed).select(*columns)
        if copies > 1
        else templates.select(*columns)
    )


def _of_group(name: str, group: Column) -> Column:
    named = (group > 0) & f.col(name).isNotNull()
    return f.when(named, f.concat_ws("-", name, group)).otherwise(f.col(name))


def _moved_interval(interval: Column, later: Column) -> Column:
    return interval.withField("authenticated_ms", interval["authenticated_ms"] + later)
