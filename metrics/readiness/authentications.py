"""Counts and latencies of authentications, per minute and latency bucket; storms and failures.

Each authentication of a connection is an event. If events are missing, summary rows count them.
Only connections that lack such events are counted from both, which costs more.
"""

import math

from metrics.events import EventKind
from metrics.period import LATENCY_GAMMA, latency_bucket
from metrics.readiness.events import MAX_DURATION_MS, MINUTE_MS, at_most, counted, minute_of, total
from metrics.readiness.usage import is_kind

QUANTILES = (0.5, 0.95, 0.99)

STORM_POINTS = 480
"""Maximum number of points of the storm plot: more than a screen can resolve."""

_LOGIN, _AGAIN = EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED
_MAX_BUCKET = latency_bucket(MAX_DURATION_MS * 1000)
"""The last latency bucket: a longer latency is garbage, and overflows a double."""


def counts(events: str) -> str:
    """Count authentications and failures per minute and per latency, in one pass.

    One row per minute, mechanism, kind and reason (`minute_ms` is set), and one per mechanism,
    kind and `bucket` of the latency (`minute_ms` is null). `busy_us` is the sum of the latencies.
    """
    failed = is_kind(EventKind.FAILED)
    bucket = f"""CASE WHEN NOT {failed} AND auth_latency_us IS NOT NULL THEN CAST(ceil(
        ln(CAST(greatest(auth_latency_us, 1) AS DOUBLE)) / {math.log(LATENCY_GAMMA)}) AS BIGINT)
        END"""
    return f"""SELECT mechanism, kind, minute_ms, failure_reason, reauthentication, bucket,
            count(*) AS count, {total("auth_latency_us")} AS busy_us,
            max(auth_latency_us) AS slowest_us
        FROM (SELECT mechanism, kind, failure_reason, auth_latency_us, {bucket} AS bucket,
                {minute_of("timestamp_ms")} AS minute_ms,
                kind = '{_AGAIN}' OR {failed} AND authentications > 0 AS reauthentication
            FROM {events} WHERE {is_kind(_LOGIN, _AGAIN, EventKind.FAILED)}) AS each
        GROUP BY GROUPING SETS ((mechanism, kind, minute_ms, failure_reason, reauthentication),
            (mechanism, kind, bucket))
        HAVING minute_ms IS NOT NULL OR bucket IS NOT NULL"""


def counts_of_both_views(events: str, since_ms: int | None) -> str:
    """Return the same counts for connections with authentications that only summary rows have.

    An authentication that is in several rows, or also in an event, is counted once.
    Authentications before `since_ms` are not counted.
    """
    once = f"""SELECT mechanism, CASE WHEN number = 1 THEN '{_LOGIN}' ELSE '{_AGAIN}' END AS kind,
        min(time_ms) AS timestamp_ms, max(latency_us) AS auth_latency_us,
        CAST(NULL AS STRING) AS failure_reason, number AS authentications
        FROM (SELECT connection_id, mechanism, authentications AS number, timestamp_ms AS time_ms,
                auth_latency_us AS latency_us
            FROM {events} WHERE {is_kind(_LOGIN, _AGAIN)}
            UNION ALL SELECT connection_id, mechanism, each.number, each.authenticated_ms, NULL
            FROM (SELECT connection_id, mechanism, explode(intervals) AS each
                FROM {events} WHERE {is_kind(EventKind.SUMMARY)}) AS summed) AS recorded
        WHERE time_ms >= {since_ms or 0} GROUP BY connection_id, mechanism, number"""
    names = "mechanism, kind, timestamp_ms, auth_latency_us, failure_reason, authentications"
    minutes = f"""({once} UNION ALL SELECT {names} FROM {events}
        WHERE {is_kind(EventKind.FAILED)}) AS once"""
    firsts = f"(SELECT * FROM {events} WHERE kind <> '{_AGAIN}') AS firsts"
    return f"""SELECT * FROM ({counts(minutes)}) AS minutes WHERE minute_ms IS NOT NULL
        UNION ALL SELECT * FROM ({counts(firsts)}) AS latencies WHERE bucket IS NOT NULL
        UNION ALL {_summed_latencies(events)}"""


def _summed_latencies(events: str) -> str:
    """Latencies of re-authentications, which summary rows have without their times."""
    bucket = at_most("each.bucket", _MAX_BUCKET)
    return f"""SELECT mechanism, '{_AGAIN}', NULL, NULL, NULL, {bucket},
        {total(counted("each.count"))}, NULL, NULL
        FROM (SELECT mechanism, explode(reauth_latencies) AS each
            FROM {events} WHERE {is_kind(EventKind.SUMMARY)}) AS summed
        GROUP BY mechanism, {bucket}"""


def storms(count_rows: str) -> str:
    """One row per minute and mechanism: authentications, re-authentications among them, latencies.

    `busy_us` is the sum of the latencies: an upper bound of the CPU time, because it includes a
    client's own delays between two SASL messages. Null if the minute has only summary rows.
    """
    return f"""SELECT minute_ms, mechanism, {total("count")} AS authentications,
        {total(f"CASE WHEN kind = '{_AGAIN}' THEN count ELSE 0 END")} AS reauthentications,
        {total("busy_us")} AS busy_us, max(slowest_us) AS slowest_us
        FROM {count_rows} WHERE {is_kind(_LOGIN, _AGAIN)} AND minute_ms IS NOT NULL
        GROUP BY minute_ms, mechanism"""


def storm_profile(storm_rows: str) -> str:
    """The busiest minute of each of `STORM_POINTS` stretches of equal length, for a plot."""
    return f"""WITH minutes AS (SELECT minute_ms AS at_ms, {total("authentications")} AS logins,
            {total("reauthentications")} AS again FROM {storm_rows} GROUP BY minute_ms),
        whole AS (SELECT min(at_ms) AS first_ms, CAST(ceil(((max(at_ms) - min(at_ms))
            / {MINUTE_MS} + 1) / {STORM_POINTS}) AS BIGINT) * {MINUTE_MS} AS width FROM minutes)
        SELECT (at_ms - first_ms) // width * width + first_ms AS minute_ms,
            max(logins) AS authentications, max(again) AS reauthentications
        FROM minutes, whole GROUP BY ALL ORDER BY minute_ms"""


def latencies(count_rows: str) -> str:
    """Latency quantiles per mechanism and kind of authentication, in microseconds.

    They are accurate to 1 % (docs/events.md, "Latencies of a summary row").
    """
    value = f"{2 / (LATENCY_GAMMA + 1)} * pow(CAST({LATENCY_GAMMA} AS DOUBLE), bucket)"
    reached = ", ".join(
        f"min(CASE WHEN below >= ceil(total * {share}) THEN {value} END) AS p{share * 100:.0f}_us"
        for share in QUANTILES
    )
    return f"""SELECT mechanism, kind, CAST(total AS BIGINT) AS count, {reached},
        max({value}) AS max_us
        FROM (SELECT mechanism, kind, bucket, sum(sum(count)) OVER (PARTITION BY mechanism, kind
                ORDER BY bucket ROWS UNBOUNDED PRECEDING) AS below,
                sum(sum(count)) OVER (PARTITION BY mechanism, kind) AS total
            FROM {count_rows} WHERE bucket IS NOT NULL GROUP BY mechanism, kind, bucket) AS added
        GROUP BY mechanism, kind, total"""


def failures(count_rows: str) -> str:
    """Failed authentications by reason, first logins and re-authentications separately."""
    return f"""SELECT mechanism, failure_reason, reauthentication, {total("count")} AS count
        FROM {count_rows} WHERE {is_kind(EventKind.FAILED)} AND minute_ms IS NOT NULL
        GROUP BY mechanism, failure_reason, reauthentication"""
