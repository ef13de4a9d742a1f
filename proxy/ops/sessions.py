"""Sessions of a worker: listing and killing.

Thousands of sessions are never processed in one callback of the event loop: a request about all of
them is an iterator, each step of which processes some sessions, and the event loop runs between
steps.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic, time
from typing import Any, Final, Protocol

from metrics import registry
from metrics.event_lines import bounded_text
from metrics.snapshot import Histogram, Snapshot
from proxy import config
from proxy.connection.blocks import Blocks
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.errors import ProxyError
from proxy.ops.status.recent import Incidents, RecentCounts
from proxy.ops.status.session_facts import (
    EVERY_SESSION,
    Condition,
    Selector,
    SessionFacts,
    SessionState,
)
from sasl.states import Authenticated, Authenticating, Failed, State

SLICE: Final = 50
"""Number of sessions that are listed in one step, which takes about half a millisecond."""
KILL_SLICE: Final = 10
"""Number of sessions that are killed in one step, each with its events and two sockets."""
SURVEY_SLICE: Final = 50
"""Number of sessions that are counted in one step for a scrape: a tenth of a millisecond."""


class SessionClient(Protocol):
    """Interface to a client, a `proxy.net.relay.ClientSide`."""

    @property
    def connection(self) -> Connection | None:
        """The client's connection; None if it was refused."""

    def call(self, what: Callable[[Connection, float], None]) -> None:
        """Call `what` with the connection and the time, and carry out its commands."""


class SessionListener(Protocol):
    """Interface to `proxy.worker.listener.Listener`."""

    settings: config.Listener
    """The listener's current settings."""
    max_connections: int
    """The listener's `max.connections`, of all workers together."""
    terms_changed_at: float
    """When the terms of sessions last changed, in monotonic seconds."""

    @property
    def clients(self) -> Collection[SessionClient]:
        """Clients that are connected."""


class Sessions:
    """Sessions of one worker."""

    def __init__(
        self,
        worker: int,
        listeners: Callable[[], Sequence[SessionListener]],
        not_ready: Callable[[], list[str]],
        conditions: Callable[[], list[Condition]],
        recent: Callable[[], RecentCounts],
    ) -> None:
        """Answer for worker `worker`; `not_ready` returns why it cannot serve clients now."""
        self.incidents = Incidents()
        self._worker = worker
        self._listeners = listeners
        self._not_ready = not_ready
        self._conditions = conditions
        self._recent = recent

    def answer(
        self, kind: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any] | Iterator[list[SessionFacts]]:
        """Answer a request of `proxy.ops.worker_queries`. Raises ProxyError for any other."""
        match kind:
            case "status":
                return self.status()
            case "sessions":
                return self.facts(Selector.from_arguments(arguments))
            case "kill" | "drain":
                selector = Selector.from_arguments(arguments)
                if selector == EVERY_SESSION:
                    raise ProxyError(f"name the sessions to {kind}")
                return self.end(
                    selector, finishing(CloseReason.KILLED) if kind == "kill" else Connection.drain
                )
        raise ProxyError(f"unknown request: {kind}")

    def status(self) -> dict[str, Any]:
        """Return all but the sessions, for `proxy.ops.status.snapshot.WorkerFacts`."""
        return {
            "reasons": self._not_ready(),
            "listeners": [self._listener(one) for one in self._listeners()],
            "conditions": self._conditions(),
            "recent": self._recent(),
            "incidents": self.incidents.recent(),
            "principals": self.incidents.of_principals(),
        }

    def _listener(self, listener: SessionListener) -> dict[str, Any]:
        settings = listener.settings
        return {
            "name": settings.name,
            "address": str(settings.address),
            "routing": settings.routing.value,
            "enforcement": settings.enforcement_in_effect().value,
            "overrides": len(settings.reauth_overrides),
            "max_reauth_ms": settings.connections_max_reauth_ms,
            "enforces_token_expiry": settings.reauth_enforce_token_expiry,
            "mechanisms": list(settings.sasl_enabled_mechanisms)
            or (["the brokers'"] if settings.relays_logins else []),
            "connections": len(listener.clients),
            "max_connections": listener.max_connections,
            "terms_changed_s": _seconds(monotonic() - listener.terms_changed_at),
        }

    def facts(self, selector: Selector) -> Iterator[list[SessionFacts]]:
        """Yield the facts of the selected sessions, slice by slice."""
        blocks = selector.blocks(monotonic())
        for clients in self._slices(SLICE, self._listeners()):
            now = monotonic()
            yield [
                facts_of(connection, self._worker, now)
                for client in clients
                if (connection := _selected(client, selector, blocks)) is not None
            ]

    def end(
        self, selector: Selector, how: Callable[[Connection, float], None]
    ) -> Iterator[list[SessionFacts]]:
        """End the selected sessions, slice by slice, and yield their facts."""
        blocks = selector.blocks(monotonic())
        for clients in self._slices(KILL_SLICE, self._listeners()):
            ended = []
            for client in clients:
                connection = _selected(client, selector, blocks)
                if connection is not None:
                    ended.append(facts_of(connection, self._worker, monotonic()))
                    client.call(how)
            yield ended

    def survey(self, snapshot: Snapshot) -> Iterator[None]:
        """Add throttled connections and remaining lifetimes, slice by slice, for a scrape."""
        for listener in self._listeners():
            throttled = 0
            left: dict[str, Histogram] = {}
            for clients in self._slices(SURVEY_SLICE, [listener]):
                throttled += _survey(clients, left, monotonic())
                yield
            name = listener.settings.name
            snapshot.gauge(registry.THROTTLED_CONNECTIONS, throttled, name)
            for mechanism, histogram in left.items():
                snapshot.take(registry.SESSION_LIFETIME_LEFT, histogram, name, mechanism)

    @staticmethod
    def _slices(size: int, listeners: Iterable[SessionListener]) -> Iterator[list[SessionClient]]:
        clients = iter([client for listener in listeners for client in listener.clients])
        while some := list(islice(clients, size)):
            yield some


def _survey(clients: Iterable[SessionClient], left: dict[str, Histogram], now: float) -> int:
    """Add remaining lifetimes by mechanism to `left`; return how many clients are throttled."""
    throttled = 0
    for client in clients:
        connection = client.connection
        if connection is None or connection.closed:
            continue
        throttled += connection.is_throttled
        session = connection.session.state
        if isinstance(session, Authenticated) and session.deadline is not None:
            assert session.mechanism is not None  # without SASL a session has no end
            histogram = left.get(session.mechanism)
            if histogram is None:
                histogram = Histogram.empty(registry.SESSION_LIFETIME_LEFT)
                left[session.mechanism] = histogram
            histogram.observe(registry.SESSION_LIFETIME_LEFT, max(0.0, session.deadline - now))
    return throttled


def _selected(
    client: SessionClient, selector: Selector, blocks: Blocks | None
) -> Connection | None:
    connection = client.connection
    if connection is None or connection.closed:
        return None
    session = session_of(connection.session.state)
    principal = None if session is None else session.principal
    chosen = selector.chooses(
        connection.connection_id, principal, connection.authentication.client_id
    )
    if chosen and blocks is not None:
        login, now = connection.session_login(), monotonic()
        chosen = login is not None and blocks.find(login, now, time()) is not None
    return connection if chosen else None


def session_of(state: State) -> Authenticated | None:
    """Return the session that is valid, or being renewed; None if not authenticated."""
    if isinstance(state, Authenticated):
        return state
    return state.previous if isinstance(state, Authenticating | Failed) else None


def facts_of(connection: Connection, worker: int, now: float) -> SessionFacts:
    """Return the facts of a connection at `now`, in monotonic seconds."""
    state = connection.session.state
    session = session_of(state)
    throttling, pipe = connection.throttling, connection.pipe
    mechanism = state.mechanism if isinstance(state, Authenticating | Failed) else None
    return SessionFacts(
        connection_id=connection.connection_id,
        worker=worker,
        listener=connection.rules.listener,
        client_host=connection.peer_host,
        state=_stage(state),
        connected_s=_seconds(now - connection.connected_at),
        principal=_text(session.principal) if session else None,
        upstream_principal=_text(connection.upstream_principal),
        mechanism=session.mechanism if session else mechanism,
        enforcement=session.enforcement if session else None,
        client_id=_text(connection.authentication.client_id),
        client_software_name=_text(connection.authentication.client_software_name),
        client_software_version=_text(connection.authentication.client_software_version),
        lifetime_announced=session.lifetime_announced if session and session.mechanism else None,
        reauthentications=session.reauthentications if session else 0,
        session_lifetime_ms=session.session_lifetime_ms if session else None,
        authenticated_s=_seconds(now - session.authenticated_at) if session else None,
        lifetime_left_s=_seconds(session.deadline - now)
        if session is not None and session.deadline is not None
        else None,
        requests=pipe.requests,
        request_bytes=pipe.bytes,
        response_bytes=connection.responses.bytes,
        idle_s=None if pipe.last_at is None else _seconds(now - pipe.last_at),
        throttle_left_s=_seconds(throttling.used.held_until - now)
        if throttling is not None and throttling.used.held_until
        else None,
    )


def _stage(state: State) -> SessionState:
    match state:
        case Authenticated():
            return SessionState.AUTHENTICATED
        case Authenticating(previous=None):
            return SessionState.AUTHENTICATING
        case Authenticating():
            return SessionState.REAUTHENTICATING
        case Failed():
            return SessionState.CLOSING
        case _:
            return SessionState.CONNECTED


def _text(text: str | None) -> str | None:
    return None if text is None else bounded_text(text)


def _seconds(seconds: float) -> float:
    return round(seconds, 1)
