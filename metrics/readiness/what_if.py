"""What-if analysis: KIP-368's rule for a lifetime L, applied to the recorded connections.

A connection is killed if it is used more than L after its last successful authentication. A client
that keeps announced lifetimes would have re-authenticated, so a long session counts against
a connection only if no lifetime could be announced to it, or if it did not keep an announced one
(docs/events.md, "Who is concerned?"). Two groups are counted separately, because their behaviour is
unknown: `unproven`, sessions of clients that speak v1 but were never announced a lifetime; and
`cut_short`, connections that were killed or failed to re-authenticate before they reached age L.
"""

from metrics.events import MAX_INT64, EventKind, IntervalEnd
from metrics.readiness.events import (
    DAY_MS,
    MAX_DURATION_MS,
    MAX_EPOCH_MS,
    MINUTE_MS,
    at_most,
    minute_of,
    total,
    values,
    words,
)
from metrics.readiness.usage import CLIENT_KEY, interval_start, is_added, is_kind, used_ms
from metrics.report.verdicts import Verdict

HOUR_MS = 3_600_000

DEFAULT_LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30, 60, 240))

_CONCERNED = (Verdict.NOT_CAPABLE, Verdict.FAILING)

_CUT_SHORT = (IntervalEnd.EXPIRED_KILLED, IntervalEnd.FAILED)
"""The ends that were caused by the proxy, not by the client."""

_LAST_BIT = 62


def concerned(session_rows: str, lifetimes_ms: tuple[int, ...]) -> str:
    """Return the query for connections that the shortest lifetime would have killed."""
    return f"""SELECT connection_id FROM {session_rows}
        WHERE standing IN ({words(_CONCERNED)}) AND used_ms > {min(lifetimes_ms)}"""


def intervals(events: str) -> str:
    """One row per connection and authentication, with the last use and the minutes of use.

    `runs` come from all summary rows that overlap the interval, so the first and last runs may
    belong to neighbouring intervals. Most rows of minutes are a single run of ones; in other rows,
    each minute becomes a run. A run is a struct of the start of its first minute, `a`, and of its
    last minute, `b`.
    """
    summary = is_kind(EventKind.SUMMARY)
    begin, ended = interval_start(), is_kind(EventKind.REAUTHENTICATED)
    listed = f"""SELECT connection_id, active_from_ms, active_minutes & {MAX_INT64} AS bits,
        explode(intervals) AS each FROM {events} WHERE {summary}"""
    count = "CAST(bit_count(bits) AS INT)"
    lowest = "CAST(round(log2(bits & -bits)) AS INT)"
    # shifted to bit 0, a single run consists of all the ones
    whole = f"shiftright(bits, first) = shiftright(CAST({MAX_INT64} AS BIGINT), 63 - ones)"
    last = f"CASE WHEN {whole} THEN first ELSE {_LAST_BIT} END"
    runs = f"""SELECT connection_id, number, active_from_ms + minute * {MINUTE_MS} AS a,
            active_from_ms + (CASE WHEN whole THEN minute + ones - 1 ELSE minute END) * {MINUTE_MS}
                AS b
        FROM (SELECT *, {whole} AS whole, explode(sequence(first, {last})) AS minute
            FROM (SELECT *, each.number AS number, {count} AS ones, {lowest} AS first
                FROM ({listed}) AS listed WHERE bits <> 0) AS bits) AS minutes
        WHERE whole OR shiftright(bits, minute) % 2 = 1"""
    run = "CASE WHEN a IS NOT NULL THEN named_struct('a', a, 'b', b) END"
    no_run = "CAST(NULL AS BIGINT) AS a, CAST(NULL AS BIGINT) AS b"
    return f"""SELECT connection_id, number, min(authenticated_ms) AS authenticated_ms,
        {at_most("max(used_ms)", MAX_DURATION_MS)} AS used_ms,
        sort_array(collect_list({run})) AS runs
        FROM (SELECT connection_id, authentications - CASE WHEN {ended} THEN 1 ELSE 0 END AS number,
                {begin} AS authenticated_ms, {used_ms(begin)} AS used_ms, {no_run}
            FROM {events} WHERE NOT {summary}
            UNION ALL SELECT connection_id, each.number, each.authenticated_ms,
                each.last_request_since_auth_ms, {no_run} FROM ({listed}) AS listed
            UNION ALL SELECT connection_id, number, NULL, NULL, a, b FROM ({runs}) AS runs) AS known
        WHERE number > 0 AND coalesce(authenticated_ms, 0) <= {MAX_EPOCH_MS}
        GROUP BY connection_id, number
        HAVING min(authenticated_ms) IS NOT NULL"""


def kills(interval_rows: str, lifetimes_ms: tuple[int, ...]) -> str:
    """Return the least and the greatest number of kills of each interval under each lifetime L.

    A killed client reconnects, and its next session expires L later. The query walks through the
    active minutes. A minute that starts more than L after the session certainly has a kill, and the
    next session starts no later than the end of that minute. A minute that ends more than L after
    the start of the session may have a kill, and the next session starts no earlier than the start
    of that minute. If the last active minutes are unknown (no summary row yet), there may be
    a kill every L since the last known one.

    `sure` and `perhaps` are the first minutes in which a use certainly or possibly is a kill. The
    periods `sure_ms` and `perhaps_ms` are the time from one kill to the next: from the end of its
    minute to the first minute that starts after the expiry, or from the start of its minute to the
    first that ends after the expiry.
    """
    whole = minute_of("lifetime_ms")
    rows = f"""SELECT *, {minute_of("authenticated_ms + used_ms")} AS last_minute_ms,
        authenticated_ms + lifetime_ms AS expiry_ms, {whole} + {2 * MINUTE_MS} AS sure_ms,
        greatest({whole}, {MINUTE_MS}) AS perhaps_ms,
        list_max(list_transform(runs, lambda run: run.b)) AS known_to_ms
        FROM {interval_rows} CROSS JOIN {values("lifetime_ms", lifetimes_ms)}
        WHERE used_ms > lifetime_ms"""
    sure = f"{minute_of('expiry_ms')} + {MINUTE_MS}"
    perhaps = f"{minute_of(f'(expiry_ms - {MINUTE_MS})')} + {MINUTE_MS}"
    tail = "authenticated_ms + used_ms - known_to_ms"
    walked = f"""SELECT connection_id, number, lifetime_ms, known_to_ms,
        CASE WHEN {tail} < {2 * MINUTE_MS} THEN 0
            ELSE CAST(floor(({tail}) / lifetime_ms) AS BIGINT) + 1 END AS in_tail,
        CAST(floor((used_ms - 1) / lifetime_ms) AS BIGINT) AS most,
        {_walk(sure, "sure_ms")} AS sure,
        {_walk(perhaps, "perhaps_ms")} AS perhaps
        FROM ({rows}) AS rows"""
    return f"""SELECT connection_id, number, lifetime_ms,
        greatest(1, least(most, sure)) AS kills_least,
        greatest(1, CASE WHEN known_to_ms IS NOT NULL AND lifetime_ms >= {2 * MINUTE_MS}
            THEN least(most, perhaps + in_tail) ELSE most END) AS kills_most
        FROM ({walked}) AS walked"""


def kills_of_added(session_rows: str, lifetimes_ms: tuple[int, ...]) -> str:
    """Return the kills of connections that were added up; their intervals are unknown.

    Each has at least one kill, and at most one every L in each session.
    """
    most = "CAST(floor((used_ms - 1) / lifetime_ms) AS BIGINT)"
    return f"""SELECT connection_id, 1 AS number, lifetime_ms, alike AS kills_least,
        alike * greatest(authentications, 1) * {most} AS kills_most
        FROM {session_rows} CROSS JOIN {values("lifetime_ms", lifetimes_ms)}
        WHERE {is_added()} AND standing IN ({words(_CONCERNED)}) AND used_ms > lifetime_ms"""


def _walk(due: str, period: str) -> str:
    """Count the kills in `runs`, greedily; within a run of active minutes they are periodic.

    The state is the time from which the next kill is due, `a`, and the number of kills so far,
    `b`.
    """
    first, last = "greatest(state.a, item.a)", "least(item.b, last_minute_ms)"
    count = f"(CAST(floor(({last} - {first}) / {period}) AS BIGINT) + 1)"
    after = f"{{a: {first} + {count} * {period}, b: state.b + {count}}}"
    step = f"CASE WHEN {first} <= {last} THEN {after} ELSE state END"
    start = f"{{a: {due}, b: CAST(0 AS BIGINT)}}"
    return f"list_reduce(runs, lambda state, item: {step}, {start}).b"


def kills_by_client(kill_rows: str, session_rows: str) -> str:
    """One row per client and lifetime that would disconnect it, from `kills`."""
    key = ", ".join(f"s.{name}" for name in CLIENT_KEY)
    added = f"""SELECT connection_id, lifetime_ms, sum(kills_least) AS kills_least,
        sum(kills_most) AS kills_most FROM {kill_rows} GROUP BY connection_id, lifetime_ms"""
    return f"""SELECT {key}, lifetime_ms, {total("alike")} AS connections,
        {total("kills_least")} AS kills_least, {total("kills_most")} AS kills_most
        FROM ({added}) AS k JOIN {session_rows} AS s USING (connection_id)
        GROUP BY {key}, lifetime_ms"""


def what_if(
    session_rows: str, kill_rows: str, observed_rows: str, lifetimes_ms: tuple[int, ...]
) -> str:
    """One row per lifetime: the connections, clients and principals it would kill, and how often.

    `session_rows` come from `sessions.by_their_clients`, `kill_rows` from `kills` for the same
    lifetimes, and `observed_rows` from `usage.observed`. `kills_per_day_*` is null if less than an
    hour is covered, which is too short for a daily rate. A lifetime longer than the covered time is
    not judged, and its results are null, unless a connection was used for longer than it.
    """
    outlasted = "coalesce(used_ms > lifetime_ms, false)"
    cut_short = f"""ended_by IN ({words(_CUT_SHORT)})
        AND coalesce(ended_since_auth_ms, 0) <= lifetime_ms"""
    found = f"""SELECT lifetime_ms, row({", ".join(CLIENT_KEY)}) AS client, principal, alike,
        used_ms - lifetime_ms AS late_ms, CASE
            WHEN ({outlasted} OR left_out > 0) AND standing = '{Verdict.UNPROVEN}' THEN 'unproven'
            WHEN {outlasted} THEN 'killed' WHEN {cut_short} THEN 'cut_short' END AS found
        FROM {session_rows} CROSS JOIN {values("lifetime_ms", lifetimes_ms)}
        WHERE standing IN ({words((*_CONCERNED, Verdict.UNPROVEN))})"""
    # a client counts once, however many of its connections are affected
    counts = ", ".join(
        f"""coalesce(CAST(sum(alike) FILTER (found = '{each}') AS BIGINT), 0) AS {each}_connections,
        count(DISTINCT client) FILTER (found = '{each}') AS {each}_clients"""
        for each in ("killed", "unproven", "cut_short")
    )
    affected = f"""SELECT lifetime_ms, {counts},
        count(DISTINCT principal) FILTER (found = 'killed') AS killed_principals,
        CAST(floor(median(late_ms) FILTER (found = 'killed')) AS BIGINT) AS late_median_ms,
        max(late_ms) FILTER (found = 'killed') AS late_max_ms
        FROM {values("lifetime_ms", lifetimes_ms)}
        LEFT JOIN (SELECT * FROM ({found}) WHERE found IS NOT NULL) USING (lifetime_ms)
        GROUP BY lifetime_ms"""
    killed = f"""SELECT lifetime_ms, {total("kills_least")} AS at_least,
        {total("kills_most")} AS at_most FROM {kill_rows} GROUP BY lifetime_ms"""
    days = f"CASE WHEN covered_ms >= {HOUR_MS} THEN covered_ms / {DAY_MS} END"
    return f"""SELECT lifetime_ms, connections, observed_ms, CASE
            WHEN killed_connections + unproven_connections > 0 OR observed_ms >= lifetime_ms
            THEN COLUMNS(* EXCLUDE (lifetime_ms, connections, observed_ms)) END
        FROM (SELECT c.*, connections, covered_ms AS observed_ms,
            coalesce(at_least, 0) AS kills_least, coalesce(at_most, 0) AS kills_most,
            kills_least / ({days}) AS kills_per_day_least,
            kills_most / ({days}) AS kills_per_day_most
            FROM ({affected}) AS c CROSS JOIN {observed_rows} LEFT JOIN ({killed})
            USING (lifetime_ms) WHERE connections > 0)"""
