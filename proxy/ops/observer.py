"""Observer of connections, feeding metrics and the event log.

It translates between `proxy` and `metrics`: it names the counters, and turns the facts of a session
into the fields of its events.
"""

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, cast

from metrics import registry
from metrics.connection import Client, Grant, Origin
from metrics.event_lines import bounded_text
from metrics.event_words import CLOSED, remedy
from metrics.events import EventKind
from metrics.history import Cadence, SessionHistory, Timeline, UnauthenticatedEventLimit
from metrics.period import Usage
from metrics.tally import Tally
from proxy.acl.administration import Administered
from proxy.acl.principals import is_opaque
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from proxy.ops.rollout_service import RolloutService
from proxy.ops.sessions import session_of
from proxy.ops.status.recent import INCIDENT_CLOSES, Incident, Incidents
from proxy.quota.worker_quotas import entry_of_tags
from proxy.rollout import Evidence, kind_of
from proxy.wire.api_versions import ApiVersionsRequest
from proxy.wire.apis import APIS
from sasl.identity import Identity
from sasl.states import Authenticated, Authenticating, Enforcement, Failed

if TYPE_CHECKING:
    from proxy.acl.authorizer import DenialNotice

_ILLEGAL = frozenset(
    {
        CloseReason.ILLEGAL_STATE,
        CloseReason.UNSUPPORTED_API,
        CloseReason.OVERSIZE_FRAME,
        CloseReason.MALFORMED_FRAME,
    }
)
_LOGGED_CLOSES = _ILLEGAL | {
    CloseReason.DRAINED,
    CloseReason.KILLED,
    CloseReason.BLOCKED,
    CloseReason.REVOKED,
}
"""Ends of connections that are logged here; those of brokers and TLS are elsewhere."""
_PROTOCOL_ERRORS = _ILLEGAL | {CloseReason.TLS_HANDSHAKE_FAILED}
"""Ends of connections that have an event even if no SaslHandshake came."""
CANNOT = "uses SaslAuthenticate v0 or raw tokens, so that it cannot re-authenticate"
MAX_OUTCOMES: Final = 200
"""Maximum number of recorded outcomes of one administrative request; the rest is counted."""
NO_MECHANISM = "none"
"""Label of a failure that came before a mechanism was chosen."""


class ObservedListener(Protocol):
    """Listener whose connections are observed: a `proxy.worker.listener.Listener`."""

    @property
    def name(self) -> str:
        """Name of the listener."""

    def enforcement(self) -> Enforcement:
        """Return the mode for clients whose principal is not known yet."""

    def upstream_failed(self, broker: DiscoveredBroker, problem: str, detail: str) -> None:
        """Handle a failed connection to a broker."""

    def login_failed(self, client: Authenticated | None, broker: DiscoveredBroker) -> None:
        """Handle a failed login as a client."""

    def may_have_changed(self, broker: DiscoveredBroker, now: float) -> None:
        """Handle a sign that a broker is another one, or offers other versions."""

    def inform(self, cause: str, text: str, *, detail: str = "") -> None:
        """Log a line, within the rate limit of its cause and detail."""

    def is_automatic(self, identity: Identity) -> bool:
        """Return whether `reauth.enforcement: auto` applies to a client."""


class ObservingWorker(Protocol):
    """Worker that counts and records: a `proxy.worker.worker.Worker`."""

    proxy_id: str
    """Name of the proxy in its events."""
    number: int
    """Number of the worker."""
    timeline: Timeline
    cadence: Cadence
    tally: Tally
    event_limit: UnauthenticatedEventLimit
    incidents: Incidents
    """Incidents for the status page."""
    rollout: RolloutService
    """Evidence for `reauth.enforcement: auto`."""

    def emit(self, line: str) -> None:
        """Write a line to the event log."""


class SessionObserver:
    """Observer that counts and records events of the connections of one listener of one worker."""

    def __init__(self, listener: ObservedListener, worker: ObservingWorker) -> None:
        self._shell, self._worker = listener, worker
        self._listener, self._tally = listener.name, worker.tally

    def opened(self, connection: Connection, now: float) -> None:
        """Record that a client connected."""
        self._tally.count(registry.CONNECTIONS_OPENED, self._listener)
        origin = Origin(
            proxy_id=self._worker.proxy_id,
            worker=self._worker.number,
            listener=self._listener,
            connection_id=connection.connection_id,
            client_host=connection.peer_host,
            connected_at=now,
        )
        client = Client(enforcement=str(self._shell.enforcement()))
        connection.telemetry = SessionHistory(
            origin, client, self._worker.timeline, self._worker.cadence
        )

    def refused(self, reason: CloseReason) -> None:
        """Record that a client was refused before it became a connection."""
        self._tally.count(registry.CONNECTIONS_OPENED, self._listener)
        self._tally.count(registry.CONNECTIONS_CLOSED, self._listener, str(reason))

    def authenticated(self, connection: Connection, session: Authenticated) -> None:
        """Record that an authentication or re-authentication succeeded, or that none is needed.

        Without SASL there is nothing that KIP-368 counts, and no session to record.
        """
        history = self._history_of(connection)
        if session.mechanism is None:
            history.client.principal = session.principal
            return
        labels = (self._listener, session.mechanism)
        renewed = session.reauthentications > 0 and not history.is_expired
        failure = "" if session.lifetime_announced else CANNOT
        self._evidence(connection, session.authenticated_at, renewed=renewed, failure=failure)
        if session.reauthentications:
            self._tally.count(registry.SUCCESSFUL_REAUTHENTICATION, *labels)
            self._tally.observe(registry.REAUTHENTICATION_LATENCY, session.latency, *labels)
        else:
            self._tally.count(registry.SUCCESSFUL_AUTHENTICATION, *labels)
            self._tally.observe(registry.AUTHENTICATION_LATENCY, session.latency, *labels)
            if not session.lifetime_announced:
                self._tally.count(registry.SUCCESSFUL_AUTHENTICATION_NO_REAUTH, *labels)
            if is_opaque(session.principal):
                self._tally.count(registry.OPAQUE_AUTHENTICATION, *labels)
        history.client.enforcement = str(session.enforcement)
        history.client.mechanism = session.mechanism
        history.client.handshake_version = session.handshake_version
        history.client.authenticate_version = session.authenticate_version
        history.client.upstream_principal = connection.upstream_principal
        grant = Grant(
            principal=session.principal,
            session_lifetime_ms=session.session_lifetime_ms,
            announced_lifetime_ms=session.announced_lifetime_ms,
            credential_lifetime_ms=session.credential_lifetime_ms,
            latency=session.latency,
            authenticator=str(session.authenticator),
            groups=session.identity.groups,
        )
        lines = history.authenticated(grant, usage(connection), session.authenticated_at)
        if session.reauthentications or connection.pipe.to_broker is not None:
            self._emit_all(history, lines)
        else:
            history.held_back = tuple(lines)

    def authentication_failed(self, connection: Connection, failed: Failed, now: float) -> None:
        """Record an authentication or re-authentication that failed, or took too long."""
        mechanism, reason = failed.mechanism or NO_MECHANISM, str(failed.reason)
        metric = registry.FAILED_AUTHENTICATION
        if failed.previous is not None:
            metric = registry.FAILED_REAUTHENTICATION
        self._tally.count(metric, self._listener, mechanism)
        self._tally.count(registry.AUTHENTICATION_FAILURES, self._listener, mechanism, reason)
        history = self._history_of(connection)
        if failed.previous is None:
            history.client.mechanism = failed.mechanism
            history.client.handshake_version = failed.handshake_version
        claimed = None if failed.claimed is None else f"User:{failed.claimed}"
        line = history.failed(reason, usage(connection), now, claimed=claimed)
        self._emit_limited(history, [line], now)
        self._evidence(connection, now, failure=f"re-authentication failed: {reason}")
        incident = self._incident(history, EventKind.FAILED, reason, now)
        if claimed is not None:
            incident = incident._replace(claimed_principal=bounded_text(claimed))
        self._worker.incidents.note(incident)
        self._log(incident, failed.detail)

    def expired(
        self, connection: Connection, session: Authenticated, api_key: int, now: float
    ) -> None:
        """Record the use of an expired session: killed if its terms enforce it, else counted."""
        assert session.mechanism is not None  # without SASL a session has no end
        labels = (self._listener, session.mechanism)
        history = self._history_of(connection)
        throttled = _throttled_past(connection, session)
        if session.is_killed(now):
            kind = EventKind.EXPIRED_KILLED
            self._tally.count(registry.EXPIRED_CONNECTIONS_KILLED, *labels)
            line: str | None = history.expired_killed(api_key, usage(connection), now, throttled)
        else:
            kind = EventKind.WOULD_BE_KILLED
            self._tally.count(registry.EXPIRED_CONNECTIONS_WOULD_BE_KILLED, *labels)
            line = history.would_be_killed(api_key, usage(connection), now, throttled)
        if line is not None:
            self._emit_all(history, [line])
            killed = session.enforcement is Enforcement.ENFORCE
            self._evidence(connection, now, failure="used a session past its end", killed=killed)
            incident = self._incident(history, kind, _api_name(api_key), now)
            self._worker.incidents.note(incident)
            if kind is EventKind.EXPIRED_KILLED:
                detail = f"session expired before {incident.what}"
                quota = None
                if throttled is not None:
                    throttle_ms, quota = throttled[0], bounded_text(throttled[1])
                    detail += f" during a throttle of {throttle_ms} ms by {quota!a}"
                helps = remedy(
                    bounded_text(session.principal),
                    quota,
                    enforced=session.enforcement is Enforcement.ENFORCE,
                    by_token=session.credential_lifetime_ms == session.session_lifetime_ms,
                )
                self._log(incident, detail, helps)

    def misrouted(self, connection: Connection, request: ApiVersionsRequest, now: float) -> None:
        """Record that a client reached the wrong broker, and was rejected."""
        self._tally.count(registry.MISROUTED, self._listener)
        history, target = self._history_of(connection), cast(BrokerView, connection.target)
        identity, meant = target.identity, bounded_text(request.cluster_id or "")
        line = history.misrouted(
            meant_cluster_id=meant,
            meant_node_id=request.node_id,
            cluster_id=identity.cluster_id,
            node_id=next(iter(identity.node_ids), None),
            usage=usage(connection),
            now=now,
        )
        self._emit_limited(history, [line], now)
        what = f"node {request.node_id} of {meant}"
        self._worker.incidents.note(self._incident(history, EventKind.MISROUTED, what, now))
        self._shell.may_have_changed(target.broker, now)

    def denied(self, connection: Connection, notice: "DenialNotice", now: float) -> None:
        """Record that ACLs denied a connection's request, or would have."""
        denial, history = notice.denial, self._history_of(connection)
        operation, resource_type = denial.operation.name, denial.resource_type.name
        line = history.denied(
            would_be=denial.would_be,
            operation=operation,
            resource_type=resource_type,
            resource_name=denial.name,
            denials=notice.count,
            usage=usage(connection),
            now=now,
        )
        self._emit_all(history, [line])
        kind = EventKind.WOULD_BE_DENIED if denial.would_be else EventKind.DENIED
        what = bounded_text(denial.name)
        if denial.judged:
            what = f"{operation} on {resource_type} {what}".rstrip()
        self._worker.incidents.note(self._incident(history, kind, what, now, times=notice.count))

    def administered(self, connection: Connection, request: Administered) -> None:
        """Record the outcomes of an administrative request."""
        found, history = request.outcomes(), self._history_of(connection)
        omitted = max(0, len(found) - MAX_OUTCOMES)
        lines = [
            history.administered(
                request.key >> 16, name, code, omitted, usage(connection), request.at
            )
            for name, code in islice(found.items(), MAX_OUTCOMES)
        ]
        self._emit_all(history, lines)

    def reached_broker(self, connection: Connection) -> None:
        """Record that a client's requests go to its broker."""
        history = cast(SessionHistory, connection.telemetry)
        if history.held_back:
            self._emit_all(history, [])

    def logged_in(self, *, again: bool) -> None:
        """Record the proxy's login to a broker; `again`: it renewed its session (KIP-368)."""
        metric = registry.UPSTREAM_SUCCESSFUL_AUTHENTICATION
        if again:
            metric = registry.UPSTREAM_SUCCESSFUL_REAUTHENTICATION
        self._tally.count(metric, self._listener)

    def login_failed(self, connection: Connection, reason: str, *, again: bool) -> None:
        """Record that the proxy could not log in to a broker."""
        metric = registry.UPSTREAM_FAILED_AUTHENTICATION
        if again:
            metric = registry.UPSTREAM_FAILED_REAUTHENTICATION
        self._tally.count(metric, self._listener)
        broker, problem = cast(BrokerView, connection.target).broker, "login failed"
        if connection.rules.presents_clients:
            problem = f"login of client {bounded_text(ascii(connection.principal))} failed"
            self._shell.login_failed(connection.authentication.established, broker)
        self._shell.upstream_failed(broker, problem, reason)

    def connected(self, seconds: float) -> None:
        """Record that a connection to a broker was opened, within `seconds`."""
        self._tally.observe(registry.UPSTREAM_CONNECT_TIME, seconds, self._listener)

    def responded(self, api_key: int, broker: float, proxy: float) -> None:
        """Record the latency of broker and proxy for a request, in seconds; see
        `LatencySampler`."""
        self._tally.observe(registry.BROKER_LATENCY, broker, self._listener, _api_name(api_key))
        self._tally.observe(registry.PROXY_LATENCY, proxy, self._listener)

    def unreachable(self, broker: DiscoveredBroker, problem: str) -> None:
        """Record that a connection to a broker could not be opened."""
        self._tally.count(registry.UPSTREAM_CONNECT_FAILURES, self._listener)
        self._shell.upstream_failed(broker, problem, "")

    def closed(self, connection: Connection, reason: CloseReason, now: float) -> None:
        """Record the end of a connection."""
        why, history = str(reason), self._history_of(connection)
        self._tally.count(registry.CONNECTIONS_CLOSED, self._listener, why)
        self._evidence(connection, now)
        if reason is CloseReason.BROKER_CLOSED:
            self._shell.may_have_changed(cast(BrokerView, connection.target).broker, now)
        broke_protocol = why in _PROTOCOL_ERRORS and history.principal is None
        lines = history.closed(why, usage(connection), now, without_handshake=broke_protocol)
        if not lines:
            return
        self._emit_limited(history, lines, now)
        if why in INCIDENT_CLOSES or reason in _LOGGED_CLOSES:
            incident = self._incident(history, EventKind.CLOSED, why, now)
            if why in INCIDENT_CLOSES:
                self._worker.incidents.note(incident)
            if reason in _LOGGED_CLOSES:
                self._log(incident, CLOSED.get(why))

    def sweep(self, connection: Connection, now: float) -> None:
        """Write the lines that were held back, and the checkpoint or summary that is due; called
        once a minute."""
        history = self._history_of(connection)
        lines = history.sweep(usage(connection), now)
        if lines or history.held_back:
            self._emit_all(history, lines)

    def _evidence(
        self,
        connection: Connection,
        now: float,
        *,
        renewed: bool = False,
        failure: str = "",
        killed: bool = False,
    ) -> None:
        """Record evidence about a client to which `reauth.enforcement: auto` applies."""
        session = session_of(connection.session.state)
        if session is None or not self._shell.is_automatic(session.identity):
            return
        now_ms, used_at = self._worker.timeline.epoch_ms(now), connection.pipe.last_at
        claimed = connection.authentication.claimed
        if claimed[1] is None and used_at is None and not (renewed or failure):
            return  # a Java client names its software only after its login
        longest = 0.0
        if used_at is not None and not session.reauthentications:
            longest = max(0.0, used_at - session.authenticated_at)
        evidence = Evidence(
            seen_ms=now_ms,
            failed=(now_ms, failure) if failure else (0, ""),
            longest_ms=int(longest * 1000),
            renewed=(now_ms,) if renewed else (),
        )
        kind, kills = kind_of(claimed), (now_ms,) if killed else ()
        self._worker.rollout.pending.note(session.principal, kind, evidence, *kills)

    def _emit_all(self, history: SessionHistory, lines: list[str]) -> None:
        """Write lines of an authenticated client, behind those that were held back."""
        held_back, history.held_back = history.held_back, ()
        history.is_logged = None
        for line in (*held_back, *lines):
            self._worker.emit(line)

    def _emit_limited(self, history: SessionHistory, lines: list[str], now: float) -> None:
        """Write lines; those of clients without a login or a broker within the limit."""
        if history.held_back or history.principal is None:
            lines, history.held_back = [*history.held_back, *lines], ()
            if self._worker.event_limit.allows(history, lines, now):
                for line in lines:
                    self._worker.emit(line)
        elif history.is_logged is not False:
            self._emit_all(history, lines)

    def _log(self, incident: Incident, detail: str | None = None, helps: str | None = None) -> None:
        """Log an incident of a client: once a minute for an address, a reason and a claimed
        principal. `helps` are settings that would have prevented it."""
        failed = incident.kind == EventKind.FAILED
        parts = [
            f"{'login failed' if failed else 'closed'}: {detail or incident.what}",
            f"from {incident.client_host}",
        ]
        named = {
            "principal": incident.principal,
            "claims to be": incident.claimed_principal,
            "mechanism": incident.mechanism,
            "client id": incident.client_id,
            "software": incident.client_software,
            "would help": helps,
        }
        parts += [f"{name} {text!a}" for name, text in named.items() if text is not None]
        cause = f"{incident.what} {incident.client_host}"
        name = incident.claimed_principal or incident.principal or ""
        self._shell.inform(cause, ", ".join(parts), detail=name)

    def _incident(
        self, history: SessionHistory, kind: EventKind, what: str, now: float, *, times: int = 1
    ) -> Incident:
        principal, client = history.principal, history.client
        when_ms = self._worker.timeline.epoch_ms(now)
        return Incident(
            kind=str(kind),
            what=what,
            listener=self._listener,
            principal=None if principal is None else bounded_text(principal),
            client_id=None if client.client_id is None else bounded_text(client.client_id),
            client_host=history.client_host,
            mechanism=client.mechanism,
            times=times,
            first_ms=when_ms,
            last_ms=when_ms,
            client_software=_software(client),
        )

    def _history_of(self, connection: Connection) -> SessionHistory:
        """Return the connection's history, updated with the client's latest self-description."""
        history = cast(SessionHistory, connection.telemetry)
        client, authentication = history.client, connection.authentication
        dropped = connection.stages.dropped_versions
        client.client_id = authentication.client_id
        client.client_software_name = authentication.client_software_name
        client.client_software_version = authentication.client_software_version
        if len(client.dropped_versions) < len(dropped):
            client.dropped_versions = [
                (APIS[key >> 16].name, key & 0xFFFF) for key in sorted(dropped)
            ]
        state = connection.session.state
        if isinstance(state, Authenticating) and state.previous is None:
            client.mechanism = state.mechanism
            client.handshake_version = state.handshake_version
        return history


def usage(connection: Connection) -> Usage:
    """Return the usage of the connection so far."""
    pipe = connection.pipe
    return Usage(pipe.requests, pipe.bytes, connection.responses.bytes, pipe.last_at)


def _software(client: Client) -> str | None:
    parts = (client.client_software_name, client.client_software_version)
    return " ".join(bounded_text(part) for part in parts if part) or None


def _api_name(api_key: int) -> str:
    api = APIS.get(api_key)
    return f"API {api_key}" if api is None else api.name


def _throttled_past(connection: Connection, session: Authenticated) -> tuple[int, str] | None:
    """Return the throttle time, ms, and the quota of a client that was not read at the end of its
    session, so that it could not re-authenticate in time; None if it was read."""
    throttling, end = connection.throttling, session.deadline
    if throttling is None or end is None or not throttling.used.enforced:
        return None
    until, held = throttling.used.held_until, throttling.used.held_by
    if held is None or not until - held.throttle_time_ms / 1_000 <= end <= until:
        return None
    named = {name: value for name, value in held.tags.items() if value}
    return held.throttle_time_ms, f"{held.quota_type.value} of {entry_of_tags(named)}"
