"""Schema of the session event log: every field of a line, defined once.

`EVENT_SCHEMA` is derived from `SessionEvent`, into which readers parse a line. `metrics.history`
writes lines field by field, and all of its tests parse them as a `SessionEvent`.
"""

import types
from dataclasses import dataclass, field, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from metrics.events import SCHEMA_VERSION, EventKind, IntervalEnd

ALL_KINDS = frozenset(EventKind)


def _on(*kinds: EventKind) -> Any:
    """Declare a field that only events of these kinds have, and that may be null."""
    return field(default=None, metadata={"kinds": frozenset(kinds)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBucket:
    """Bucket of a histogram of latencies. Each bound is `LATENCY_GAMMA` times the one before."""

    bucket: int
    """Number of the bucket: it ends at gamma^bucket microseconds."""
    count: int
    """Re-authentications in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthInterval:
    """Time from one successful authentication of a connection to its renewal or end."""

    number: int
    """Number of the authentication that began it; the login is 1."""
    authenticated_ms: int
    """When it began, epoch ms."""
    session_lifetime_ms: int
    """The lifetime of this session; 0: none (not set, or a password in `observe`)."""
    announced_lifetime_ms: int
    """The lifetime announced to the client; 0: none, or it could not be announced."""
    requests: int
    """Requests since it began, in all rows: not only in this period."""
    last_request_since_auth_ms: int | None = None
    """Age of the session at its last request so far. A lifetime L would have killed this connection
    exactly if this is above L. Null: not used since it began."""
    ended_since_auth_ms: int | None = None
    """Age at its end. Null: it continues."""
    ended_by: IntervalEnd | None = None
    """reauthenticated, failed, expired-killed or closed. Null: it continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """Version of an API."""

    api: str
    """Name of the API, e.g. `Produce`."""
    version: int
    """Its version."""


_AUTHENTICATIONS = (EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED, EventKind.NO_REAUTH)
_EXPIRIES = (EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED)
_DENIALS = (EventKind.DENIED, EventKind.WOULD_BE_DENIED)
_USES = (*_DENIALS, EventKind.USED)
_DECISIONS = (EventKind.PROMOTED, EventKind.DEMOTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """Line of the log; each field has a description."""

    schema_version: int = SCHEMA_VERSION
    """Version of this schema."""
    kind: EventKind
    """Kind of the event."""
    timestamp_ms: int
    """When, epoch ms by the clock of the proxy."""
    proxy_id: str
    """The host name of the proxy's machine or pod."""
    worker: int
    """Number of the worker process, from 0."""
    connection_id: str
    """Unique across proxies, workers and restarts."""
    sequence: int
    """Number of this event within its connection, from 0. A number that comes twice is a duplicate;
    one that is missing was dropped."""
    log_sequence: int | None = None
    """Number of this event among all of its worker since its start, from 0. One that is missing was
    dropped or removed. Null: by an older version of the proxy."""
    chain: str | None = None
    """SHA-256 of the chain of the line before it in the file and of this line without it
    (`events.hash.chain`). Null: not chained."""
    connected_ms: int
    """When the connection was accepted, epoch ms."""
    listener: str
    """Name of the listener."""
    enforcement: str
    """observe, probe or enforce, as it applies to this connection."""
    client_host: str
    """The client's address, without its port."""
    client_id: str | None = None
    """client.id of the last request that had one."""
    client_software_name: str | None = None
    """From ApiVersions v3 and later (KIP-511)."""
    client_software_version: str | None = None
    """From ApiVersions v3 and later (KIP-511)."""
    mechanism: str | None = None
    """SASL mechanism that the client chose. Null: none yet."""
    principal: str | None = None
    """Authenticated principal, e.g. `User:alice`. Null: none yet; a mere claim is no principal.
    Where there is no SASL, authentications is 0 beside it, and only denials are recorded, and
    connections with dropped_versions."""
    dropped_versions: tuple[ApiVersion, ...] | None = None
    """The API versions used so far that Kafka 4.0 dropped (KIP-896). Null: none."""
    handshake_version: int | None = None
    """Version of SaslHandshake. Null: none came."""
    authenticate_version: int | None = None
    """Version of SaslAuthenticate. Null: raw tokens (handshake v0), or none came."""
    authenticator: str | None = None
    """The side that verified the client's credentials: `proxy`, or `broker` (`sasl.termination`).
    Null: not authenticated, or by an older version of the proxy, which did it itself."""
    upstream_principal: str | None = None
    """Principal that brokers see because of `upstream.identity`, e.g. `User:alice`. Null: they see
    the proxy's, or, with `sasl.termination: broker`, the client's; or not authenticated."""
    authentications: int
    """Successful authentications of this connection so far."""
    authenticated_ms: int | None = None
    """When the last successful authentication was, epoch ms. Null: none yet."""
    since_auth_ms: int | None = None
    """Time since the last successful authentication before this event (a failed one does not reset
    it); on `reauthenticated` the age that the previous session reached; 0 on `authenticated`. Null:
    none yet."""
    session_lifetime_ms: int | None = None
    """The lifetime of the session; 0: none. On `reauthenticated` that of the new session. Null: not
    authenticated."""
    announced_lifetime_ms: int | None = None
    """The session_lifetime_ms announced to the client; 0: none, or, with SaslAuthenticate v0 and
    raw tokens, it could not be announced. Null: not authenticated."""
    credential_lifetime_ms: int | None = None
    """What remained of the token when it was accepted; 0: it had expired, within the clock skew.
    Null: the credential does not expire (SCRAM), or not authenticated."""
    auth_latency_us: int | None = _on(*_AUTHENTICATIONS)
    """From the arrival of the SaslHandshake to success, microseconds; KIP-368 counts the
    re-authentications alone."""
    groups: tuple[str, ...] | None = _on(*_AUTHENTICATIONS)
    """The client's groups as principals, e.g. `Group:analysts`, which its token or `groups.file`
    names. Null: none."""
    groups_joined: tuple[str, ...] | None = _on(EventKind.REAUTHENTICATED)
    """Groups that the previous session did not have. Null: none."""
    groups_left: tuple[str, ...] | None = _on(EventKind.REAUTHENTICATED)
    """Groups that the previous session had alone. Null: none."""
    requests: int
    """Requests, without those of SASL, since the previous event of this connection that is no
    summary; in a summary since the previous summary. The sum over either is the total."""
    expired_requests: int | None = None
    """Number of those requests that used the session past its end and were forwarded (`probe`).
    Null: not authenticated, or by an older version of the proxy, which did not count them: the days
    on which an expired session was used are not all known then."""
    request_bytes: int
    """Bytes of those requests."""
    response_bytes: int
    """Bytes of the responses in the same time."""
    last_request_ms: int | None = None
    """When the last request came, without those of SASL, epoch ms. Null: none yet."""
    failure_reason: str | None = _on(EventKind.FAILED)
    """Why the authentication failed, e.g. bad_credentials, expired."""
    claimed_principal: str | None = _on(EventKind.FAILED)
    """The principal that a client claimed and did not prove: anybody may claim any, and a token may
    name any. Null: not known."""
    api_key: int | None = _on(*_EXPIRIES, EventKind.ADMINISTERED)
    """The request that met the expired session, or was administrative."""
    throttled_ms: int | None = _on(*_EXPIRIES)
    """Throttle time that lasted beyond the end of the session, so that the client could not
    re-authenticate in time. Null: it was not throttled then."""
    throttled_by: str | None = _on(*_EXPIRIES)
    """The quota that throttled it so, e.g. `producer_byte_rate of user=alice`."""
    operation: str | None = _on(*_USES)
    """Operation that was denied or used, e.g. `READ`."""
    resource_type: str | None = _on(*_USES)
    """To what, e.g. `TOPIC`; `UNKNOWN`, as is the operation: to requests of a version that ACLs
    cannot judge."""
    resource_name: str | None = _on(*_USES, EventKind.ADMINISTERED)
    """Its name; for a request that cannot be judged, its API and version, e.g. `Produce v2`. On
    `administered` an ACL has all its fields here. Null: the request as a whole."""
    error_code: int | None = _on(EventKind.ADMINISTERED)
    """Kafka's error code in the response, 0 without an error. Null: the connection ended before the
    response, so the outcome is unknown."""
    resources_omitted: int | None = _on(EventKind.ADMINISTERED)
    """Number of other resources of the request, which have no record."""
    denials: int | None = _on(*_DENIALS)
    """Number of denials since the last event about the same principal, operation and resource."""
    decided_by: str | None = _on(*_DECISIONS)
    """`auto`, or the operator who decided."""
    decision_reason: str | None = _on(*_DECISIONS)
    """Why, as `rollout status` shows it."""
    meant_cluster_id: str | None = _on(EventKind.MISROUTED)
    """The cluster that the client meant."""
    meant_node_id: int | None = _on(EventKind.MISROUTED)
    """The broker that the client meant; -1: it did not say."""
    cluster_id: str | None = _on(EventKind.MISROUTED)
    """The cluster that it reached. Null: unknown."""
    node_id: int | None = _on(EventKind.MISROUTED)
    """The broker that it reached. Null: unknown."""
    close_reason: str | None = _on(EventKind.CLOSED, EventKind.SUMMARY)
    """Why the connection ended, e.g. client_closed, expired."""
    period_start_ms: int | None = _on(EventKind.SUMMARY, EventKind.USED)
    """When the row's period began, epoch ms; it ends at timestamp_ms. On `used`, when the first of
    the requests came."""
    final: bool | None = _on(EventKind.SUMMARY)
    """True: the connection has ended, no further row follows."""
    reauthentications: int | None = _on(EventKind.SUMMARY)
    """Successful re-authentications in the period."""
    would_be_kills: int | None = _on(EventKind.SUMMARY)
    """Sessions of the period that were used past their end in `probe`."""
    reauth_latencies: tuple[LatencyBucket, ...] | None = _on(EventKind.SUMMARY)
    """Latencies of the period's re-authentications, as a histogram."""
    intervals: tuple[AuthInterval, ...] | None = _on(EventKind.SUMMARY)
    """The intervals that the period touches, oldest first, as many as the limit allows. An interval
    that spans rows is in each of them: the row with the latest timestamp_ms is the valid one."""
    intervals_omitted: int | None = _on(EventKind.SUMMARY)
    """Intervals left out for lack of space, the least used first."""
    intervals_omitted_used_ms: int | None = _on(EventKind.SUMMARY)
    """Largest last_request_since_auth_ms of those left out; the row is exact for any lifetime from
    here on. Null: no interval was left out, or no such interval was used."""
    active_from_ms: int | None = _on(EventKind.SUMMARY)
    """Begin of the minute that bit 0 of active_minutes stands for, epoch ms."""
    active_minutes: int | None = _on(EventKind.SUMMARY)
    """Bit i (0 to 62) is set if a request came in the minute that begins at active_from_ms + 60000
    * i; bit 62 stands for all later minutes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventField:
    """Field of a line, as a reader declares it."""

    name: str
    type: str
    """Type: `long`, `string`, `boolean`, or an array in Spark's DDL, e.g. `array<string>` or
    `array<struct<bucket:bigint,count:bigint>>`."""
    nullable: bool
    kinds: frozenset[EventKind]
    """Kinds of events that have the field."""


def event_fields(row: type) -> tuple[EventField, ...]:
    """Return the fields of one of this module's dataclasses."""
    hints = get_type_hints(row)
    return tuple(
        EventField(
            name=column.name,
            type=_type_name(hints[column.name], nested=False),
            nullable=_is_optional(hints[column.name]),
            kinds=column.metadata.get("kinds", ALL_KINDS),
        )
        for column in fields(row)
    )


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _type_name(hint: Any, *, nested: bool) -> str:
    if _is_optional(hint):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        row = get_args(hint)[0]
        if row is str:
            return "array<string>"
        hints = get_type_hints(row)
        members = (
            f"{column.name}:{_type_name(hints[column.name], nested=True)}" for column in fields(row)
        )
        return f"array<struct<{','.join(members)}>>"
    if hint is bool:
        return "boolean"
    if hint is int:
        return "bigint" if nested else "long"
    if issubclass(hint, str):
        return "string"
    raise AssertionError(f"no type of the log: {hint}")


EVENT_SCHEMA = event_fields(SessionEvent)
