"""Lines of the event log → valid events; what is set aside is counted, by its reason.

The laws:

- One bad line costs one line: it is never fatal and never silent.
- A kind or a schema version that is not known is set aside, as docs/events.md asks of readers.
- `connection_id` and `sequence` name an event; the second one of a name is a duplicate.
- A clock that is ahead by up to `CLOCK_TOLERANCE_MS` is believed. What is further ahead says
  nothing about today and is set aside.
"""

from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import SCHEMA_VERSION, EventKind, schema_ddl

CLOCK_TOLERANCE_MS = 15 * 60_000
"""Clocks of proxies may be apart by minutes."""

MAX_EPOCH_MS = 10**14
"""The year 5138: what is later is no time but garbage, and sums with it would overflow."""

MAX_DURATION_MS = 10**13
"""300 years. A token may claim to live for ever (2**63 - 1 ms); nothing is lost by less."""

MAX_COUNT = 10**15
"""Requests and bytes between two events of a connection; for the same reason."""

_TIMES = (
    "timestamp_ms",
    "connected_ms",
    "authenticated_ms",
    "last_request_ms",
    "period_start_ms",
    "active_from_ms",
)
_DURATIONS = (
    "since_auth_ms",
    "session_lifetime_ms",
    "announced_lifetime_ms",
    "credential_lifetime_ms",
    "auth_latency_us",
)
_COUNTS = ("sequence", "authentications", "requests", "request_bytes", "response_bytes")
_REQUIRED = ("schema_version", "kind", "timestamp_ms", "connection_id", "sequence")
_CORRUPT = "_corrupt_record"


class Problem(StrEnum):
    """Why a line was set aside."""

    UNREADABLE = "unreadable"
    """No JSON object, or one without the fields that name an event: a truncated last line."""
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_KIND = "unknown_kind"
    IMPOSSIBLE = "impossible"
    """A time before 1970 or after the year 5138, or a negative count."""
    FUTURE = "future"
    """Further ahead of `as_of` than clocks may be apart."""


AT_READING = tuple(problem for problem in Problem if problem is not Problem.FUTURE)
"""What a line's own content tells."""


def parsed(lines: DataFrame) -> DataFrame:
    """Read JSON lines (column `value`) into the fields of the log; a bad one into nulls."""
    schema = f"{schema_ddl()}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    event = f.from_json("value", schema, options).alias("event")
    unreadable = f.col(_CORRUPT).isNotNull()
    return (
        lines.where(f.trim("value") != "")
        .select(event)
        .select("event.*")
        .withColumn("kind", f.when(~unreadable, f.col("kind")))
        .drop(_CORRUPT)
    )


def classified(rows: DataFrame) -> DataFrame:
    """Add the column `problem`: why a row is no valid event, or null.

    `FUTURE` is not among them: what is the future today is valid tomorrow (`is_future`).
    """
    return rows.withColumn("problem", _problem())


def is_future(as_of_ms: int) -> Column:
    """Is an event further ahead than clocks may be apart?"""
    return f.col("timestamp_ms") > as_of_ms + CLOCK_TOLERANCE_MS


def valid_events(rows: DataFrame) -> DataFrame:
    """Keep the classified rows that have no problem, with durations within bounds."""
    return (
        rows.where(f.col("problem").isNull())
        .drop("problem")
        .withColumns({name: _bounded(name) for name in _DURATIONS})
    )


def problem_counts() -> list[Column]:
    """Count the rows, and those with each problem; for `DataFrame.agg` and `observe`."""
    counts = [f.count(f.lit(1)).alias("lines")]
    for problem in AT_READING:
        counts.append(f.count_if(f.col("problem") == problem.value).alias(problem.value))
    return counts


def sequence_totals(events: DataFrame) -> DataFrame:
    """One row per connection: how many events, and whether each has a name of its own.

    A run of distinct numbers is known by its count, its sum and its sum of squares. Whatever is
    not such a run, because of a duplicate or of a dropped event, is `suspect`: an exact look at
    the few suspects is cheaper than one at every event. (Three or more duplicates and as many
    drops in one connection can cancel out; then those duplicates are not found.)
    """
    number = f.col("sequence")
    first, last, count = f.col("first"), f.col("last"), f.col("count")
    width = last - first + 1
    run = (
        (count == width)
        & (f.col("total") * 2 == (first + last) * width)
        & (f.col("squares") == _sum_of_squares(last) - _sum_of_squares(first - 1))
    )
    small = number < 1_000_000  # squares of more could not be added up in 64 bits
    return (
        events.groupBy("connection_id")
        .agg(
            f.count(f.lit(1)).alias("count"),
            f.min("sequence").alias("first"),
            f.max("sequence").alias("last"),
            f.sum(f.when(small, number)).alias("total"),
            f.sum(f.when(small, number * number)).alias("squares"),
        )
        .select("connection_id", "count", (~f.coalesce(run, f.lit(False))).alias("suspect"))
    )


def without_duplicates(events: DataFrame, suspects: DataFrame) -> DataFrame:
    """Keep one event of each name; `suspects` holds the connections to look at."""
    names = f.broadcast(suspects.select("connection_id"))
    certain = events.join(names, "connection_id", "left_anti")
    doubtful = events.join(names, "connection_id", "left_semi")
    return certain.unionByName(doubtful.dropDuplicates(["connection_id", "sequence"]))


def duplicates(events: DataFrame, suspects: DataFrame) -> DataFrame:
    """Count the events of a name beyond the first, and the numbers that are missing."""
    names = f.broadcast(suspects.select("connection_id"))
    by_name = (
        events.join(names, "connection_id", "left_semi")
        .groupBy("connection_id", "sequence")
        .agg(f.count(f.lit(1)).alias("count"))
    )
    by_connection = by_name.groupBy("connection_id").agg(
        f.sum(f.col("count") - 1).alias("duplicates"),
        (f.max("sequence") + 1 - f.count(f.lit(1))).alias("missing"),
    )
    return by_connection.agg(
        f.coalesce(f.sum("duplicates"), f.lit(0)).alias("duplicate"),
        f.coalesce(f.sum("missing"), f.lit(0)).alias("missing"),
    )


def _sum_of_squares(last: Column) -> Column:
    exact = last.cast("decimal(20,0)")
    return (exact * (exact + 1) * (exact * 2 + 1)) / 6


def _problem() -> Column:
    missing = _any([f.col(name).isNull() for name in _REQUIRED])
    version = f.col("schema_version")
    known_kinds = [kind.value for kind in EventKind]
    no_time = [~f.col(name).between(0, MAX_EPOCH_MS) for name in _TIMES]
    no_count = [~f.col(name).between(0, MAX_COUNT) for name in _COUNTS]
    no_duration = [f.col(name) < 0 for name in _DURATIONS]
    return (
        f.when(f.coalesce(version > SCHEMA_VERSION, f.lit(False)), Problem.UNKNOWN_VERSION.value)
        .when(missing, Problem.UNREADABLE.value)
        .when(version != SCHEMA_VERSION, Problem.UNKNOWN_VERSION.value)
        .when(~f.col("kind").isin(known_kinds), Problem.UNKNOWN_KIND.value)
        .when(_any(no_time + no_count + no_duration), Problem.IMPOSSIBLE.value)
    )


def _bounded(name: str) -> Column:
    # not `least`: it passes over nulls
    return f.when(f.col(name) > MAX_DURATION_MS, MAX_DURATION_MS).otherwise(f.col(name))


def _any(conditions: list[Column]) -> Column:
    """True if one is true; one that is null, because its field is, counts as false."""
    result = f.lit(False)
    for condition in conditions:
        result = result | f.coalesce(condition, f.lit(False))
    return result
