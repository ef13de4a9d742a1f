"""Published tables: the columns of the report's Parquet files, with their types and meanings.

The queries use epoch milliseconds, days since 1970 and counts of flags. The published tables have
types that other tools support, and name their run. DuckDB writes all tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from metrics.readiness.acl_use import ACL_FIELDS
from metrics.readiness.usage import CLIENT_KEY, KEPT_UNSURE, is_added


class ColumnType(StrEnum):
    """Type of a column."""

    TEXT = "VARCHAR"
    TEXTS = "VARCHAR[]"
    COUNT = "BIGINT"
    NUMBER = "DOUBLE"
    FLAG = "BOOLEAN"
    TIME = "TIMESTAMP WITH TIME ZONE"
    """An instant to the millisecond; Parquet's `isAdjustedToUTC` is true."""
    DAY = "DATE"
    """A day in UTC."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a published table."""

    type: ColumnType
    name: str
    meaning: str
    source: str = ""
    """SQL expression for the value; empty for the column of the same name."""


class PublishedTable:
    """Published table, from the relation of the same name."""

    def __init__(self, rows: str, *columns: Column, grows_with_connections: bool = False) -> None:
        """`rows`: subject of a row, as a noun phrase.

        `grows_with_connections`: its rows are many, or of past days; such a table is left out of
        the history.
        """
        self.rows = rows
        self.columns = columns
        self.grows_with_connections = grows_with_connections


_text = partial(Column, ColumnType.TEXT)
_texts = partial(Column, ColumnType.TEXTS)
_count = partial(Column, ColumnType.COUNT)
_number = partial(Column, ColumnType.NUMBER)
_flag = partial(Column, ColumnType.FLAG)
_time = partial(Column, ColumnType.TIME)
_day = partial(Column, ColumnType.DAY)

RUN: Final = (
    _text("run_id", "Run of the report; the same in all tables, in the JSON and on the page."),
    _time("as_of", "The present time for the report.", "as_of_ms"),
)
"""The last columns of every table."""

CLIENT_HASH: Final = f"md5(CAST(to_json([{', '.join(CLIENT_KEY)}]) AS VARCHAR))"
"""SQL expression for the key of a client in the published tables."""

_CLIENT: Final = (
    _text(
        "client_key", "Key of the client: the same in all tables and runs, for joins.", CLIENT_HASH
    ),
    _text("principal", "Principal, such as `User:alice`. Null: never logged in."),
    _text("client_id", "Client id. Null: it named none."),
    _text("client_software_name", "Library (KIP-511). Null: too old to say."),
    _text("client_software_version", "Version of the library. Null: too old to say."),
    _text("mechanism", "SASL mechanism. Null: the client chose no mechanism."),
)
_VERDICTS: Final = (
    ("ready", "that are ready."),
    ("unproven", "that are capable and unproven."),
    ("not_capable", "that are not capable."),
    ("failing", "that fail."),
    ("unknown", "of which it is not known, or that never logged in."),
)
_LISTENERS: Final = _texts("listeners", "Listeners that it was seen on.")
_CREDENTIAL: Final = _count(
    "credential_lifetime_ms", "Shortest lifetime of a token at login. Null: none had an expiry."
)
_SESSION_NUMBERS: Final = (
    _count("announced_ms", "Longest lifetime that was announced. Null: never authenticated."),
    _count("used_ms", "Longest time from an authentication to the last use of its session."),
    _count("longest_gap_ms", "Longest time from one authentication to the next. Null: one only."),
    _count(
        "outlived_credential_ms",
        "Longest time that a connection was used past the end of its token; negative: it ended"
        " before. Null: no token had an expiry.",
    ),
)

_BY_PRINCIPAL: Final = (
    _text("verdict", "The worst verdict of its clients."),
    _flag("enforceable", "True if all its clients are ready."),
    _count("clients", "Clients."),
    *(_count(name, f"Clients {words}") for name, words in _VERDICTS),
    _count("connections", "Connections."),
    _LISTENERS,
    _time("last_seen_at", "Last event.", "last_seen_ms"),
)

_RESOURCE: Final = (
    _text("resource_type", "Type of the resource."),
    _text("resource_name", "Name of the resource."),
)

TABLES: Final[Mapping[str, PublishedTable]] = {
    "clients": PublishedTable(
        "a client: a principal, client id, library, version and mechanism",
        *_CLIENT,
        _text("verdict", "What it is: see [Verdicts](readiness.md#verdicts)."),
        _day("failed_on", "Last day with a failure. Null: none."),
        _day("ready_since", "Day from which it re-authenticated after its failures."),
        _count("connections", "Connections."),
        _count("open_connections", "Connections of which no end was recorded."),
        _count(
            "left_out_connections",
            f"Connections beyond {KEPT_UNSURE:,} that are open, last for days, lack events or"
            " may have been used past their end: with any, the client is not ready.",
        ),
        _count("not_capable_connections", "Connections without SaslAuthenticate v1."),
        _count("raw_token_connections", "Connections with raw tokens (SaslHandshake v0)."),
        _count("authenticate_version", "Lowest version of SaslAuthenticate. Null: none."),
        *_SESSION_NUMBERS,
        _count("past_end_ms", "Longest time that a session was used past its end. Null: never."),
        _count("throttled_ms", "Throttle time beyond the end of a session. Null: none."),
        _text("throttled_by", "The quota that throttled it so. Null: none."),
        _count("hasty_ms", "Lifetime up to which it re-authenticates too often. Null: none."),
        _count("ready_from_ms", "Longer lifetime from which it is ready. Null: any, or none."),
        _CREDENTIAL,
        _count("reauthentications", "Successful re-authentications."),
        _count("killed", "Connections that were killed."),
        _count("would_be_kills", "Uses of expired sessions that `enforce` would have killed."),
        _count("reauth_failures", "Connections with a failed re-authentication."),
        _count("reauth_refusals", "Those of them that were refused as illegal (error 34)."),
        _count("login_failures", "Connections whose first login failed."),
        _count("requests", "Requests."),
        _texts("hosts", "Up to five of its addresses."),
        _count("host_count", "Number of its addresses."),
        _LISTENERS,
        _time("first_seen_at", "First event.", "first_seen_ms"),
        _time("last_seen_at", "Last event.", "last_seen_ms"),
    ),
    "principals": PublishedTable(
        "a principal",
        _text("principal", "Principal, such as `User:alice`."),
        *_BY_PRINCIPAL,
    ),
    "groups": PublishedTable(
        "a group of clients, by the last login of each of their connections",
        _text("principal", "Group as a principal, such as `Group:analysts`."),
        _count("principals", "Principals of its members."),
        *_BY_PRINCIPAL,
    ),
    "client_groups": PublishedTable(
        "a client and a group that it was a member of",
        *_CLIENT,
        _text("group", "Group as a principal, such as `Group:analysts`."),
    ),
    "sessions": PublishedTable(
        "a connection, except those that are [added up](readiness.md#what-it-costs)",
        _text("connection_id", "Connection."),
        *_CLIENT,
        _text("client_host", "Address of the client."),
        _text("proxy_id", "Proxy that it came through."),
        _text("listener", "Listener of the proxy."),
        _text("standing", "What it shows of its client: a [verdict](readiness.md#verdicts)."),
        _text("enforcement", "`observe`, `probe` or `enforce`, at its last event."),
        _count("handshake_version", "Version of SaslHandshake. Null: none came."),
        _count("authenticate_version", "Version of SaslAuthenticate. Null: raw tokens."),
        _count("authentications", "Successful authentications."),
        _count("reauthentications", "Successful re-authentications."),
        *_SESSION_NUMBERS,
        _CREDENTIAL,
        _count("would_be_kills", "Uses of an expired session that `enforce` would have killed."),
        _count("past_end_ms", "Longest time of use past its announced end. Null: never."),
        _text("throttled_by", "Quota that throttled it beyond its end. Null: none."),
        _flag("killed", "True if it was killed.", "killed > 0"),
        _flag("reauth_failed", "True if a re-authentication failed.", "reauth_failures > 0"),
        _flag("login_failed", "True if the first login failed.", "login_failures > 0"),
        _flag("closed", "True if its end was recorded.", "closed > 0"),
        _text("ended_by", "What ended its last session. Null: it is open."),
        _count("ended_since_auth_ms", "Age of its last session at its end. Null: it is open."),
        _count("requests", "Requests."),
        _time("connected_at", "When the client connected.", "opened_ms"),
        _time("authenticated_at", "First authentication. Null: none.", "authenticated_ms"),
        _time("last_request_at", "Last request. Null: none.", "last_request_ms"),
        _time("first_event_at", "First event.", "first_event_ms"),
        _time("last_event_at", "Last event.", "last_event_ms"),
        grows_with_connections=True,
    ),
    "what_if": PublishedTable(
        "a lifetime",
        _count("lifetime_ms", "The lifetime."),
        _count("connections", "Connections with a principal."),
        _count("killed_connections", "Connections that it would kill."),
        _count("killed_clients", "Their clients."),
        _count("killed_principals", "Their principals."),
        _count("unproven_connections", "Connections used longer by clients that speak v1."),
        _count("unproven_clients", "Their clients."),
        _count("cut_short_connections", "Connections that ended before they were as old."),
        _count("cut_short_clients", "Their clients."),
        _count("late_median_ms", "Median time of use past the lifetime. Null: none is killed."),
        _count("late_max_ms", "Longest time of use past the lifetime. Null: none is killed."),
        _count("kills_least", "Kills in the time covered, at least."),
        _count("kills_most", "Kills in the time covered, at most, if no event is missing."),
        _number("kills_per_day_least", "Kills a day, at least. Null: under an hour covered."),
        _number(
            "kills_per_day_most",
            "Kills a day, at most, if no event is missing. Null: under an hour covered.",
        ),
        _count("observed_ms", "Time that is covered by events."),
    ),
    "kills_by_client": PublishedTable(
        "a client and lifetime that would disconnect it",
        *_CLIENT,
        _count("lifetime_ms", "The lifetime."),
        _count("connections", "Connections that it would kill."),
        _count("kills_least", "Kills in the time covered, at least."),
        _count("kills_most", "Kills in the time covered, at most, if no event is missing."),
    ),
    "by_day": PublishedTable(
        "a day, with the clients seen on it as they were known at its end",
        _day("day", "Day."),
        _count("clients", "Clients."),
        *(_count(name, f"Clients {words}") for name, words in _VERDICTS),
        _number("ready_share", "Share of the clients that are ready, from 0 to 1."),
    ),
    "rollout": PublishedTable(
        "a principal and day, with its stage under `reauth.enforcement: auto` at the end of it",
        _day("day", "Day."),
        _text("principal", "Principal."),
        _text("stage", "Stage: see [Rollout](readiness.md#rollout)."),
        _count("clients", "Kinds of clients that were seen in the last 30 days."),
        _text("client_id", "Client id of the one farthest from ready, `*` for what changes."),
        _text("client_software_name", "Its library. Null: too old to say."),
        _text("client_software_version", "Version of the library. Null: too old to say."),
        _count("reauthentications", "Its re-authentications in time since the last failure."),
        _count("evidence_ms", "Time from the first to the last of them."),
        grows_with_connections=True,
    ),
    "storms": PublishedTable(
        "a minute and mechanism with authentications",
        _time("minute", "Begin of the minute.", "minute_ms"),
        _text("mechanism", "SASL mechanism."),
        _count("authentications", "Authentications."),
        _count("reauthentications", "Re-authentications among them."),
        _count("busy_us", "Sum of their latencies. Null: only summary rows are left of it."),
        _count("slowest_us", "Longest of their latencies. Null: as above."),
    ),
    "latencies": PublishedTable(
        "a mechanism and kind of authentication",
        _text("mechanism", "SASL mechanism."),
        _text("kind", "`authenticated` or `reauthenticated`."),
        _count("count", "Authentications."),
        *(
            _number(f"{name}_us", f"{words} of the latency, within 1 %.")
            for name, words in (
                ("p50", "Median"),
                ("p95", "95th percentile"),
                ("p99", "99th percentile"),
                ("max", "Maximum"),
            )
        ),
    ),
    "session_lengths": PublishedTable(
        "a class of lengths, and standing",
        _count("up_to_ms", "End of the class: a minute, or twice that of the one before."),
        _text("standing", "Whether the connections show that their clients re-authenticate."),
        _count("connections", "Connections whose longest session was used so long."),
    ),
    "short_tokens": PublishedTable(
        "a client whose tokens are too short for it",
        *_CLIENT,
        _text("verdict", "What it is: see [Verdicts](readiness.md#verdicts)."),
        _CREDENTIAL,
        _count("outlived_ms", "Longest time of use past the end of a token. Null: no such use."),
        _count("used_ms", "Longest time from an authentication to the last use."),
        _count("connections", "Connections."),
    ),
    "failures": PublishedTable(
        "a mechanism and reason of failed authentications, first ones and others apart",
        _text("mechanism", "SASL mechanism. Null: the client chose no mechanism."),
        _text("failure_reason", "Reason, one of those in [operations.md](operations.md)."),
        _flag("reauthentication", "True for re-authentications."),
        _count("count", "Failures."),
    ),
    "denials": PublishedTable(
        "a principal, resource and operation that ACLs denied, or would have",
        _text("principal", "Principal."),
        *_RESOURCE,
        _text("operation", "Operation."),
        _count("denied", "Times that it was denied."),
        _count("would_be_denied", "Times that `enforce` would have denied it."),
        _texts("hosts", "Up to five addresses that it came from."),
        _time("first_at", "First denial.", "first_ms"),
        _time("last_at", "Last denial.", "last_ms"),
    ),
    "used_by_day": PublishedTable(
        "a day, client and use of a resource (`events.usage`)",
        _day("day", "Day."),
        _text("principal", "Principal. Null: there were too many uses to name them."),
        _text("client_id", "Client id. Null: it named none."),
        _text("client_host", "Address of the client."),
        *_RESOURCE,
        _text("operation", "Operation."),
        _count("requests", "Requests."),
        _time("last_used_at", "Last request.", "last_ms"),
        grows_with_connections=True,
    ),
    "needed_acls": PublishedTable(
        "a principal and resource that it used, with the ACLs that this needs",
        _text("principal", "Principal."),
        *_RESOURCE,
        _texts("operations", "Operations to allow; they include the others that it used."),
    ),
    "acl_use": PublishedTable(
        "an ACL of `--acls` that allows something",
        *(_text(name, f"Field of the ACL: {name}.") for name in ACL_FIELDS[:-1]),
        _count("requests", "Requests that it allows. 0: nothing used it."),
        _time("last_used_at", "Last of them. Null: none.", "last_ms"),
        _texts("used_operations", "Operations that were used."),
        _count("resources", "Resources that were used."),
        _texts("names", "Up to five of them."),
        _flag("is_wider", "True if it is used, and for all operations or several names."),
    ),
    "authorizer_verdicts": PublishedTable(
        "a principal with recorded uses or denials",
        _text("principal", "Principal."),
        _text(
            "verdict",
            "`denied` if `enforce` would deny what `audit` lets pass, `ready` if it would not,"
            " `unproven` without recorded uses.",
        ),
        _count("requests", "Uses."),
        _count("would_be_denied", "Would-be denials that no ACL of `--acls` allows now."),
        _time("last_denied_at", "Last of them. Null: none.", "last_ms"),
    ),
    "unseen_principals": PublishedTable(
        "a principal of `--acls` or `--users` that was never seen",
        _text("principal", "Principal."),
        _flag("has_acl", "True if an ACL names it."),
        _flag("has_credential", "True if it is one of the users."),
    ),
    "dropped_versions": PublishedTable(
        "a client, API and version of those that Kafka 4.0 dropped",
        *_CLIENT,
        _text("api", "Name of the API."),
        _count("version", "Version of the API."),
        _count("connections", "Connections that used it."),
        _LISTENERS,
        _time("first_at", "First event that shows it.", "first_ms"),
        _time("last_at", "Last event that shows it.", "last_ms"),
    ),
}


def published(name: str, run_id: str, as_of_ms: int) -> str:
    """Return the query for a published table from the relation of the same name."""
    columns = (f'{_expression(each)} AS "{each.name}"' for each in TABLES[name].columns)
    source = f"(SELECT * FROM sessions WHERE NOT {is_added()})"
    if name != "sessions":
        source = name
    run = f"'{run_id}' AS run_id, {_time_of(str(as_of_ms))} AS as_of"
    return f"SELECT {', '.join(columns)}, {run} FROM {source} AS r"


def as_text(name: str, query: str) -> str:
    """Return the query for a published table as text, in which no cell is a formula.

    Clients choose names, and spreadsheets run text that begins with one of these characters.
    """
    texts = {ColumnType.TEXT: '"{0}"', ColumnType.TEXTS: "array_to_string(\"{0}\", '; ')"}
    named = ((each.name, texts[each.type]) for each in TABLES[name].columns if each.type in texts)
    safe = ", ".join(
        f"""regexp_replace({text.format(column)}, '^[-=+@\\t\\r]', '''\\0') AS "{column}\""""
        for column, text in named
    )
    return f"SELECT * REPLACE ({safe}) FROM ({query})" if safe else query


def comments(name: str) -> dict[str, str]:
    """Return the meaning of each column of a published table."""
    return {each.name: each.meaning for each in (*TABLES[name].columns, *RUN)}


def _expression(column: Column) -> str:
    source = column.source or f'"{column.name}"'
    match column.type:
        case ColumnType.TIME:
            return _time_of(source)
        case ColumnType.DAY:
            return f"DATE '1970-01-01' + CAST({source} AS INT)"
        case _:
            return f"CAST({source} AS {column.type})"


def _time_of(epoch_ms: str) -> str:
    return f"(make_timestamp(CAST({epoch_ms} AS BIGINT) * 1000) AT TIME ZONE 'UTC')"
