"""Event rows parsed from lines of the log; invalid ones are counted by reason.

The laws:

- One bad line costs one line: it is never fatal and never silent.
- A kind or a schema version that is not known is set aside, as docs/events.md asks of readers.
- `connection_id` and `sequence` name an event; the second one of a name is a duplicate.
- A clock that is ahead by up to `CLOCK_TOLERANCE_MS` is believed. What is further ahead says
  nothing about today and is set aside.
"""

from enum import StrEnum
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EVENT_SCHEMA, SCHEMA_VERSION, EventKind

CLOCK_TOLERANCE_MS = 15 * 60_000
"""The time in milliseconds by which clocks of proxies may be apart."""

MAX_EPOCH_MS = 2**47 - 1
"""The latest valid time, epoch ms (the year 6429): sums with a later one would overflow."""

MAX_DURATION_MS = 10**13
"""The longest duration in milliseconds, 300 years. A token may claim to live for ever (2**63 - 1
ms); nothing is lost by less."""

MAX_COUNT = 2**50 - 1
"""The greatest count, e.g. of requests between two events, for the same reason."""

_UNREAD = frozenset(
    {
        "proxy_id",
        "worker",
        "session_lifetime_ms",
        "request_bytes",
        "response_bytes",
        "api_key",
        "close_reason",
        "intervals_omitted",
        "intervals_omitted_used_ms",
    }
)

FIELDS = ", ".join(f"{each.name} {each.type}" for each in EVENT_SCHEMA if each.name not in _UNREAD)
"""The fields that the report reads, as Spark's DDL; reading the rest would cost more."""

_TIMES = (
    "timestamp_ms",
    "connected_ms",
    "authenticated_ms",
    "last_request_ms",
    "active_from_ms",
)
_DURATIONS = (
    "since_auth_ms",
    "announced_lifetime_ms",
    "credential_lifetime_ms",
    "auth_latency_us",
)
_COUNTS = ("sequence", "authentications", "requests")
_REQUIRED = ("schema_version", "kind", "timestamp_ms", "connection_id", "sequence")
_CORRUPT = "_corrupt_record"
_SIGN = -(2**63)


class Problem(StrEnum):
    """Reason for which a line is set aside."""

    UNREADABLE = "unreadable"
    """The line is no JSON object, or lacks a field that names an event: it was cut."""
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_KIND = "unknown_kind"
    IMPOSSIBLE = "impossible"
    """A time is before 1970 or after the year 6429, or a count is negative."""
    FUTURE = "future"
    """The event is further ahead of `as_of` than clocks may be apart."""


AT_READING = tuple(problem for problem in Problem if problem is not Problem.FUTURE)
"""The problems that are found from a line alone."""


def parsed(lines: DataFrame, fields: str = FIELDS) -> DataFrame:
    """Read JSON lines (column `value`) into fields of the log; a bad one into nulls."""
    schema = f"{fields}, {_CORRUPT} STRING"
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
    """Return whether an event is further ahead than clocks may be apart."""
    return f.col("timestamp_ms") > as_of_ms + CLOCK_TOLERANCE_MS


def valid_events(rows: DataFrame) -> DataFrame:
    """Keep the classified rows that have no problem, with durations within bounds."""
    return bounded(rows.where(f.col("problem").isNull()))


def bounded(rows: DataFrame) -> DataFrame:
    """Take the classified rows for valid: for who has counted that they all are."""
    return rows.drop("problem").withColumns(
        {name: at_most(f.col(name), MAX_DURATION_MS) for name in _DURATIONS}
    )


def at_most(value: Column, most: int) -> Column:
    """Bound a number from above; null stays null, which `least` would pass over."""
    return f.when(value > most, most).otherwise(value)


def counted(value: Column, least: int = 0) -> Column:
    """Give a count within bounds; null is the least."""
    return f.greatest(at_most(value, MAX_COUNT), f.lit(least))


def problem_counts() -> list[Column]:
    """Count the rows, and those with each problem; for `DataFrame.agg` and `observe`."""
    counts = [f.count(f.lit(1)).alias("lines")]
    for problem in AT_READING:
        counts.append(f.count_if(f.col("problem") == problem.value).alias(problem.value))
    return counts


def of_connections(events: DataFrame, connections: DataFrame) -> DataFrame:
    """Give the events of these connections (a column `connection_id`)."""
    return events.join(_names(connections), "connection_id", "left_semi")


def without_connections(events: DataFrame, connections: DataFrame) -> DataFrame:
    """Give the events of all connections but these."""
    return events.join(_names(connections), "connection_id", "left_anti")


def _names(connections: DataFrame) -> DataFrame:
    return f.broadcast(connections.select("connection_id"))


def with_duplicates(events: DataFrame) -> DataFrame:
    """Give the connections (`connection_id`) of which any event was read more than once.

    A bit for each number of a stretch of 64: as many as there are events, unless one came twice.
    """
    number = f.col("sequence")
    bit = f.call_function("shiftleft", f.lit(1).cast("long"), number.bitwiseAND(63).cast("int"))
    stretches = events.groupBy("connection_id", f.shiftright(number, 6).alias("stretch")).agg(
        f.count(f.lit(1)).alias("events"), f.bit_or(bit).alias("numbers")
    )
    doubled = stretches.where(f.col("events") > f.bit_count("numbers"))
    return doubled.select("connection_id").distinct()


def without_duplicates(events: DataFrame, connections: DataFrame) -> DataFrame:
    """Give the events of these connections, one of each name."""
    return of_connections(events, connections).dropDuplicates(["connection_id", "sequence"])


def _problem() -> Column:
    """Say why, but ask first whether there is any reason: of nearly all rows there is none."""
    version = f.col("schema_version")
    known_kind = f.col("kind").isin([kind.value for kind in EventKind])
    faultless = (version == SCHEMA_VERSION) & known_kind & ~_impossible()
    named = reduce(and_, (f.col(name).isNotNull() for name in _REQUIRED))
    reason = (
        f.when(version > SCHEMA_VERSION, Problem.UNKNOWN_VERSION.value)
        .when(~named, Problem.UNREADABLE.value)
        .when(version != SCHEMA_VERSION, Problem.UNKNOWN_VERSION.value)
        .when(~known_kind, Problem.UNKNOWN_KIND.value)
        .otherwise(Problem.IMPOSSIBLE.value)
    )
    return f.when(~(named & faultless), reason)


def _impossible() -> Column:
    """Return whether any number is out of bounds.

    No number has a bit that its bound has not, exactly if all of them together have none; a
    negative one has the highest. Asked so of every event, this takes a third of the time that
    comparing them one by one does.
    """
    beyond = (_together(_TIMES, ~MAX_EPOCH_MS), _together(_COUNTS, ~MAX_COUNT))
    return reduce(Column.bitwiseOR, beyond, _together(_DURATIONS, _SIGN)) != 0


def _together(names: tuple[str, ...], bits: int) -> Column:
    """Give those of the bits that any of the numbers has; a null has none."""
    numbers = (f.coalesce(f.col(name), f.lit(0)) for name in names)
    return reduce(Column.bitwiseOR, numbers).bitwiseAND(f.lit(bits).cast("long"))
