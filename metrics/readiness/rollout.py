"""Funnel of `reauth.enforcement: auto` by day: the rules of `proxy.rollout`, applied to events.

Events become rows per kind of client and day. A reset is a failure, a gap in the numbers of a
connection's events, or a demotion; only re-authentications after the last reset count. Days are
judged at their end, with the default settings of `auto`. Summary rows are no evidence.
"""

from metrics.events import EventKind
from metrics.readiness.events import DAY_MS, day_of, words
from metrics.readiness.usage import KILLED, REFUSED, is_kind
from metrics.rollout import (
    AUTO,
    CHANGING,
    EVIDENCE_MAX_AGE_MS,
    MAX_CLIENTS,
    REAUTHENTICATIONS,
    WINDOW_MS,
    Stage,
)

_SOFTWARE = "client_software_name, client_software_version"
_KIND = f"principal, client_id, {_SOFTWARE}"
_LOGIN = is_kind(EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED)
_ENFORCED = "enforcement = 'enforce'"
_READ = f"""connection_id, {_KIND}, kind, timestamp_ms, authentications, authenticate_version,
    close_reason, enforcement, last_request_ms"""
_PLACE = {stage: place for place, stage in enumerate(Stage)}


def decisions(records: str) -> str:
    """One row per decision about a principal."""
    return f"""SELECT DISTINCT principal, {day_of("timestamp_ms")} AS day, timestamp_ms,
        kind = '{EventKind.DEMOTED}' AS demoted, decided_by = '{AUTO}' AS automatic
        FROM {records} AS records WHERE principal IS NOT NULL"""


def gaps(events: str) -> str:
    """Return the events before which others of their connection are missing."""
    return f"""SELECT {_READ} FROM (SELECT *, sequence - lag(sequence) OVER (
        PARTITION BY connection_id ORDER BY sequence) AS step FROM {events}) AS numbered
        WHERE step > 1"""


def resets(events: str, gap_rows: str, decision_rows: str) -> str:
    """One row per client and day, with the last reset of its kind of client on that day.

    `stable_id` is the client id of the kind. `mode_ms` and `enforced_ms`: times of the last login
    or re-authentication, and of the last in `enforce`. A row that is not `shown` counts only if the
    client re-authenticated in time: a Java client names its software only after its login, so its
    first events are of another kind.
    """
    failed = f"""CASE WHEN {_LOGIN} THEN coalesce(authenticate_version, 0) < 1
        WHEN kind = '{EventKind.CLOSED}' THEN authentications > 0
            AND coalesce(close_reason IN ({words((*KILLED, *REFUSED))}), false)
        ELSE authentications > 0 AND {
        is_kind(EventKind.FAILED, EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED)
    } END"""
    shown = "failed OR client_software_name IS NOT NULL OR last_request_ms IS NOT NULL"
    stable = "client_id"
    for pattern, replacement in CHANGING:
        parts = pattern.split("\\")  # how a backslash is quoted differs between engines
        quoted = ", chr(92), ".join(f"'{part}'" for part in parts)
        stable = f"regexp_replace({stable}, concat({quoted}), '{replacement}')"
    seen = f"""SELECT {_KIND}, day, {stable} AS stable_id, bool_or({shown}) AS shown,
            max(CASE WHEN failed THEN timestamp_ms END) AS failed_ms,
            max(CASE WHEN failed OR gap THEN timestamp_ms END) AS reset_ms,
            max(CASE WHEN {_LOGIN} AND ({shown}) THEN timestamp_ms END) AS mode_ms,
            max(CASE WHEN {_LOGIN} AND ({shown}) AND {_ENFORCED} THEN timestamp_ms END)
                AS enforced_ms
        FROM (SELECT *, {failed} AS failed, {day_of("timestamp_ms")} AS day
            FROM (SELECT {_READ}, false AS gap FROM {events}
                UNION ALL SELECT {_READ}, true FROM {gap_rows}) AS read
            WHERE principal IS NOT NULL) AS rows GROUP BY {_KIND}, day"""
    demoted = f"""SELECT principal AS who, day AS demoted_on, max(timestamp_ms) AS demoted_ms
        FROM {decision_rows} WHERE demoted GROUP BY principal, day"""
    return f"""SELECT {_KIND}, day, stable_id, shown, failed_ms, mode_ms, enforced_ms,
        greatest(demoted_ms, max(reset_ms) OVER (
            PARTITION BY principal, stable_id, {_SOFTWARE}, day)) AS reset_ms
        FROM ({seen}) AS seen LEFT JOIN ({demoted}) AS demotions
        ON principal = who AND day = demoted_on"""


def renewals(events: str, late_rows: str, reset_rows: str) -> str:
    """One row per kind of client and day with re-authentications in time; those after the last
    reset of the day are counted.

    Unlike in the proxy, two in the same millisecond count twice, because counting distinct times
    would need memory for each. `late_rows`: connections and numbers of authentications that were
    not in time.
    """
    counted = "CASE WHEN timestamp_ms > coalesce(reset_ms, 0) THEN timestamp_ms END"
    same = " AND ".join(f"e.{name} IS NOT DISTINCT FROM r.{name}" for name in _KIND.split(", "))
    again = f"kind = '{EventKind.REAUTHENTICATED}' AND principal IS NOT NULL"
    kind = "r.principal, stable_id, r.client_software_name, r.client_software_version, day"
    return f"""SELECT {kind},
        max(reset_ms) AS reset_ms, count({counted}) AS renewed,
        min({counted}) AS first_ms, max({counted}) AS last_ms, max(timestamp_ms) AS mode_ms,
        max(CASE WHEN {_ENFORCED} THEN timestamp_ms END) AS enforced_ms
        FROM (SELECT * FROM {events} WHERE {again}) AS e
        ANTI JOIN {late_rows} AS l
            ON e.connection_id = l.connection_id AND e.authentications = l.number
        JOIN {reset_rows} AS r ON {same} AND {day_of("e.timestamp_ms")} = r.day GROUP BY {kind}"""


def evidence(reset_rows: str, renewal_rows: str) -> str:
    """One row per kind of client and day on which it was seen."""
    return f"""SELECT principal, stable_id AS client_id, {_SOFTWARE}, day,
        max(failed_ms) AS failed_ms, max(reset_ms) AS reset_ms,
        coalesce(max(renewed), 0) AS renewed, max(first_ms) AS first_ms, max(last_ms) AS last_ms,
        max(mode_ms) AS mode_ms, max(enforced_ms) AS enforced_ms
        FROM (SELECT * EXCLUDE (client_id, shown) FROM {reset_rows} WHERE shown
            UNION ALL BY NAME FROM {renewal_rows}) AS seen GROUP BY ALL"""


def stages(evidence_rows: str, decision_rows: str, client_rows: str) -> str:
    """One row per principal and day: its stage, and the client that is farthest from being ready.

    A principal with connections that were left out is undecided, unless it is enforced or demoted:
    their re-authentications may have been late. A principal that was not seen for so long that its
    evidence does not count has no row.
    """
    age = f"RANGE BETWEEN {EVIDENCE_MAX_AGE_MS // DAY_MS - 1} PRECEDING AND CURRENT ROW"
    client = f"struct_pack(client_id, {_SOFTWARE})"
    return f"""WITH evidence AS (SELECT *, {client} AS client FROM {evidence_rows}),
        demotions AS (SELECT DISTINCT principal, day FROM {decision_rows} WHERE demoted),
        days AS (SELECT day FROM evidence UNION SELECT day FROM {decision_rows}),
        seen AS (SELECT principal, client, min(day) AS first_day, max(day) AS last_day
            FROM evidence GROUP BY principal, client),
        each AS (SELECT s.*, d.day, e.* EXCLUDE ({_KIND}, client, day), e.day AS seen_on,
            count(CASE WHEN e.reset_ms IS NOT NULL OR m.day IS NOT NULL THEN 1 END) OVER (
                PARTITION BY s.principal, s.client ORDER BY d.day) AS part
            FROM seen AS s JOIN days AS d ON d.day BETWEEN s.first_day
                AND s.last_day + {EVIDENCE_MAX_AGE_MS // DAY_MS - 1}
            LEFT JOIN evidence AS e ON e.principal = s.principal AND e.client = s.client
                AND e.day = d.day
            LEFT JOIN demotions AS m ON m.principal = s.principal AND m.day = d.day),
        so_far AS (SELECT * EXCLUDE (renewed, failed_ms), max(failed_ms) OVER recent AS failed_ms,
            coalesce(sum(renewed) OVER lately, 0) AS reauthentications,
            coalesce(max(last_ms) OVER lately - min(first_ms) OVER lately, 0) AS evidence_ms,
            max(mode_ms) OVER recent AS mode, max(enforced_ms) OVER recent AS enforced
            FROM each WINDOW recent AS (PARTITION BY principal, client ORDER BY day {age}),
            lately AS (PARTITION BY principal, client, part ORDER BY day {age})
            QUALIFY max(seen_on) OVER recent IS NOT NULL),
        judged AS (SELECT *, CASE
            WHEN reauthentications = 0 AND failed_ms IS NULL THEN {_PLACE[Stage.UNDECIDED]}
            WHEN reauthentications = 0 THEN {_PLACE[Stage.SEEN]}
            WHEN reauthentications < {REAUTHENTICATIONS} OR evidence_ms < {WINDOW_MS}
            THEN {_PLACE[Stage.CAPABLE]} ELSE {_PLACE[Stage.READY]} END AS place FROM so_far),
        principals AS (SELECT principal, day, count(*) AS clients,
            coalesce(max(enforced) = max(mode), false) AS enforced, min_by(
                struct_pack(client, reauthentications, evidence_ms, place), row(place, client))
                AS farthest FROM judged GROUP BY principal, day),
        decided AS (SELECT principal, day, max_by(demoted, timestamp_ms) AS demoted,
            max_by(automatic, timestamp_ms) AS automatic FROM {decision_rows}
            GROUP BY principal, day),
        placed AS (SELECT p.*, farthest.client AS client, d.demoted, d.automatic,
            CASE WHEN clients > {MAX_CLIENTS} OR p.principal IN (SELECT principal
                FROM {client_rows} WHERE left_out_connections > 0) THEN {_PLACE[Stage.UNDECIDED]}
            ELSE farthest.place END AS place
            FROM principals AS p ASOF LEFT JOIN decided AS d
            ON p.principal = d.principal AND p.day >= d.day)
        SELECT principal, day, clients, client.*, farthest.reauthentications,
            farthest.evidence_ms,
        [{words(list(Stage))}][1 + CASE
            WHEN NOT coalesce(demoted, NOT enforced) THEN {_PLACE[Stage.ENFORCED]}
            WHEN demoted AND (NOT automatic OR place < {_PLACE[Stage.READY]})
            THEN {_PLACE[Stage.DEMOTED]} ELSE place END] AS stage FROM placed"""


def funnel(stage_rows: str) -> str:
    """One row per day: the number of principals in each stage."""
    counts = ", ".join(f"count_if(stage = '{each}') AS {each}" for each in Stage)
    return f"SELECT day, {counts} FROM {stage_rows} GROUP BY day ORDER BY day"
