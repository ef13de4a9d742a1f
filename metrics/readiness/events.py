"""Event rows as read: which are valid, and why the others are not.

The laws:

- One bad line costs one line: it is never fatal and never silent.
- A kind or a schema version that is not known is set aside, as docs/events.md asks of readers.
- `connection_id` and `sequence` name an event; the second one of a name is a duplicate.
- A clock that is ahead by up to `CLOCK_TOLERANCE_MS` is believed. What is further ahead says
  nothing about today and is set aside.
"""

from enum import StrEnum

from metrics.events import EVENT_SCHEMA, SCHEMA_VERSION, EventKind
from metrics.readiness.engine import words
from metrics.readiness.sieve import MAX_ELEMENTS

DAY_MS = 86_400_000
MINUTE_MS = 60_000

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
        "worker",
        "session_lifetime_ms",
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
"""The fields that the report reads, with their types; reading the rest would cost more."""

DDL = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
"""The same as Spark's DDL."""

LISTS = tuple(name for name, kind in FIELDS.items() if kind.startswith("array"))
"""Those of them that are lists."""

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
_REQUIRED = ("schema_version", "kind", "timestamp_ms", "connection_id", "sequence")
_SIGN = -(2**63)

_BIGINT = "BIGINT"


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
    OUTSIDE = "outside"
    """The event is before `--since`, or not before `--until`."""
    IMPLAUSIBLE = "implausible"
    """The event is years away from the bulk of events: its proxy's clock was wrong."""


def problem() -> str:
    """Say why a row is no valid event, or null: of nearly all rows there is no reason.

    `FUTURE` is not among them: what is the future today is valid tomorrow.
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
    """Give the bits that any number has and may not have.

    No number has a bit that its bound has not, exactly if all of them together have none; a
    negative one has the highest. Asked so of every event, this takes a third of the time that
    comparing them one by one does.
    """
    groups = ((_TIMES, ~MAX_EPOCH_MS), (_COUNTS, ~MAX_COUNT), (DURATIONS, _SIGN))
    parts = []
    for names, bits in groups:
        together = " | ".join(f"coalesce({name}, 0)" for name in names)
        # the least number has no spelling of its own
        limit = f"({bits + 1} - 1)" if bits == _SIGN else f"({bits})"
        parts.append(f"(({together}) & CAST({limit} AS {_BIGINT}))")
    return f"({' | '.join(parts)})"


def bounded() -> dict[str, str]:
    """Give the expressions that make a row unreadable if a list of it is beyond bounds, by column.

    They take the list away, too: it may take much memory.
    """
    fits = " AND ".join(f"coalesce(size({name}) <= {MAX_ELEMENTS}, true)" for name in LISTS)
    return {name: f"CASE WHEN {fits} THEN {name} END" for name in ("kind", *LISTS)}


def classified(source: str) -> str:
    """Add the column `problem`; of a row that has one, no number is left to reckon with.

    Durations are bounded.
    """
    shortened = {name: at_most(name, MAX_DURATION_MS) for name in DURATIONS}
    numbers = {*_TIMES, *_COUNTS, *DURATIONS}
    columns = [
        f"CASE WHEN problem IS NULL THEN {shortened.get(name, name)} END AS {name}"
        if name in numbers
        else name
        for name in FIELDS
    ]
    judged = f"SELECT *, {problem()} AS problem FROM {source}"
    return f"SELECT {', '.join(columns)}, problem FROM ({judged}) AS judged"


def within(source: str, *, as_of_ms: int, since_ms: int | None, until_ms: int | None) -> str:
    """Add what is a problem today to the column `problem`."""
    future = f"timestamp_ms > {as_of_ms + CLOCK_TOLERANCE_MS}"
    bounds = []
    if since_ms is not None:
        bounds.append(f"timestamp_ms < {since_ms}")
    if until_ms is not None:
        bounds.append(f"timestamp_ms >= {until_ms}")
    outside = f"WHEN {' OR '.join(bounds)} THEN '{Problem.OUTSIDE}'" if bounds else ""
    return f"""SELECT {", ".join(FIELDS)}, CASE WHEN problem IS NOT NULL THEN problem
        WHEN {future} THEN '{Problem.FUTURE}' {outside} END AS problem FROM {source}"""


def day_of(time_ms: str) -> str:
    """Give the day of a time, in days of UTC since 1970."""
    return f"CAST(floor({time_ms} / {DAY_MS}) AS INT)"


def minute_of(time_ms: str) -> str:
    """Give the begin of the minute that a time is in."""
    return f"(({time_ms}) - ({time_ms}) % {MINUTE_MS})"


def at_most(value: str, most: int) -> str:
    """Bound a number from above; null stays null, which `least` would pass over."""
    return f"CASE WHEN {value} > {most} THEN {most} ELSE {value} END"


def counted(value: str, least: int = 0) -> str:
    """Give a count within bounds; null is the least."""
    return f"greatest(least(coalesce({value}, {least}), {MAX_COUNT}), {least})"


def total(value: str) -> str:
    """Give a sum as a 64-bit integer, which DuckDB's is not."""
    return f"try_cast(sum({value}) AS {_BIGINT})"
