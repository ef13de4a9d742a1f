"""Usage of each connection per day, in numbers, with its identity and its missing events.

The log has two views, which are read together: the events proper and the summary rows. Each number
is the maximum over both views, so dropped events, summaries that are not written yet, and the order
of arrival do not change the result.

This query reads all events, so it determines the cost of a report. Spark aggregates numbers in
place, but would sort all events if an aggregate were text. So a connection's identity is a number,
the hash of its identity at its end, and `identities` maps it to text. Problems are part of the key.
If no event of a connection is missing, one view is enough: the lists in its summary rows add
nothing, and reading them would take longer than everything else.

A fleet may have many connections. Connections of the same identity, day and behaviour are added up
by the events' engine, into rows with names that begin with `ADDED`. `alike` is the number of
connections in a row:

- plain connections: short, closed ones with all their events, at most one login, and no need for
  further examination;
- beyond `KEPT` of a client, other closed ones of one day with all their events; only the minutes of
  their use are lost;
- beyond `KEPT_UNSURE` of a client, all others. They are left out (`Occurrence.LEFT_OUT`): whatever
  their single events would show is unknown.
"""

import secrets
from collections.abc import Mapping
from enum import IntFlag

from metrics.events import MAX_INT64, EventKind, IntervalEnd
from metrics.readiness.events import (
    DAY_MS,
    MAX_DURATION_MS,
    MINUTE_MS,
    counted,
    day_of,
    total,
    words,
)

CLIENT_KEY = (
    "principal",
    "client_id",
    "client_software_name",
    "client_software_version",
    "mechanism",
)
"""The columns that identify a client. Its hosts are only listed, because a deployment moves between
them."""

_PLACE = ("client_host", "proxy_id", "listener", "enforcement")
_VERSIONS = ("handshake_version", "authenticate_version")
IDENTITY = (*CLIENT_KEY, *_PLACE, *_VERSIONS)
"""The columns of a connection's identity; their latest values apply."""


class Occurrence(IntFlag):
    """Things that happened at least once to a connection: a bit each in the column `saw`.

    The same column has a bit for each hour of the day in which there was an event.
    """

    KILLED = 1
    REAUTH_FAILURE = 2
    LOGIN_FAILURE = 4
    CLOSED = 8
    DENIAL = 16
    SUMMARY = 32
    EXPIRED_USE = 64
    """An expired session was used, according to the counter `expired_requests`."""
    DROPPED_VERSION = 128
    """A version of an API was used that Kafka 4.0 dropped."""
    GROUP = 256
    """The client was a member of a group; summary rows have no groups."""
    RENEWAL_FAILURE = 512
    """A re-authentication failed although a lifetime had been announced."""
    THROTTLED = 1024
    """A throttle lasted beyond the end of a session that was then used."""
    REAUTH_REFUSAL = 2048
    """A re-authentication was refused as illegal at that time (Kafka's error 34)."""
    LEFT_OUT = 4096
    """The connection is beyond the bound of its client, and its single events are not read."""
    LOST_LOGIN = 8192
    """The broker was lost during the first login, which says nothing about the client."""
    UNCOUNTED = 16384
    """An event after a login lacks the counter `expired_requests`."""


_FIRST_HOUR = 16
"""Number of the bit of `saw` for the first hour of a day; those of the other hours follow."""
_HOURS = 2 ** (_FIRST_HOUR + 24) - 2**_FIRST_HOUR
"""All bits of hours."""

ADDED = "alike-"
"""Start of the name of a row of several connections; no id of a connection begins so."""

KEPT = 1_000
"""Maximum number of complete connections of a client that are single rows."""

KEPT_UNSURE = 10_000
"""Maximum number of a client's other connections, such as open ones, that are single rows."""

MIN_REAUTH_INTERVAL_MS = 1_000
"""Time in milliseconds within which a second re-authentication is refused (Kafka,
KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""

ROUNDING_MS = 1
"""The error in milliseconds that rounding may add to the difference of two times."""

KILLED = ("expired", "token_expired")
_ILLEGAL = "illegal_state"
"""`failure_reason` of a re-authentication that came too soon, or out of order."""
_LOST = "broker_unavailable"
"""`failure_reason` of a login during which the broker was lost."""
REFUSED = ("authentication_failed", "authentication_timeout")
"""Values of `close_reason` for kills and failures, whose own events may be lost."""

_CHECKED = 2**19
"""Sequence numbers from here on are suspect: the sum of their checks could exceed 64 bits."""

WRONG_CLOCK_DAYS = 180
"""Length in days of a gap without events that indicates a wrong clock, not a holiday."""

BULK = 0.1
"""Minimum share of all events in a stretch of days that is accepted as correctly dated."""

_HOUR_MS = 3_600_000

_NO_TEXT = "'\u2400'"
"""Text that represents null in Spark's hashes, which would skip it."""
_SALT = secrets.randbits(31)
"""Start of each hash: no client can choose names with the hash of another principal's client."""


def is_kind(*kinds: EventKind) -> str:
    """Return the SQL condition for events of these kinds."""
    return f"kind IN ({words([kind.value for kind in kinds])})"


def occurred(what: Occurrence) -> str:
    """Return the SQL condition that it occurred."""
    return f"((saw & {what.value}) <> 0)"


def interval_start() -> str:
    """Return the SQL for the start of the interval that this event ends or belongs to."""
    return f"""CASE WHEN {is_kind(EventKind.REAUTHENTICATED)}
        THEN timestamp_ms - since_auth_ms ELSE authenticated_ms END"""


def used_ms(begin: str) -> str:
    """Return the SQL for the age of the session that began then, at its last use; null if unused.

    A request after the expiry is a use of the session, although `enforce` refuses it.
    """
    expiry = is_kind(EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED)
    return f"""greatest(
        CASE WHEN last_request_ms >= {begin} THEN last_request_ms - {begin} END,
        CASE WHEN {expiry} THEN since_auth_ms END)"""


def is_added() -> str:
    """Return the SQL condition for rows of several connections."""
    return f"connection_id LIKE '{ADDED}%'"


def _texts(names: tuple[str, ...]) -> str:
    """Return the SQL for columns of text to hash."""
    return ", ".join(f"nvl({name}, {_NO_TEXT})" for name in names)


_CLIENT = f"""(xxhash64({_SALT}, {_texts(CLIENT_KEY)}) & {MAX_INT64})
    * CASE WHEN principal IS NULL THEN -1 ELSE 1 END"""
"""The hash of a client, negative before its login; only the engine that made it understands it."""
_IDENTITY_ID = f"""(xxhash64(client, {_texts(_PLACE)},
    {", ".join(f"nvl({name}, -1)" for name in _VERSIONS)}) & {MAX_INT64})"""
"""The hash of an identity, from that of its client."""
_ENDS = f"({is_kind(EventKind.CLOSED)} OR final)"
_GAP = "CASE WHEN again THEN since_auth_ms END"

_FAILED_AGAIN = f"""CASE WHEN announced_lifetime_ms > 0
    THEN {Occurrence.REAUTH_FAILURE | Occurrence.RENEWAL_FAILURE}
    ELSE {Occurrence.REAUTH_FAILURE.value} END"""
_FAILURE = f"""CASE WHEN authentications > 0 THEN {_FAILED_AGAIN}
    ELSE {Occurrence.LOGIN_FAILURE.value} END"""
_SAW = f"""shiftleft(CAST(1 AS BIGINT), {_FIRST_HOUR} + CAST(floor(
        timestamp_ms % {DAY_MS} / {_HOUR_MS}) AS INT)) |
    CASE WHEN dropped_versions IS NOT NULL
    THEN {Occurrence.DROPPED_VERSION.value} ELSE 0 END |
    CASE WHEN expired_requests > 0 THEN {Occurrence.EXPIRED_USE.value}
        WHEN expired_requests IS NULL AND authentications > 0
        THEN {Occurrence.UNCOUNTED.value} ELSE 0 END |
    CASE WHEN throttled_ms > 0 THEN {Occurrence.THROTTLED.value} ELSE 0 END |
    CASE WHEN groups IS NOT NULL THEN {Occurrence.GROUP.value} ELSE 0 END |
    CASE WHEN {is_kind(EventKind.CLOSED)} THEN {Occurrence.CLOSED} | CASE
        WHEN close_reason IN ({words(KILLED)}) THEN {Occurrence.KILLED.value}
        WHEN close_reason IN ({words(REFUSED)}) THEN {_FAILURE} ELSE 0 END
    WHEN {is_kind(EventKind.EXPIRED_KILLED)} THEN {Occurrence.KILLED}
    WHEN {is_kind(EventKind.FAILED)} THEN {_FAILURE} | CASE
        WHEN authentications > 0 AND failure_reason = '{_ILLEGAL}'
        THEN {Occurrence.REAUTH_REFUSAL.value}
        WHEN authentications = 0 AND failure_reason = '{_LOST}'
        THEN {Occurrence.LOST_LOGIN.value} ELSE 0 END
    WHEN {is_kind(EventKind.DENIED, EventKind.WOULD_BE_DENIED)}
        THEN {Occurrence.DENIAL}
    WHEN is_summary THEN {Occurrence.SUMMARY} | CASE WHEN final
        THEN {Occurrence.CLOSED} ELSE 0 END
    ELSE 0 END"""

COUNTED = {
    "events": "true",
    "authentication_events": is_kind(EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED),
    "would_be_kill_events": is_kind(EventKind.WOULD_BE_KILLED),
}
"""The columns that are numbers of events, with the SQL condition for them."""
SUMMED = {
    "sequence_checks": f"""CASE WHEN sequence < {_CHECKED}
        THEN sequence * (sequence + {_CHECKED}) END""",
    "would_be_kills_in_summaries": f"CASE WHEN is_summary THEN {counted('would_be_kills')} END",
    "event_requests": "CASE WHEN NOT is_summary THEN requests END",
    "summary_requests": "CASE WHEN is_summary THEN requests END",
}
"""The columns that are added up, with the SQL for their value in an event."""
LEAST = {
    "authenticated_ms": "begin_ms",
    "credential_lifetime_ms": "nullif(credential_lifetime_ms, 0)",  # 0: it had expired
    "least_announced_ms": "nullif(announced_lifetime_ms, 0)",
    "shortest_gap_ms": _GAP,
    "opened_ms": "connected_ms",
    "first_event_ms": "timestamp_ms",
    "first_sequence": "sequence",
}
"""The columns that become a minimum."""
GREATEST = {
    "last_event_ms": "timestamp_ms",
    "last_sequence": "sequence",
    "authentications": "authentications",
    "used_ms": "age_ms",
    "longest_gap_ms": _GAP,
    "announced_ms": "announced_lifetime_ms",
    "outlived_credential_ms": "CASE WHEN NOT again THEN age_ms - credential_lifetime_ms END",
    "last_request_ms": "last_request_ms",
    "ended_since_auth_ms": f"""CASE WHEN ends
        OR {is_kind(EventKind.EXPIRED_KILLED, EventKind.FAILED)} THEN since_auth_ms END""",
    "ended_sequence": "CASE WHEN ends THEN sequence END",
    "identity_id": f"CASE WHEN ends THEN {_IDENTITY_ID} END",
}
"""The columns that become a maximum, except `identity_id`, which is that of the last end."""
BITS = {"saw": _SAW}
"""The column that is aggregated with a bitwise OR."""


def usage(source: str, *, both_views: bool, lifetimes_ms: tuple[int, ...] = ()) -> str:
    """One row per problem, connection and day, or per day and several connections (`is_added`).

    `both_views`: also read the intervals of summary rows. `lifetimes_ms`: the candidates, which
    separate the connections that are added up; empty: each connection has its rows.
    """
    rows = f"""SELECT *, {interval_start()} AS begin_ms, {is_kind(EventKind.SUMMARY)} AS is_summary,
        {is_kind(EventKind.REAUTHENTICATED)} AS again, {_ENDS} AS ends, {_CLIENT} AS client,
        CASE WHEN problem IS NULL THEN connection_id END AS named,
        CASE WHEN problem IS NULL THEN {day_of("timestamp_ms")} END AS day FROM {source}"""
    rows = f"SELECT *, {used_ms('begin_ms')} AS age_ms FROM ({rows}) AS rows"
    columns = {name: f"count_if({condition})" for name, condition in COUNTED.items()}
    columns |= _aggregates(SUMMED, LEAST, GREATEST | {"client": "client"}, BITS)
    if not both_views:  # a complete connection has an event for each
        columns["would_be_kills_in_summaries"] = "CAST(0 AS BIGINT)"
        columns["summary_requests"] = "CAST(0 AS BIGINT)"
    found = f"""SELECT problem, named AS connection_id, day, {_aliased(columns)}
        FROM ({rows}) AS aged GROUP BY problem, named, day"""
    if both_views:
        intervals = dict.fromkeys(columns, "NULL") | _of_intervals()
        day = day_of("timestamp_ms")
        found += f""" UNION ALL SELECT NULL, connection_id, {day}, {_aliased(intervals)}
            FROM (SELECT connection_id, timestamp_ms, authentications, credential_lifetime_ms,
                announced_lifetime_ms, explode(intervals) AS each FROM {source}
                WHERE {is_kind(EventKind.SUMMARY)}) AS listed GROUP BY connection_id, {day}"""
    if not lifetimes_ms:
        return f"SELECT *, CAST(1 AS BIGINT) AS alike FROM ({found}) AS found"
    return _bounded(found, lifetimes_ms)


def _aggregates(*groups: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL that aggregates columns, as in SUMMED, LEAST, GREATEST and BITS."""
    aggregates = (total, "min({})".format, "max({})".format, "bit_or({})".format)
    columns = {
        name: aggregate(text)
        for aggregate, group in zip(aggregates, groups, strict=True)
        for name, text in group.items()
    }
    if "identity_id" in columns:
        identity, sequence = (groups[2][name] for name in ("identity_id", "ended_sequence"))
        columns["identity_id"] = f"max_by({identity}, {sequence})"
    return columns


def _of_intervals() -> dict[str, str]:
    """Return the aggregates of the intervals in summary rows."""
    used = f"""CASE WHEN each.last_request_since_auth_ms BETWEEN 0 AND {MAX_DURATION_MS}
        THEN each.last_request_since_auth_ms END"""
    gap = f"""CASE WHEN each.ended_by = '{IntervalEnd.REAUTHENTICATED}'
        THEN each.ended_since_auth_ms END"""
    saw = f"""CASE WHEN each.ended_by = '{IntervalEnd.EXPIRED_KILLED}'
        THEN {Occurrence.KILLED.value}
        WHEN each.ended_by = '{IntervalEnd.FAILED}' THEN {_FAILED_AGAIN} ELSE 0 END"""
    least = {
        "authenticated_ms": "each.authenticated_ms",
        "least_announced_ms": "nullif(each.announced_lifetime_ms, 0)",
        "shortest_gap_ms": gap,
    }
    greatest = {
        "used_ms": used,
        "longest_gap_ms": gap,
        "announced_ms": "each.announced_lifetime_ms",
        "outlived_credential_ms": f"""CASE WHEN each.number = authentications
            THEN ({used}) - credential_lifetime_ms END""",
    }
    return _aggregates({}, least, greatest, {"saw": saw})


def _bounded(found: str, lifetimes_ms: tuple[int, ...]) -> str:
    """Add up plain connections, and those beyond the bounds of a client.

    Connections of one `kind` (0: plain, 1: complete, 2: others) are counted in the order of their
    ids. A connection that has no end yet is of the client that its events name.
    """
    shortest = f"""authentications <= 1
        AND coalesce(used_ms, 0) + {ROUNDING_MS} < {min(lifetimes_ms)}"""
    failed = Occurrence.KILLED | Occurrence.REAUTH_FAILURE | Occurrence.RENEWAL_FAILURE
    failed |= Occurrence.REAUTH_REFUSAL
    judged = f"""SELECT *, CASE WHEN {_is_complete()} AND {shortest} THEN 0
        WHEN {_is_complete(failed.value)} THEN 1 ELSE 2 END AS kind FROM ({found}) AS found"""
    outlasted = " + ".join(f"CASE WHEN used_ms > {each} THEN 1 ELSE 0 END" for each in lifetimes_ms)
    # the same classes of length as in `sessions.session_lengths`
    length = f"CAST(ceil(log2(greatest(used_ms, {MINUTE_MS}) / {MINUTE_MS})) AS BIGINT)"
    hasty = f"CASE WHEN shortest_gap_ms < {MIN_REAUTH_INTERVAL_MS} THEN 1 ELSE 0 END"
    traits = f"""((((saw & {2**_FIRST_HOUR - 1}) * 3 + least(authentications, 2)) * 64 + {length})
        * 2 + {hasty}) * {len(lifetimes_ms) + 1} + {outlasted}"""
    # grouping by numbers costs less than by names
    plain = f"""SELECT problem, day, traits, kind, {_added()}, max(client) AS client,
        CASE WHEN kind = 0 THEN concat('{ADDED}', whose, '-', day, '-', traits) ELSE name END
            AS connection_id, count(*) AS alike
        FROM (SELECT *, {traits} AS traits, CASE WHEN kind = 0 THEN identity_id END AS whose,
            CASE WHEN kind > 0 THEN connection_id END AS name FROM ({judged}) AS judged) AS each
        GROUP BY problem, name, whose, day, traits, kind"""
    owned = f"""SELECT *, max(client) OVER own AS owner, max(kind) OVER own AS worst,
        max_by(identity_id, ended_sequence) OVER own AS identity,
        day = max(day) OVER own AS is_last, connection_id AS name
        FROM ({plain}) AS plain WINDOW own AS (PARTITION BY connection_id)"""
    placed = f"""SELECT *, dense_rank() OVER (PARTITION BY owner, worst ORDER BY connection_id)
        AS place FROM ({owned}) AS owned"""
    beyond = f"""SELECT *, problem IS NULL AND place > CASE worst WHEN 1 THEN {KEPT}
        WHEN 2 THEN {KEPT_UNSURE} END AS beyond FROM ({placed}) AS placed"""
    changed = {name: name for name in ("day", *COUNTED, *SUMMED, *LEAST, *GREATEST, *BITS)} | {
        "name": f"""concat('{ADDED}', worst, '-', coalesce(identity, owner, 0), '-', day,
            '-', traits)""",
        "identity_id": "coalesce(identity, owner)",
        "ended_sequence": "last_sequence",
        "saw": f"saw | CASE WHEN worst = 2 THEN {Occurrence.LEFT_OUT.value} ELSE 0 END",
        "alike": "CASE WHEN is_last THEN alike ELSE 0 END",
    }
    columns = ", ".join(
        name if text == name else f"CASE WHEN beyond THEN {text} ELSE {name} END AS {name}"
        for name, text in changed.items()
    )
    return f"""SELECT problem, name AS connection_id, day, {_added()}, {total("alike")} AS alike
        FROM (SELECT problem, {columns} FROM ({beyond}) AS beyond) AS named
        GROUP BY problem, name, day"""


def identities(source: str, *, of_clients: bool) -> str:
    """Return the query for the identity of each `identity_id`; rows may repeat.

    `of_clients`: also the identities of clients with left-out connections that have no end.
    """
    names = ", ".join(IDENTITY)
    # once per identity, not for each event
    ended = f"SELECT DISTINCT {names} FROM {source} WHERE {_ENDS}"
    ended = f"SELECT *, {_CLIENT} AS client FROM ({ended}) AS ended"
    ended = f"SELECT {_IDENTITY_ID} AS identity_id, {names} FROM ({ended}) AS ended"
    clients = f"SELECT DISTINCT {_CLIENT} AS identity_id, {names} FROM {source}"
    return f"{ended} UNION ALL {clients}" if of_clients else ended


def memberships(events: str, open_connections: str) -> str:
    """One row per identity, or per open connection, and group named by a last login.

    Both are a `member`, which `member_of` returns for a row of a connection.
    """
    login = is_kind(EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED)
    own = "PARTITION BY connection_id"
    logins = f"""SELECT connection_id, groups, {login} AS is_login, row_number() OVER ({own}
            ORDER BY CASE WHEN {login} THEN 0 ELSE 1 END, sequence DESC) AS place,
            max_by({_IDENTITY_ID}, CASE WHEN {_ENDS} THEN sequence END) OVER ({own})
                AS identity_id
        FROM (SELECT *, {_CLIENT} AS client FROM {events}) AS named WHERE {login} OR {_ENDS}"""
    return f"""SELECT DISTINCT {member_of()} AS member, explode(groups) AS group_principal
        FROM ({logins}) AS logins WHERE place = 1 AND is_login AND groups IS NOT NULL AND (
            identity_id IS NOT NULL OR connection_id IN (
                SELECT connection_id FROM {open_connections}))"""


def member_of(row: str = "") -> str:
    """Return the SQL for the `member` of `memberships` that a connection is."""
    return f"coalesce(CAST({row}identity_id AS STRING), {row}connection_id)"


def _is_complete(more: int = 0) -> str:
    """Return the SQL condition for rows of a closed connection without missing events.

    Only occurrences of harmless connections, and those of `more`, are allowed.
    """
    known = Occurrence.CLOSED | Occurrence.SUMMARY | Occurrence.DENIAL | Occurrence.GROUP
    known |= Occurrence.DROPPED_VERSION | Occurrence.LOGIN_FAILURE | Occurrence.UNCOUNTED
    harmless = _HOURS | known.value | more
    return f"""problem IS NULL AND ended_sequence = last_sequence
        AND authentication_events = authentications AND ({occurred(Occurrence.CLOSED)})
        AND (saw | {harmless}) = {harmless} AND first_sequence = 0 AND {_is_run()}
        AND NOT ({_is_expiring()})"""


def _added() -> str:
    """Return the SQL that aggregates the columns of several rows."""
    same = ({name: name for name in names} for names in (COUNTED | SUMMED, LEAST, GREATEST, BITS))
    return _aliased(_aggregates(*same))


def _is_run() -> str:
    """Return the SQL condition that each number from the first to the last occurs exactly once."""
    checks = f"{_six_checks('last_sequence')} - {_six_checks('(first_sequence - 1)')}"
    return f"""(CASE WHEN last_sequence < {_CHECKED}
            AND events = last_sequence - first_sequence + 1
        THEN sequence_checks * 6 = {checks} ELSE false END)"""


def _is_expiring() -> str:
    """Return the SQL condition that a session may have been used past its end."""
    return f"""coalesce(would_be_kill_events + would_be_kills_in_summaries > 0, false)
        OR {occurred(Occurrence.EXPIRED_USE)}
        OR coalesce(used_ms > least_announced_ms + {ROUNDING_MS}, false)"""


def _aliased(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{text} AS {name}" for name, text in columns.items())


def by_problem(source: str) -> str:
    """One row per problem, with the number and times of its events; null for valid events."""
    return f"""SELECT problem, {total("events")} AS events, min(first_event_ms) AS first_ms,
        max(last_event_ms) AS last_ms FROM {source} GROUP BY problem"""


def by_connection(source: str, since_ms: int | None) -> str:
    """One row per connection, aggregated from the rows per day.

    A run of distinct sequence numbers is recognised by its count and the sum of its checks, n(n+c).
    A connection whose numbers are not such a run, because of a duplicate or a dropped event, is
    `suspect`: an exact check of the few suspects is cheaper than a check of every event. (Several
    duplicates and as many drops in one connection can cancel out, which is rare; those duplicates
    are then not found.)

    `whole`: all events from the first to the last are present. `incomplete`: some authentications
    are only in summary rows. `expiring`: one of its sessions may have been used past its end.
    `numbered`: the expected number of events; without those before
    `since_ms`.
    """
    first = "0"
    if since_ms is not None:
        first = f"CASE WHEN opened_ms < {since_ms} THEN first_sequence ELSE 0 END"
    return f"""SELECT *, NOT is_run AS suspect,
        {is_added()} OR (is_run AND first_sequence = 0) AS whole,
        authentication_events < authentications AND {occurred(Occurrence.SUMMARY)} AS incomplete,
        {_is_expiring()} AS expiring,
        CASE WHEN {is_added()} THEN events ELSE last_sequence + 1 - {first} END AS numbered
        FROM (SELECT *, {is_added()} OR {_is_run()} AS is_run
            FROM (SELECT connection_id, max(alike) AS alike, {_added()}
                FROM {source} GROUP BY connection_id) AS added) AS judged"""


def totals(source: str) -> str:
    """One row: numbers of present and expected events, and of special connections."""
    return f"""SELECT coalesce({total("events")}, 0) AS events,
        coalesce({total("numbered")}, 0) AS numbered, count_if(expiring) AS expiring,
        count_if({occurred(Occurrence.DENIAL)}) AS denied,
        count_if({occurred(Occurrence.DROPPED_VERSION)}) AS with_dropped_versions,
        count_if({occurred(Occurrence.GROUP)}) AS with_groups,
        count_if({occurred(Occurrence.THROTTLED)}) AS throttled,
        count_if({occurred(Occurrence.LEFT_OUT)}) AS left_out,
        count_if(suspect) AS suspects, count_if(NOT whole) AS parts,
        count_if(incomplete) AS incomplete,
        count_if(NOT coalesce(ended_sequence = last_sequence, false)) AS unnamed FROM {source}"""


def dated(usage_rows: str) -> str:
    """One row per stretch of days without a long gap: its events, and whether it is `plausible`.

    A clock without a battery is off by years, on one proxy or on half of them, and usually in the
    past. So the plausible stretch is the latest one with at least `BULK` of all events.
    """
    days = f"""SELECT day, sum(events) AS events, min(first_event_ms) AS first_ms,
        max(last_event_ms) AS last_ms FROM {usage_rows} GROUP BY day"""
    gaps = f"""SELECT *, CASE WHEN day - lag(day) OVER (ORDER BY day) > {WRONG_CLOCK_DAYS}
        THEN 1 ELSE 0 END AS begins FROM ({days}) AS days"""
    numbered = f"""SELECT *, sum(begins) OVER (ORDER BY day ROWS UNBOUNDED PRECEDING) AS stretch,
        sum(events) OVER () AS all_events FROM ({gaps}) AS gaps"""
    stretches = f"""SELECT stretch, {total("events")} AS events, min(day) AS first_day,
        max(day) AS last_day, min(first_ms) AS first_ms, max(last_ms) AS last_ms,
        sum(events) >= {BULK} * max(all_events) AS is_bulk
        FROM ({numbered}) AS numbered GROUP BY stretch"""
    return f"""SELECT events, first_day, last_day, first_ms, last_ms,
        stretch = max(CASE WHEN is_bulk THEN stretch END) OVER () AS plausible
        FROM ({stretches}) AS stretches ORDER BY events DESC, first_day"""


def observed(usage_rows: str, session_rows: str) -> str:
    """One row: connections with a principal, those left out, and the time covered by events.

    Hours without events are not covered. The first and the last hour may be covered in part.
    """
    hours = f"""SELECT {total(f"bit_count(saw & {_HOURS})")} AS hours, min(first_ms) AS from_ms,
            max(last_ms) AS to_ms
        FROM (SELECT bit_or(saw) AS saw, min(first_event_ms) AS first_ms,
            max(last_event_ms) AS last_ms FROM {usage_rows} GROUP BY day) AS days"""
    return f"""SELECT s.connections, s.left_out, h.from_ms, h.to_ms,
        least(h.to_ms - h.from_ms, h.hours * {_HOUR_MS}) AS covered_ms
        FROM (SELECT coalesce({total("CASE WHEN principal IS NOT NULL THEN alike END")}, 0)
            AS connections, coalesce({total("left_out * alike")}, 0) AS left_out
            FROM {session_rows}) AS s
        CROSS JOIN ({hours}) AS h"""


def with_duplicates(source: str) -> str:
    """Return the query for connections with duplicate events.

    Each range of 32 sequence numbers has a bit per number: fewer bits than events mean a duplicate.
    """
    return f"""SELECT DISTINCT connection_id FROM (
        SELECT connection_id, count(*) AS events,
            bit_or(shiftleft(CAST(1 AS BIGINT), CAST(sequence % 32 AS INT))) AS numbers
        FROM {source} GROUP BY connection_id, floor(sequence / 32)) AS stretches
        WHERE events > bit_count(numbers)"""


def without_duplicates(source: str) -> str:
    """Return one event per connection and sequence number; the choice is deterministic."""
    order = "timestamp_ms, kind, connected_ms, client_host, client_id"
    return f"""SELECT * FROM (SELECT *, row_number() OVER (
        PARTITION BY connection_id, sequence ORDER BY {order}) AS place FROM {source}) AS placed
        WHERE place = 1"""


def _six_checks(last: str) -> str:
    """Return the SQL for six times the sum of the checks up to a sequence number."""
    return f"{last} * ({last} + 1) * ({last} * 2 + {3 * _CHECKED + 1})"
