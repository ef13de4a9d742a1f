"""Sessions: one row per connection with its identity. Clients: one row per `CLIENT_KEY`.

The numbers come from `usage`, the text from the last event of each connection. A row may represent
several connections (`alike`).
"""

from metrics.events import IntervalEnd
from metrics.readiness.events import MINUTE_MS, counted, day_of, total, words
from metrics.readiness.usage import (
    CLIENT_KEY,
    GREATEST,
    IDENTITY,
    LEAST,
    MIN_REAUTH_INTERVAL_MS,
    Occurrence,
    member_of,
    occurred,
)
from metrics.report.verdicts import WORST_FIRST, Verdict

HOSTS_SHOWN = 5

VERSIONS_SHOWN = 50
"""Maximum number of API versions listed for one client: KIP-896 drops fewer."""

PRINCIPALS_NAMED = 500
"""Maximum number of principals listed for one version of a library."""

NEVER = 2**31 - 1
"""A day that never comes, for a client whose state stays unknown."""

HASTY_CONNECTIONS = 3
"""Minimum number of connections with such a hasty re-authentication: fewer are an accident."""

MIN_SENSIBLE_TOKEN_MS = 60_000
"""Minimum sensible token lifetime in milliseconds: one renewal a minute."""

BREAKING = (Verdict.FAILING, Verdict.NOT_CAPABLE)
"""The verdicts of clients that break when sessions are enforced."""


def same_client(one: str, other: str) -> str:
    """Return the SQL condition that two rows are of one client; null equals null."""
    return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in CLIENT_KEY)


def ended(connection_rows: str, identity_rows: str) -> str:
    """Return the query for the identity of each connection whose last event is its end."""
    # one row per hash: two identities with the same hash would double a connection
    once = f"""SELECT identity_id, {", ".join(f"min({name}) AS {name}" for name in IDENTITY)}
        FROM {identity_rows} GROUP BY identity_id"""
    return f"""SELECT c.connection_id, {", ".join(f"i.{name}" for name in IDENTITY)}
        FROM {connection_rows} AS c JOIN ({once}) AS i ON c.identity_id = i.identity_id
        WHERE c.ended_sequence = c.last_sequence"""


def last_events(events: str, connection_rows: str) -> str:
    """Return the same for open connections, whose last event may be of any kind."""
    return f"""SELECT connection_id, {", ".join(IDENTITY)} FROM (
        SELECT e.connection_id, {", ".join(f"e.{name}" for name in IDENTITY)}, row_number() OVER (
            PARTITION BY e.connection_id ORDER BY e.timestamp_ms DESC) AS place
        FROM {events} AS e JOIN {connection_rows} AS c
        ON e.connection_id = c.connection_id AND e.sequence = c.last_sequence) AS found
        WHERE place = 1"""


def named(identity_rows: str) -> str:
    """Return the query that names unknown libraries after those of similar connections.

    Similar connections have the same principal, client id, mechanism and versions of SASL. If they
    name several libraries, the name stays unknown.
    """
    same = ("principal", "client_id", "mechanism", "handshake_version", "authenticate_version")
    name, version = "client_software_name", "client_software_version"
    libraries = f"""SELECT {", ".join(same)}, min({name}) AS library, min({version}) AS version
        FROM {identity_rows} WHERE principal IS NOT NULL AND {name} IS NOT NULL
        GROUP BY {", ".join(same)} HAVING min({name}) = max({name})
            AND min(coalesce({version}, '')) = max(coalesce({version}, ''))"""
    kept = ", ".join(f"i.{each}" for each in IDENTITY if each not in (name, version))
    joined = " AND ".join(f"i.{each} IS NOT DISTINCT FROM l.{each}" for each in same)
    return f"""SELECT i.connection_id, {kept}, coalesce(i.{name}, l.library) AS {name},
        CASE WHEN i.{name} IS NULL THEN l.version ELSE i.{version} END AS {version}
        FROM {identity_rows} AS i LEFT JOIN ({libraries}) AS l ON {joined}"""


def sessions(
    connection_rows: str, identity_rows: str, outcome_rows: str, throttled_rows: str
) -> str:
    """One row per connection: its identity, times, re-authentications and end.

    `ended_since_auth_ms` is the age of its last session at the end. Connections without SASL, which
    are recorded only for denials, have no session to judge and are left out, as are those whose
    broker was lost during the login.
    """
    flags = {
        "killed": Occurrence.KILLED,
        "reauth_failures": Occurrence.REAUTH_FAILURE,
        "reauth_refusals": Occurrence.REAUTH_REFUSAL,
        "renewal_failures": Occurrence.RENEWAL_FAILURE,
        "login_failures": Occurrence.LOGIN_FAILURE,
        "closed": Occurrence.CLOSED,
        "left_out": Occurrence.LEFT_OUT,
        "uncounted": Occurrence.UNCOUNTED,
    }
    return f"""SELECT connection_id, alike, {", ".join((*LEAST, *GREATEST))},
        i.* EXCLUDE (connection_id), o.past_end_ms, t.throttled_ms, t.throttled_by,
        greatest(would_be_kill_events, coalesce(would_be_kills_in_summaries, 0),
            coalesce(o.past_sessions, 0)) AS would_be_kills,
        o.connection_id IS NOT NULL AS looked_at,
        greatest(event_requests, summary_requests) AS requests,
        greatest(CASE WHEN alike = 1 THEN authentications - 1
            ELSE authentication_events - alike END, 0) AS reauthentications,
        {", ".join(f"CAST({occurred(bit)} AS BIGINT) AS {name}" for name, bit in flags.items())},
        CASE WHEN killed > 0 THEN '{IntervalEnd.EXPIRED_KILLED}'
            WHEN reauth_failures + login_failures > 0 THEN '{IntervalEnd.FAILED}'
            WHEN closed > 0 THEN '{IntervalEnd.CLOSED}' END AS ended_by,
        {standing()} AS standing
        FROM {connection_rows} AS c JOIN {identity_rows} AS i USING (connection_id)
        LEFT JOIN {outcome_rows} AS o USING (connection_id)
        LEFT JOIN {throttled_rows} AS t USING (connection_id)
        WHERE authentications > 0
            OR (principal IS NULL AND NOT {occurred(Occurrence.LOST_LOGIN)})"""


def standing() -> str:
    """Return the SQL for the verdict on a session; without a known lifetime it is unproven."""
    return f"""CASE WHEN principal IS NULL THEN '{Verdict.UNKNOWN}'
        WHEN NOT coalesce(authenticate_version >= 1, false) THEN '{Verdict.NOT_CAPABLE}'
        WHEN killed + would_be_kills + renewal_failures > 0 THEN '{Verdict.FAILING}'
        WHEN coalesce(unjudged, 0) + left_out > 0 THEN '{Verdict.UNPROVEN}'
        WHEN reauthentications > 0 THEN '{Verdict.READY}' ELSE '{Verdict.UNPROVEN}' END"""


def hasty(session_rows: str) -> str:
    """One row per client that re-authenticates within a second of the last authentication.

    `hasty_ms` is the longest lifetime with which it does so, `ready_from_ms` the shortest of the
    longer lifetimes that it kept. Brokers refuse such a re-authentication, so the client breaks.
    """
    key = ", ".join(CLIENT_KEY)
    again = "reauthentications > 0"
    is_hasty = f"{again} AND coalesce(shortest_gap_ms < {MIN_REAUTH_INTERVAL_MS}, false)"
    rows = f"""SELECT *, {is_hasty} AS is_hasty, max(CASE WHEN {is_hasty} THEN announced_ms END)
            OVER (PARTITION BY {key}) AS hasty_ms
        FROM {session_rows} WHERE principal IS NOT NULL AND {again}"""
    kept = f"""least_announced_ms > hasty_ms AND standing = '{Verdict.READY}'"""
    return f"""SELECT {key}, hasty_ms, count_if(is_hasty) AS hasty_connections,
        min(CASE WHEN {kept} THEN least_announced_ms END) AS ready_from_ms
        FROM ({rows}) AS rows WHERE hasty_ms > 0 GROUP BY {key}, hasty_ms
        HAVING count_if(is_hasty) >= {HASTY_CONNECTIONS}
            AND count_if(is_hasty) * 2 >= count_if(announced_ms <= hasty_ms)"""


def client_days(
    usage_rows: str, session_rows: str, use_rows: str, interval_rows: str, hasty_rows: str
) -> str:
    """One row per client and day on which it was seen, with its state at the end of the day.

    A failure counts until the client re-authenticates in time on a later day: a repaired client is
    ready the day after, and one that has not re-authenticated since is still failing. A session
    that is used past its end is a failure on each day of use; the re-authentication that ends it is
    late and does not make the client ready. If the log lacks `expired_requests`, a session that was
    used past its end and has no recorded end makes its client unknown, and so does a connection
    that was left out. A client to which no lifetime can be announced stays not capable.

    The last day's `state` is the client's verdict, so the trend and the verdict always agree.
    """
    key = ", ".join(CLIENT_KEY)
    bits = Occurrence.KILLED | Occurrence.RENEWAL_FAILURE
    names = ", ".join(f"s.{name}" for name in CLIENT_KEY)
    days = f"""SELECT u.connection_id, u.day, bit_or(u.saw) AS saw, s.looked_at,
        max(u.authentications) AS authentications,
        max(coalesce(s.authenticate_version, 0)) AS version, {names}
        FROM {usage_rows} AS u JOIN {session_rows} AS s ON u.connection_id = s.connection_id
        WHERE s.principal IS NOT NULL GROUP BY u.connection_id, u.day, s.looked_at, {names}"""
    left_out = occurred(Occurrence.LEFT_OUT)
    # null before the first day, which `greatest` ignores
    before = f"""SELECT *, greatest(max(authentications) OVER (PARTITION BY connection_id
        ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 1) AS least
        FROM ({days}) AS days"""
    known = f"""SELECT day, {key}, CASE WHEN {occurred(bits)} THEN day END AS failed_on,
            CASE WHEN NOT looked_at AND NOT {left_out} AND authentications > least
                THEN day END AS again_on,
            CASE WHEN {left_out} THEN {NEVER} END AS unknown_on, version
        FROM ({before}) AS before
        UNION ALL SELECT r.day, {names}, CASE WHEN r.past > 0 THEN r.day END, NULL,
            CASE WHEN r.unjudged > 0 THEN r.day END, coalesce(s.authenticate_version, 0)
        FROM {use_rows} AS r JOIN {session_rows} AS s ON r.connection_id = s.connection_id
        WHERE s.principal IS NOT NULL AND r.day IS NOT NULL AND r.past + r.unjudged > 0
        UNION ALL SELECT r.day, {names}, NULL, CASE WHEN r.in_time THEN r.day END,
            CASE WHEN NOT r.in_time THEN {NEVER} END, coalesce(s.authenticate_version, 0)
        FROM (SELECT connection_id, in_time, {day_of("begin_ms")} AS day FROM {interval_rows}
            WHERE in_time UNION ALL SELECT connection_id, false, last_day FROM {interval_rows}
            WHERE past = 1 AND renewed + killed = 0 AND last_day IS NOT NULL) AS r
        JOIN {session_rows} AS s ON r.connection_id = s.connection_id
        WHERE s.principal IS NOT NULL
            AND (r.in_time OR (s.ended_by IS NULL AND s.uncounted > 0))"""
    of_day = f"""SELECT day, {key}, max(failed_on) AS failed_on, max(again_on) AS again_on,
        max(unknown_on) AS unknown_on,
        min(CASE WHEN version < 1 THEN day END) AS old_on,
        min(CASE WHEN version >= 1 THEN day END) AS capable_on
        FROM ({known}) AS known GROUP BY day, {key}"""
    so_far = f"OVER (PARTITION BY {key} ORDER BY day ROWS UNBOUNDED PRECEDING)"
    columns = ", ".join(f"k.{name}" for name in CLIENT_KEY)
    return f"""SELECT k.day, {columns}, k.failed_on, k.again_on, k.renewed_today,
        k.old_on, k.capable_on, CASE
            WHEN k.failed_on IS NOT NULL AND coalesce(k.again_on, -1) <= k.failed_on
                AND k.capable_on IS NOT NULL THEN '{Verdict.FAILING}'
            WHEN k.old_on IS NOT NULL THEN '{Verdict.NOT_CAPABLE}'
            WHEN k.again_on IS NOT NULL AND h.hasty_ms IS NOT NULL AND h.ready_from_ms IS NULL
                THEN '{Verdict.FAILING}'
            WHEN k.unknown_on >= coalesce(k.again_on, 0) THEN '{Verdict.UNKNOWN}'
            WHEN k.again_on IS NOT NULL THEN '{Verdict.READY}'
            ELSE '{Verdict.UNPROVEN}' END AS state
        FROM (SELECT day, {key}, again_on = day AS renewed_today,
            max(failed_on) {so_far} AS failed_on, max(unknown_on) {so_far} AS unknown_on,
            max(again_on) {so_far} AS again_on, min(old_on) {so_far} AS old_on,
            min(capable_on) {so_far} AS capable_on FROM ({of_day}) AS of_day) AS k
        LEFT JOIN {hasty_rows} AS h ON {same_client("k", "h")}"""


def clients(session_rows: str, client_day_rows: str, hasty_rows: str) -> str:
    """One row per client: its verdict, with the sums and extremes of its sessions as evidence.

    `failed_on` is the last day with a failure. A client that is ready despite a failure
    re-authenticated on a later day, `ready_since`.
    """
    key = ", ".join(CLIENT_KEY)
    sums = ("reauthentications", "would_be_kills", "requests")
    flags = ("killed", "reauth_failures", "reauth_refusals", "login_failures")
    extremes = (
        "announced_ms",
        "used_ms",
        "longest_gap_ms",
        "outlived_credential_ms",
        "past_end_ms",
        "throttled_ms",
    )
    raw = "authenticate_version IS NULL AND principal IS NOT NULL"
    rows = f"""SELECT {key}, {total("alike")} AS connections,
        coalesce({total("CASE WHEN ended_by IS NULL THEN alike END")}, 0) AS open_connections,
        {total("left_out * alike")} AS left_out_connections,
        list_sort(collect_set(client_host))[:{HOSTS_SHOWN}] AS hosts,
        count(DISTINCT client_host) AS host_count,
        list_sort(collect_set(listener)) AS listeners,
        min(authenticate_version) AS authenticate_version,
        {total(f"CASE WHEN standing = '{Verdict.NOT_CAPABLE}' THEN alike ELSE 0 END")}
            AS not_capable_connections,
        {total(f"CASE WHEN {raw} THEN alike ELSE 0 END")} AS raw_token_connections,
        {", ".join(f"max({name}) AS {name}" for name in extremes)},
        max_by(throttled_by, throttled_ms) AS throttled_by, count(throttled_by) > 0 AND
            count(throttled_by) >= count_if(standing = '{Verdict.FAILING}') AS only_throttled,
        min(credential_lifetime_ms) AS credential_lifetime_ms,
        min(first_event_ms) AS first_seen_ms, max(last_event_ms) AS last_seen_ms,
        {", ".join(f"{total(f'{name} * alike')} AS {name}" for name in flags)},
        {", ".join(f"{total(name)} AS {name}" for name in sums)}
        FROM {session_rows} GROUP BY {key}"""
    last = f"""SELECT {key}, max(failed_on) AS failed_on, max_by(state, day) AS state,
        min(CASE WHEN renewed_today AND day > last_failed_on THEN day END) AS ready_since
        FROM (SELECT *, max(failed_on) OVER (PARTITION BY {key}) AS last_failed_on
            FROM {client_day_rows}) AS days GROUP BY {key}"""
    return f"""SELECT c.*, d.failed_on,
        CASE WHEN d.state = '{Verdict.READY}' THEN d.ready_since END AS ready_since,
        h.hasty_ms, h.ready_from_ms, coalesce(d.state, '{Verdict.UNKNOWN}') AS verdict
        FROM ({rows}) AS c LEFT JOIN ({last}) AS d ON {same_client("c", "d")}
        LEFT JOIN {hasty_rows} AS h ON {same_client("c", "h")}"""


def regressed(client_rows: str, client_day_rows: str) -> str:
    """One row per client that is no longer ready, with the last day on which it was."""
    return f"""SELECT {", ".join(f"c.{name}" for name in CLIENT_KEY)}, verdict,
        max(day) AS ready_until
        FROM {client_rows} AS c JOIN {client_day_rows} AS d ON {same_client("c", "d")}
        WHERE verdict <> '{Verdict.READY}' AND state = '{Verdict.READY}' GROUP BY ALL"""


def by_their_clients(session_rows: str, client_rows: str) -> str:
    """One row per connection, whose `standing` is ready if its client's verdict is.

    A ready client has proved on other connections that it re-authenticates in time; most of its
    connections had no lifetime announced yet, or ended before they had to re-authenticate. Failures
    before it was repaired are no evidence of its present behaviour.
    """
    return f"""SELECT s.connection_id, s.alike, {", ".join(f"s.{name}" for name in CLIENT_KEY)},
        s.used_ms, s.ended_by, s.ended_since_auth_ms, s.left_out, s.authentications,
        CASE WHEN c.verdict = '{Verdict.READY}' THEN c.verdict ELSE s.standing END AS standing
        FROM {session_rows} AS s JOIN {client_rows} AS c ON {same_client("s", "c")}"""


def rank() -> str:
    """Return the SQL for the rank of a verdict, worst first."""
    return f"list_position([{words(WORST_FIRST)}], verdict)"


def breaking_software(client_rows: str) -> str:
    """One row per library and version of clients that break, most clients first.

    Clients that failed only because they were throttled are left out.
    """
    return f"""SELECT client_software_name, client_software_version, count(*) AS clients,
        list_sort(collect_set(principal))[:{PRINCIPALS_NAMED}] AS principals,
        count(DISTINCT principal) AS principal_count
        FROM {client_rows} WHERE verdict IN ({words(BREAKING)}) AND NOT only_throttled
        GROUP BY client_software_name, client_software_version
        ORDER BY clients DESC, client_software_name NULLS FIRST,
            client_software_version NULLS FIRST"""


def client_groups(membership_rows: str, session_rows: str) -> str:
    """One row per client and group of which any of its connections was a member."""
    key = ", ".join(f"s.{name}" for name in CLIENT_KEY)
    return f"""SELECT DISTINCT m.group_principal AS "group", {key} FROM {membership_rows} AS m
        JOIN {session_rows} AS s ON m.member = {member_of("s.")}
        WHERE m.group_principal IS NOT NULL"""


def groups(client_group_rows: str, client_rows: str) -> str:
    """One row per group, like `by_principal`, over the clients of all its members."""
    members = f"""SELECT m."group" AS principal, c.principal AS member, c.verdict,
        c.connections, c.listeners, c.last_seen_ms
        FROM {client_group_rows} AS m JOIN {client_rows} AS c ON {same_client("m", "c")}"""
    return by_principal(f"({members})", "count(DISTINCT member) AS principals,")


def by_principal(client_rows: str, more: str = "") -> str:
    """One row per principal: its clients by verdict, its worst verdict, and `enforceable`."""
    counts = ", ".join(f"count_if(verdict = '{each}') AS {each}" for each in Verdict)
    return f"""SELECT principal, {more} count(*) AS clients, {total("connections")} AS connections,
        {counts}, list_sort(list_distinct(flatten(list(listeners)))) AS listeners,
        max(last_seen_ms) AS last_seen_ms, min_by(verdict, {rank()}) AS verdict,
        bool_and(verdict = '{Verdict.READY}') AS enforceable
        FROM {client_rows} AS c WHERE principal IS NOT NULL GROUP BY principal"""


def by_day(client_day_rows: str) -> str:
    """One row per day: the clients seen on it, by their state at the end of the day."""
    counts = ", ".join(f"count_if(state = '{each}') AS {each}" for each in Verdict)
    return f"""SELECT day, count(*) AS clients, {counts}, ready / clients AS ready_share
        FROM {client_day_rows} GROUP BY day"""


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
    return f"""SELECT CAST(pow(2, ceil(log2(greatest(used_ms, {MINUTE_MS}) / {MINUTE_MS})))
            * {MINUTE_MS} AS BIGINT) AS up_to_ms, standing, {total("alike")} AS connections
        FROM {session_rows} WHERE used_ms IS NOT NULL GROUP BY ALL"""


def denials(events: str) -> str:
    """One row per principal, resource and denied operation: counts, hosts and times."""
    times = counted("denials", least=1)
    return f"""SELECT principal, resource_type, resource_name, operation,
        {total(f"CASE WHEN kind = 'denied' THEN {times} ELSE 0 END")} AS denied,
        {total(f"CASE WHEN kind = 'denied' THEN 0 ELSE {times} END")} AS would_be_denied,
        slice(sort_array(collect_set(client_host)), 1, {HOSTS_SHOWN}) AS hosts,
        min(timestamp_ms) AS first_ms, max(timestamp_ms) AS last_ms
        FROM {events} WHERE kind IN ('denied', 'would-be-denied') AND principal IS NOT NULL
        GROUP BY principal, resource_type, resource_name, operation"""


def denied_resources(denial_rows: str) -> str:
    """One row per principal and resource, with the operations and their counts, from `denials`.

    `place` ranks a principal's resources, the most denied first.
    """
    return f"""SELECT principal, resource_type, resource_name,
        list_sort(collect_set(operation)) AS operations,
        {total("d.denied")} AS denied, {total("d.would_be_denied")} AS would_be_denied,
        row_number() OVER (PARTITION BY principal ORDER BY sum(d.denied + d.would_be_denied) DESC,
            resource_type NULLS FIRST, resource_name NULLS FIRST) AS place
        FROM {denial_rows} AS d GROUP BY principal, resource_type, resource_name"""


def dropped_uses(events: str) -> str:
    """Count connections that use API versions that Kafka 4.0 dropped (KIP-896).

    One row per client, host, listener, API and version, and one per client, host and listener
    with a null `api`.
    """
    key = ", ".join((*CLIENT_KEY, "client_host", "listener"))
    listed = f"""SELECT {key}, connection_id, timestamp_ms, explode(dropped_versions) AS used
        FROM {events} WHERE dropped_versions IS NOT NULL AND principal IS NOT NULL"""
    return f"""SELECT {key}, api, version, count(DISTINCT connection_id) AS connections,
        min(timestamp_ms) AS first_ms, max(timestamp_ms) AS last_ms
        FROM (SELECT *, used.api AS api, used.version AS version FROM ({listed}) AS listed) AS uses
        WHERE api IS NOT NULL AND version IS NOT NULL
        GROUP BY GROUPING SETS (({key}, api, version), ({key}))"""


def dropped_versions(use_rows: str) -> str:
    """One row per client, API and version of `dropped_uses`: connections, listeners and times."""
    key = ", ".join((*CLIENT_KEY, "api", "version"))
    return f"""SELECT {key}, {total("connections")} AS connections,
        sort_array(collect_set(listener)) AS listeners, min(first_ms) AS first_ms,
        max(last_ms) AS last_ms FROM {use_rows} WHERE api IS NOT NULL GROUP BY {key}"""


def breaks_at_kafka_4(use_rows: str) -> str:
    """One row per client of `dropped_uses`: its versions, connections and hosts."""
    key = ", ".join(CLIENT_KEY)
    return f"""SELECT {key}, {total("CASE WHEN api IS NULL THEN u.connections END")} AS connections,
        list_sort(collect_set(api || ' v' || version))[:{VERSIONS_SHOWN}] AS versions,
        list_sort(collect_set(client_host))[:{HOSTS_SHOWN}] AS hosts,
        count(DISTINCT client_host) AS host_count, max(last_ms) AS last_ms
        FROM {use_rows} AS u GROUP BY {key}"""
