"""Validity of event rows, and the reason for each invalid one.

Rules:

- A bad line affects no other line. It is never fatal, and always counted.
- Unknown kinds and schema versions are set aside, as docs/events.md requires of readers.
- `connection_id` and `sequence` identify an event; a second event with both is a duplicate.
- Times up to `CLOCK_TOLERANCE_MS` ahead are valid. Events further ahead are set aside.
"""

from enum import StrEnum
from typing import Any

from metrics.event_schema import EVENT_SCHEMA
from metrics.events import SCHEMA_VERSION, EventKind

Row = dict[str, Any]

DAY_MS = 86_400_000
MINUTE_MS = 60_000

CLOCK_TOLERANCE_MS = 15 * 60_000
"""Tolerated difference between clocks in milliseconds."""

MAX_EPOCH_MS = 2**47 - 1
"""The latest valid time, epoch ms (the year 6429): sums with a later one would overflow."""

MAX_DURATION_MS = 10**13
"""The longest duration in milliseconds, 300 years. A longer one is capped: a token may claim to
live forever (2**63 - 1 ms)."""

MAX_COUNT = 2**50 - 1
"""The greatest valid count, such as of requests between two events: larger sums could overflow."""

MAX_ELEMENTS = 10_000
"""Maximum number of elements in an event's list, and of commas in its line: the largest events have
about 3,000."""

_UNREAD = frozenset(
    {
        "worker",
        "log_sequence",
        "chain",
        "session_lifetime_ms",
        "error_code",
        "resources_omitted",
        "decision_reason",
        "request_bytes",
        "response_bytes",
        "api_key",
        "groups_joined",
        "groups_left",
        "meant_cluster_id",
        "meant_node_id",
        "cluster_id",
        "node_id",
        "intervals_omitted",
        "intervals_omitted_used_ms",
    }
)

FIELDS = {each.name: each.type for each in EVENT_SCHEMA if each.name not in _UNREAD}
"""The fields that the report reads, with their types; the others are skipped to save time."""

DDL = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
"""The same fields as Spark's DDL."""

LISTS = tuple(name for name, kind in FIELDS.items() if kind.startswith("array"))
"""The fields that are lists."""

_TIMES = (
    "timestamp_ms",
    "connected_ms",
    "authenticated_ms",
    "last_request_ms",
    "active_from_ms",
)
DURATIONS = (
    "since_auth_ms",
    "announced_lifetime_ms",
    "credential_lifetime_ms",
    "auth_latency_us",
    "throttled_ms",
)
_COUNTS = ("sequence", "authentications", "requests", "expired_requests")
NOT_OF_SESSIONS = (EventKind.USED, EventKind.PROMOTED, EventKind.DEMOTED)
"""Kinds of records that belong to no connection."""
_REQUIRED = ("schema_version", "kind", "timestamp_ms", "connection_id", "sequence")
_SIGN = -(2**63)


class Problem(StrEnum):
    """Reason for which a line is set aside."""

    UNREADABLE = "unreadable"
    """The line is not a JSON object, or lacks a required field, as a truncated line does."""
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_KIND = "unknown_kind"
    IMPOSSIBLE = "impossible"
    """A time is before 1970 or after the year 6429, or a count is negative."""
    FUTURE = "future"
    """The event is ahead of `as_of` by more than `CLOCK_TOLERANCE_MS`."""
    OUTSIDE = "outside"
    """The event is before `--since`, or not before `--until`."""
    IMPLAUSIBLE = "implausible"
    """The event is years away from the bulk of events: its proxy's clock was wrong."""


def problem() -> str:
    """Return the SQL for the reason why a row is not a valid event; null for valid ones.

    `FUTURE` and `OUTSIDE` are not among the reasons: they depend on the report (`classified`).
    """
    named = " AND ".join(f"{name} IS NOT NULL" for name in _REQUIRED)
    known = f"kind IN ({words([kind.value for kind in EventKind])})"
    return f"""CASE
        WHEN {named} AND schema_version = {SCHEMA_VERSION} AND {known} AND {_beyond()} = 0 THEN NULL
        WHEN schema_version > {SCHEMA_VERSION} THEN '{Problem.UNKNOWN_VERSION}'
        WHEN NOT ({named}) THEN '{Problem.UNREADABLE}'
        WHEN schema_version <> {SCHEMA_VERSION} THEN '{Problem.UNKNOWN_VERSION}'
        WHEN NOT {known} THEN '{Problem.UNKNOWN_KIND}'
        ELSE '{Problem.IMPOSSIBLE}' END"""


def _beyond() -> str:
    """Return the SQL for the forbidden bits set in any number of a row; 0 if all are valid.

    A number is out of bounds if it has a bit above those of its bound, or the sign bit. The OR of
    all numbers has such a bit if and only if one of them does. For every event of a log, this takes
    a third of the time of separate comparisons.
    """
    groups = ((_TIMES, ~MAX_EPOCH_MS), (_COUNTS, ~MAX_COUNT), (DURATIONS, _SIGN))
    parts = []
    for names, bits in groups:
        together = " | ".join(f"coalesce({name}, 0)" for name in names)
        # the least 64-bit integer cannot be written as a literal
        limit = f"({bits + 1} - 1)" if bits == _SIGN else f"({bits})"
        parts.append(f"(({together}) & CAST({limit} AS BIGINT))")
    return f"({' | '.join(parts)})"


def bounded() -> dict[str, str]:
    """Return expressions by column that make a row unreadable if one of its lists is too long.

    They also replace the list with null, because it may need much memory.
    """
    fits = " AND ".join(f"coalesce(size({name}) <= {MAX_ELEMENTS}, true)" for name in LISTS)
    return {name: f"CASE WHEN {fits} THEN {name} END" for name in ("kind", *LISTS)}


def classified(
    source: str, *, as_of_ms: int, since_ms: int | None = None, until_ms: int | None = None
) -> str:
    """Add the column `problem`. Invalid rows have all their numbers set to null.

    Records that belong to no connection have their kind in place of a problem. Durations are capped
    at `MAX_DURATION_MS`. `as_of_ms`, `since_ms` and `until_ms`: the report's time and bounds
    (`analysis.Question`).
    """
    numbers = {*_TIMES, *_COUNTS, *DURATIONS}
    columns = [
        f"CASE WHEN problem IS NULL THEN {_CAPPED[name]} END AS {name}" if name in numbers else name
        for name in FIELDS
    ]
    bounds = ((since_ms, "<"), (until_ms, ">="))
    outside = "".join(
        f" WHEN timestamp_ms {beyond} {bound} THEN '{Problem.OUTSIDE}'"
        for bound, beyond in bounds
        if bound is not None
    )
    return f"""SELECT {", ".join(columns)}, CASE WHEN {_OF_NO_CONNECTION} THEN kind
        WHEN problem IS NOT NULL THEN problem
        WHEN timestamp_ms > {as_of_ms + CLOCK_TOLERANCE_MS} THEN '{Problem.FUTURE}'{outside} END
            AS problem
        FROM (SELECT *, {problem()} AS problem FROM {source}) AS judged"""


def within_bounds(source: str, **bounds: Any) -> str:
    """Return the valid rows of `classified`, if no row has another problem than its time.

    It takes half the time.
    """
    columns = ", ".join(f"{text} AS {name}" for name, text in _CAPPED.items())
    return f"""SELECT {columns}, CAST(NULL AS STRING) AS problem FROM {source}
        WHERE {is_within(**bounds)} AND NOT {_OF_NO_CONNECTION}"""


def is_within(*, as_of_ms: int, since_ms: int | None = None, until_ms: int | None = None) -> str:
    """Return the SQL condition for times within the bounds of `classified`."""
    last_ms = min(as_of_ms + CLOCK_TOLERANCE_MS, (until_ms or MAX_EPOCH_MS + 1) - 1)
    return f"timestamp_ms BETWEEN {since_ms or 0} AND {last_ms}"


def values(name: str, numbers: tuple[int, ...]) -> str:
    """Return a table of one column of numbers, as SQL."""
    rows = ", ".join(f"(CAST({number} AS BIGINT))" for number in numbers)
    return f"(VALUES {rows}) AS given({name})"


def words(texts: object) -> str:
    """Return constants as a list of SQL strings. Unsafe for text from a log: it is not escaped."""
    assert isinstance(texts, (tuple, list))
    return ", ".join(f"'{text}'" for text in texts)


def day_of(time_ms: str) -> str:
    """Return the SQL for the day of a time, in UTC days since 1970."""
    return f"CAST(floor({time_ms} / {DAY_MS}) AS INT)"


def minute_of(time_ms: str) -> str:
    """Return the SQL for the start of the minute of a time."""
    return f"(({time_ms}) - ({time_ms}) % {MINUTE_MS})"


def at_most(value: str, most: int) -> str:
    """Return the SQL that caps a number; null stays null, which `least` would ignore."""
    return f"CASE WHEN {value} > {most} THEN {most} ELSE {value} END"


def counted(value: str, least: int = 0) -> str:
    """Return the SQL for a count within bounds; null becomes `least`."""
    return f"greatest(least(coalesce({value}, {least}), {MAX_COUNT}), {least})"


def total(value: str) -> str:
    """Return the SQL for a sum as a 64-bit integer; DuckDB's own sums are wider."""
    return f"try_cast(sum({value}) AS BIGINT)"


_CAPPED = {name: at_most(name, MAX_DURATION_MS) if name in DURATIONS else name for name in FIELDS}
"""The fields with their SQL; durations are capped."""

_OF_NO_CONNECTION = f"coalesce(kind IN ({words(NOT_OF_SESSIONS)}), false)"
