"""Use of resources per day, and ACLs compared with it: unused, wider than their use, missing.

Records of use are read from the events. The ACLs and users come from files, as `acls export` and
`users list` print them in JSON. Everything about them runs in the report's database.

- A use matches an ACL as in Kafka, except that an address block (`10.0.0.0/8`) matches every host.
- `may write to any topic`, which an idempotent producer needs, matters only to a principal that
  writes to no topic.
- Groups of a principal are those of its connections in the log.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from metrics.events import SCHEMA_VERSION, EventKind
from metrics.readiness.events import MAX_COUNT, day_of, is_within, total
from metrics.readiness.usage import is_kind

_KEY: Final = "principal, client_id, client_host, operation, resource_type, resource_name"
ACL_FIELDS: Final = (
    "resource_type",
    "pattern_type",
    "name",
    "principal",
    "host",
    "operation",
    "permission",
)
_USER_FIELDS: Final = ("user",)


def records(source: str, *kinds: EventKind, **bounds: Any) -> str:
    """Return the query for the valid records of use or decisions; see `Question` for the bounds."""
    return f"""SELECT * FROM {source} WHERE {is_kind(*kinds)}
        AND schema_version = {SCHEMA_VERSION} AND connection_id IS NOT NULL
        AND sequence BETWEEN 0 AND {MAX_COUNT}
        AND (kind <> '{EventKind.USED}' OR requests BETWEEN 1 AND {MAX_COUNT})
        AND {is_within(**bounds)}"""


def by_day(rows: str) -> str:
    """One row per day, client and use: the requests, and the last one. Null: not known which."""
    day = day_of("timestamp_ms")
    return f"""SELECT {day} AS day, {_KEY}, {total("requests")} AS requests,
        max(least(last_request_ms, timestamp_ms)) AS last_ms FROM {rows} AS rows
        GROUP BY {day}, {_KEY}"""


def queries(acls: Path | None, users: Path | None) -> Mapping[str, str]:
    """Return the queries of the report's database in order, by the names of their relations.

    They need the relations `used_by_day`, `denials`, `client_groups` and `principals`.
    """
    return {
        "acls": _from_json(acls, ACL_FIELDS),
        "credentials": _from_json(users, _USER_FIELDS),
        "resource_uses": _USES,
        "would_be_denied": _WOULD_BE_DENIED,
        "acts_as": _ACTS_AS,
        "needed_acls": _NEEDED,
        "acl_use": _ACL_USE,
        "authorizer_verdicts": _VERDICTS,
        "unseen_principals": _UNSEEN,
    }


def _from_json(path: Path | None, fields: tuple[str, ...]) -> str:
    """Return the query for the objects of a JSON array; no rows without a file."""
    if path is None:
        nulls = ", ".join(f'CAST(NULL AS VARCHAR) AS "{name}"' for name in fields)
        return f"SELECT {nulls} WHERE false"
    columns = ", ".join(f"\"{name}\": 'VARCHAR'" for name in fields)
    quoted = str(path).replace("'", "''")
    return f"SELECT * FROM read_json('{quoted}', format = 'array', columns = {{{columns}}})"


def _implies(given: str, needed: str) -> str:
    """Return the SQL condition that a permission for one operation includes the other."""
    return f"""({given} IN ({needed}, 'ALL')
        OR {needed} = 'DESCRIBE' AND {given} IN ('READ', 'WRITE', 'DELETE', 'ALTER')
        OR {needed} = 'DESCRIBE_CONFIGS' AND {given} = 'ALTER_CONFIGS')"""


_USES: Final = """SELECT principal, client_host, operation, resource_type, resource_name,
    CAST(sum(requests) AS BIGINT) AS requests, max(last_ms) AS last_ms FROM used_by_day AS u
    WHERE principal IS NOT NULL AND resource_name IS NOT NULL AND NOT (
        (operation = 'IDEMPOTENT_WRITE' OR operation = 'WRITE' AND resource_name = '*')
        AND EXISTS (SELECT 1 FROM used_by_day AS o WHERE o.principal = u.principal
            AND o.operation = 'WRITE' AND o.resource_type = 'TOPIC' AND o.resource_name <> '*'))
    GROUP BY ALL"""

_WOULD_BE_DENIED: Final = """SELECT principal, unnest(hosts) AS client_host, operation,
    resource_type, resource_name, would_be_denied, last_ms FROM denials WHERE would_be_denied > 0"""

_ACTS_AS: Final = """SELECT principal, unnest([principal, 'User:*']) AS named
    FROM (SELECT principal FROM resource_uses UNION SELECT principal FROM would_be_denied)
    UNION SELECT principal, "group" FROM client_groups WHERE principal IS NOT NULL"""

_APPLIES: Final = """a.resource_type = u.resource_type AND a.principal = n.named
    AND (a.host IN ('*', u.client_host) OR contains(a.host, '/'))
    AND (u.resource_name = '*' OR CASE a.pattern_type
        WHEN 'PREFIXED' THEN starts_with(u.resource_name, a.name)
        ELSE a.name IN ('*', u.resource_name) END)"""

_ALLOWS: Final = (
    f"a.permission = 'ALLOW' AND {_APPLIES} AND {_implies('a.operation', 'u.operation')}"
)

_NEEDED: Final = f"""WITH seen AS (
        SELECT DISTINCT principal, resource_type, resource_name, operation FROM resource_uses)
    SELECT principal, resource_type, resource_name, list_sort(list(operation)) AS operations
    FROM seen AS s WHERE NOT EXISTS (SELECT 1 FROM seen AS o WHERE o.principal = s.principal
        AND o.resource_type = s.resource_type AND o.resource_name = s.resource_name
        AND o.operation <> s.operation AND {_implies("o.operation", "s.operation")})
    GROUP BY ALL"""

_ACL_USE: Final = f"""SELECT *, requests > 0
        AND (operation = 'ALL' OR pattern_type = 'PREFIXED' OR name = '*') AS is_wider
    FROM (SELECT a.resource_type, a.pattern_type, a.name, a.principal, a.host, a.operation,
        CAST(coalesce(sum(u.requests), 0) AS BIGINT) AS requests, max(u.last_ms) AS last_ms,
        list_sort(collect_set(u.operation)) AS used_operations,
        count(DISTINCT u.resource_name) AS resources,
        list_sort(collect_set(u.resource_name))[:5] AS names
        FROM acls AS a LEFT JOIN (resource_uses JOIN acts_as USING (principal)) AS u ON {_ALLOWS}
        WHERE a.permission = 'ALLOW' GROUP BY ALL)""".replace("n.named", "u.named")

_STILL_DENIED: Final = f"""SELECT DISTINCT u.principal, u.operation, u.resource_type,
    u.resource_name, u.would_be_denied, u.last_ms FROM would_be_denied AS u
    WHERE NOT EXISTS (SELECT 1 FROM acls AS a JOIN acts_as AS n ON n.named = a.principal
            WHERE n.principal = u.principal AND {_ALLOWS})
        OR EXISTS (SELECT 1 FROM acls AS a JOIN acts_as AS n ON n.named = a.principal
            WHERE n.principal = u.principal AND a.permission = 'DENY' AND {_APPLIES}
            AND a.operation IN (u.operation, 'ALL'))"""

_VERDICTS: Final = f"""SELECT p.principal, CASE WHEN d.denials > 0 THEN 'denied'
        WHEN u.requests > 0 THEN 'ready' ELSE 'unproven' END AS verdict,
    coalesce(u.requests, 0) AS requests, coalesce(d.denials, 0) AS would_be_denied, d.last_ms
    FROM (SELECT DISTINCT principal FROM acts_as) AS p
    LEFT JOIN (SELECT principal, CAST(sum(requests) AS BIGINT) AS requests
        FROM resource_uses GROUP BY principal) AS u USING (principal)
    LEFT JOIN (SELECT principal, CAST(sum(would_be_denied) AS BIGINT) AS denials,
        max(last_ms) AS last_ms FROM ({_STILL_DENIED}) GROUP BY principal) AS d USING (principal)"""

_UNSEEN: Final = """SELECT principal, bool_or(is_acl) AS has_acl,
    bool_or(NOT is_acl) AS has_credential
    FROM (SELECT principal, true AS is_acl FROM acls WHERE starts_with(principal, 'User:')
            AND principal <> 'User:*'
        UNION ALL SELECT 'User:' || "user", false FROM credentials) AS known
    ANTI JOIN (SELECT principal FROM principals UNION SELECT principal FROM acts_as) AS seen
    USING (principal) GROUP BY principal"""
