"""Uses of sessions past their end, judged by the lifetime in force at the time.

Only connections that may have such a use are examined. An event or summary row shows a use in one
of three ways: the age of the session at its last use exceeds the lifetime announced at its start,
the event reports the expiry, or the counter `expired_requests` is above 0.
"""

from metrics.events import EventKind, IntervalEnd
from metrics.readiness.events import MAX_DURATION_MS, MAX_EPOCH_MS, day_of
from metrics.readiness.usage import ROUNDING_MS, interval_start, is_kind, used_ms


def throttled(events: str) -> str:
    """One row per connection that was throttled beyond the end of a session, with the quota."""
    return f"""SELECT connection_id, max(throttled_ms) AS throttled_ms,
        max_by(throttled_by, throttled_ms) AS throttled_by
        FROM {events} WHERE throttled_ms > 0 GROUP BY connection_id"""


def shows_use() -> str:
    """Return the SQL condition for events that add information about a complete connection's uses.

    Summary rows never do, and checkpoints only if the session was used past its end.
    """
    past = """coalesce(expired_requests > 0, false) OR coalesce(announced_lifetime_ms > 0
        AND last_request_ms > authenticated_ms + announced_lifetime_ms, false)"""
    return f"""(NOT {is_kind(EventKind.CHECKPOINT, EventKind.SUMMARY)}
        OR ({is_kind(EventKind.CHECKPOINT)} AND ({past})))"""


def _from_rows(events: str, past: str) -> str:
    """Return the query for the data of events about their session and one that they begin."""
    again = is_kind(EventKind.REAUTHENTICATED)
    killed = f"kind = '{EventKind.EXPIRED_KILLED}' OR coalesce(close_reason = 'expired', false)"
    begin = interval_start()
    return f"""SELECT connection_id,
            authentications - CASE WHEN {again} THEN 1 ELSE 0 END AS number, {begin} AS begin_ms,
            CASE WHEN NOT ({again}) THEN announced_lifetime_ms END AS announced,
            {used_ms(begin)} AS age_ms, ({past}) AS past, {again} AS renewed, {killed} AS killed,
            expired_requests IS NOT NULL AS counts, timestamp_ms
        FROM {events} WHERE authentications > 0
        UNION ALL SELECT connection_id, authentications, timestamp_ms, announced_lifetime_ms,
            NULL, false, false, false, true, NULL FROM {events} WHERE {again}"""


def _from_lists(events: str) -> str:
    """Return the query for the data of the intervals in summary rows."""
    return f"""SELECT connection_id, each.number, each.authenticated_ms,
            each.announced_lifetime_ms, each.last_request_since_auth_ms, false,
            coalesce(each.ended_by = '{IntervalEnd.REAUTHENTICATED}', false),
            coalesce(each.ended_by = '{IntervalEnd.EXPIRED_KILLED}', false), counts, NULL
        FROM (SELECT connection_id, expired_requests IS NOT NULL AS counts,
            explode(intervals) AS each FROM {events}
            WHERE {is_kind(EventKind.SUMMARY)}) AS listed WHERE each.number > 0"""


def uses(whole: str, parts: str, since_ms: int | None) -> str:
    """One row per connection, authentication and day on which its session was used.

    `whole` are the events of complete connections that meet `shows_use`, `parts` all events of
    other connections. Column `past`: 1 if used past the end, by at most `late_ms` (null if
    unknown). `unjudged`: 1 if the log lacks the session's lifetime. The day of a use before
    `since_ms` is null.
    """
    summary = is_kind(EventKind.SUMMARY)
    past = f"""{is_kind(EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED)}
        OR coalesce(expired_requests > 0 AND NOT {summary}, false)"""
    # without usable intervals, the counter of a summary row shows a use past the end
    unlisted = f"""coalesce({summary} AND would_be_kills > 0
        AND (coalesce(size(intervals), 0) < 1 OR announced_lifetime_ms = 0), false)"""
    seen = f"""{_from_rows(whole, past)} UNION ALL {_from_rows(parts, f"{past} OR {unlisted}")}
        UNION ALL {_from_lists(parts)}"""
    age = f"CASE WHEN age_ms BETWEEN 0 AND {MAX_DURATION_MS} THEN age_ms END"
    # reduces many checkpoints to a few rows before the window functions
    few = f"""SELECT connection_id, number, begin_ms, announced, max({age}) AS age_ms, past,
            renewed, killed, counts, max(timestamp_ms) AS timestamp_ms
        FROM ({seen}) AS seen WHERE begin_ms BETWEEN 0 AND {MAX_EPOCH_MS}
        GROUP BY connection_id, number, begin_ms, announced, past, renewed, killed, counts,
            {day_of(f"(begin_ms + {age})")}"""
    known = f"""SELECT connection_id, number, begin_ms, age_ms, past, renewed, killed,
            counts, timestamp_ms,
            max(announced) OVER (PARTITION BY connection_id, number) AS lifetime_ms,
            min(nullif(announced, 0)) OVER (PARTITION BY connection_id) AS least_ms
        FROM ({few}) AS few"""
    judged = f"""SELECT *, coalesce(begin_ms + age_ms, CASE WHEN past THEN timestamp_ms END)
            AS used_at_ms,
            lifetime_ms BETWEEN 1 AND {MAX_DURATION_MS} AS has_end FROM ({known}) AS known"""
    outlasted = f"has_end AND age_ms > lifetime_ms + {ROUNDING_MS}"
    day = day_of("used_at_ms")
    if since_ms is not None:
        day = f"CASE WHEN used_at_ms >= {since_ms} THEN {day} END"
    return f"""SELECT connection_id, number, {day} AS day, max(begin_ms) AS begin_ms,
        max(CASE WHEN has_end AND age_ms > lifetime_ms THEN age_ms - lifetime_ms END) AS late_ms,
        max(CASE WHEN past OR coalesce({outlasted}, false) THEN 1 ELSE 0 END) AS past,
        max(CASE WHEN lifetime_ms IS NULL AND NOT counts AND age_ms > least_ms + {ROUNDING_MS}
            THEN 1 ELSE 0 END) AS unjudged,
        max(CASE WHEN renewed THEN 1 ELSE 0 END) AS renewed,
        max(CASE WHEN killed THEN 1 ELSE 0 END) AS killed
        FROM ({judged}) AS judged GROUP BY connection_id, number, {day}"""


def intervals(use_rows: str) -> str:
    """One row per connection and authentication of `uses`.

    `in_time`: the authentication renewed a session that was not used past its end."""
    return f"""SELECT *, coalesce(lag(number) OVER own = number - 1
            AND lag(past + unjudged) OVER own = 0, false) AS in_time
        FROM (SELECT connection_id, number, max(begin_ms) AS begin_ms, max(day) AS last_day,
            max(late_ms) AS late_ms, max(past) AS past, max(unjudged) AS unjudged,
            max(renewed) AS renewed, max(killed) AS killed
            FROM {use_rows} GROUP BY connection_id, number) AS numbered
        WINDOW own AS (PARTITION BY connection_id ORDER BY number)"""


def outcomes(interval_rows: str) -> str:
    """One row per connection of `intervals`: sessions used past their end without a kill."""
    return f"""SELECT connection_id, CAST(sum(past * (1 - killed)) AS BIGINT) AS past_sessions,
        max(CASE WHEN past = 1 THEN late_ms END) AS past_end_ms, max(unjudged) AS unjudged
        FROM {interval_rows} GROUP BY connection_id"""
