"""Lines of the event log → valid events; what is set aside is counted, by its reason.

The laws:

- One bad line costs one line: it is never fatal and never silent.
- A kind or a schema version that is not known is set aside, as docs/events.md asks of readers.
- `connection_id` and `sequence` name an event; the second one of a name is a duplicate.
- A clock that is ahead by up to `CLOCK_TOLERANCE_MS` is believed. What is further ahead says
  nothing about today and is set aside.
"""

from enum import StrEnum
from functools import reduce
from operator import or_

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
    return bounded(rows.where(f.col("problem").isNull()))


def bounded(rows: DataFrame) -> DataFrame:
    """Take the classified rows for valid: for who has counted that they all are."""
    return rows.drop("problem").withColumns({name: _bounded(name) for name in _DURATIONS})


def problem_counts() -> list[Column]:
    """Count the rows, and those with each problem; for `DataFrame.agg` and `observe`."""
    counts = [f.count(f.lit(1)).alias("lines")]
    for problem in AT_READING:
        counts.append(f.count_if(f.col("problem") == problem.value).alias(problem.value))
    return counts


def without_duplicates(events: DataFrame, suspects: DataFrame) -> DataFrame:
    """Give the events of the `suspects` (a column `connection_id`), one of each name."""
    theirs = events.join(f.broadcast(suspects), "connection_id", "left_semi")
    return theirs.dropDuplicates(["connection_id", "sequence"])


def certain(events: DataFrame, suspects: DataFrame) -> DataFrame:
    """Give the events of all other connections."""
    return events.join(f.broadcast(suspects), "connection_id", "left_anti")


def _problem() -> Column:
    version = f.col("schema_version")
    known_kinds = [kind.value for kind in EventKind]
    return (
        f.when(version > SCHEMA_VERSION, Problem.UNKNOWN_VERSION.value)
        .when(reduce(or_, map(f.isnull, _REQUIRED)), Problem.UNREADABLE.value)
        .when(version != SCHEMA_VERSION, Problem.UNKNOWN_VERSION.value)
        .when(~f.col("kind").isin(known_kinds), Problem.UNKNOWN_KIND.value)
        .when(_impossible(), Problem.IMPOSSIBLE.value)
    )


def _impossible() -> Column:
    """Is any number out of bounds? `least` and `greatest` pass over nulls, as is wanted here."""
    return (
        (f.least(*_TIMES, *_COUNTS, *_DURATIONS) < 0)
        | (f.greatest(*_TIMES) > MAX_EPOCH_MS)
        | (f.greatest(*_COUNTS) > MAX_COUNT)
    )


def _bounded(name: str) -> Column:
    # not `least`: it passes over nulls
    return f.when(f.col(name) > MAX_DURATION_MS, MAX_DURATION_MS).otherwise(f.col(name))
