"""Time covered by events, readiness by day, token lifetimes."""

from metrics.readiness.events import DAY_MS, MINUTE_MS, total
from metrics.readiness.usage import CLIENT_KEY
from metrics.report.verdicts import Verdict

MIN_SENSIBLE_TOKEN_MS = 60_000
"""Minimum sensible token lifetime in milliseconds: one renewal a minute."""

WRONG_CLOCK_DAYS = 180
"""Length in days of a gap without events that indicates a wrong clock, not a holiday."""

BULK = 0.1
"""Minimum share of all events in a stretch of days that is accepted as correctly dated."""

_HOUR_MS = 3_600_000


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
    hours = f"""SELECT {total("bit_count(hours)")} AS hours, min(first_ms) AS from_ms,
            max(last_ms) AS to_ms
        FROM (SELECT bit_or(hours) AS hours, min(first_event_ms) AS first_ms,
            max(last_event_ms) AS last_ms FROM {usage_rows} GROUP BY day) AS days"""
    return f"""SELECT s.connections, s.left_out, h.from_ms, h.to_ms,
        least(h.to_ms - h.from_ms, h.hours * {_HOUR_MS}) AS covered_ms
        FROM (SELECT coalesce({total("CASE WHEN principal IS NOT NULL THEN alike END")}, 0)
            AS connections, coalesce({total("left_out * alike")}, 0) AS left_out
            FROM {session_rows}) AS s
        CROSS JOIN ({hours}) AS h"""


def by_day(client_day_rows: str) -> str:
    """One row per day: the clients seen on it, by their state at the end of the day."""
    return f"""SELECT *, ready / clients AS ready_share FROM (
        SELECT day, count(*) AS clients,
            {", ".join(f"count_if(state = '{each}') AS {each}" for each in Verdict)}
        FROM {client_day_rows} GROUP BY day) AS counted"""


def short_tokens(client_rows: str) -> str:
    """Clients whose tokens are too short for them: used past a token's end, or renewed too often.

    `outlived_ms` is the longest use of a connection past the end of its login token.
    """
    key = ", ".join(CLIENT_KEY)
    return f"""SELECT {key}, verdict, credential_lifetime_ms,
        CASE WHEN outlived_credential_ms > 0 THEN outlived_credential_ms END AS outlived_ms,
        used_ms, connections
        FROM {client_rows} WHERE credential_lifetime_ms IS NOT NULL
            AND (coalesce(outlived_credential_ms > 0, false)
                OR credential_lifetime_ms < {MIN_SENSIBLE_TOKEN_MS})"""


def session_lengths(session_rows: str) -> str:
    """One row per standing and class of the longest use of a session; classes double in length.

    A class ends at `up_to_ms`; the first ends at a minute.
    """
    up_to = f"""CAST(pow(2, ceil(log2(greatest(used_ms, {MINUTE_MS}) / {MINUTE_MS})))
        * {MINUTE_MS} AS BIGINT)"""
    return f"""SELECT {up_to} AS up_to_ms, standing, {total("alike")} AS connections
        FROM {session_rows} WHERE used_ms IS NOT NULL
        GROUP BY {up_to}, standing"""


def plausible(first_day: int, last_day: int) -> str:
    """Return the SQL condition for events dated within these days."""
    return f"(timestamp_ms >= {first_day * DAY_MS} AND timestamp_ms < {(last_day + 1) * DAY_MS})"
