"""One connection: what follows from its client's, its broker's and its session's doings.

No sockets, no clock. Laws:

- Feed `client_bytes` and `broker_bytes` with what was read, then carry out `commands`. Bytes that
  could not be dealt with yet are in `requests.rest` or `responses.rest`: put them before the next
  read.
- A connection waits (`_Hold`) or ends in one place, here; how frames are cut is `Requests`' and
  `Responses`' business.
- What ends a connection lets the requests before it be answered, as Kafka does, which takes a
  connection's requests one by one.
"""

from collections.abc import Callable
from enum import IntFlag, auto
from math import inf

from proxy.commands import (
    Close,
    CloseReason,
    Command,
    ConnectToBroker,
    Consult,
    PauseBroker,
    PauseClient,
    ResumeBroker,
    ResumeClient,
    SeekKeys,
)
from proxy.errors import BrokerFault, ClientFault
from proxy.frames import SIZE
from proxy.requests import MOST_IN_FLIGHT, Requests, answered_here
from proxy.responses import Responses
from proxy.rules import Observer, Rules, Target
from proxy.wire import api_versions
from proxy.wire.api_versions import ClientSoftware
from proxy.wire.request import (
    MOST_CHARACTERS_KEPT,
    Request,
    parse_request,
    response_frame,
)
from sasl.messages import (
    API_VERSIONS,
    ILLEGAL_SASL_STATE,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE,
    SASL_HANDSHAKE_VERSIONS,
)
from sasl.session import (
    Authenticated,
    Authenticating,
    AwaitHandshake,
    Enforcement,
    Failed,
    Outcome,
    Session,
)

_OF_SASL = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})


class _Hold(IntFlag):
    """Why a client is not being read."""

    NO_BROKER = auto()
    WAITING = auto()
    """For keys, or for the store."""
    BROKER_FULL = auto()
    CLIENT_FULL = auto()
    """It does not read its answers."""
    IN_FLIGHT = auto()
    CLOSING = auto()


def _refusal(request: Request) -> bytes | None:
    """The answer to a request in the middle of an authentication; None: closed without one.

    Kafka answers each API in its own format. Here only ApiVersions is, which clients do send:
    a stranger shall not reach the encoders of sixty APIs.
    """
    if request.api_key != API_VERSIONS:
        return None
    content = api_versions.refusal(request.api_version, request.correlation_id, ILLEGAL_SASL_STATE)
    return SIZE.pack(len(content)) + content


class Connection:
    """The decisions of one connection. See the laws at the head of this module."""

    __slots__ = (
        "_client_full",
        "_draining",
        "_end_is_near",
        "_hold",
        "_observer",
        "_waiting",
        "active_at",
        "client_id",
        "client_software_name",
        "client_software_version",
        "closed",
        "commands",
        "connected_at",
        "connection_id",
        "peer_host",
        "requests",
        "responses",
        "rules",
        "session",
        "target",
        "telemetry",
    )

    def __init__(
        self,
        *,
        connection_id: str,
        peer_host: str,
        rules: Rules,
        target: Target,
        observer: Observer,
        to_client: Callable[[bytes | memoryview], None],
        now: float,
    ) -> None:
        self.connection_id = connection_id
        self.peer_host = peer_host
        self.rules = rules
        self.target = target
        self.session = Session(rules.mechanisms, rules.terms)
        self.requests = Requests(self)
        self.responses = Responses(to_client)
        self.commands: list[Command] = []
        self.connected_at = self.active_at = now
        self.client_id: str | None = None
        self.client_software_name: str | None = None
        self.client_software_version: str | None = None
        self.closed = False
        self.telemetry: object = None
        """Whatever the observer keeps per connection."""
        self._observer = observer
        self._waiting: Request | None = None
        self._hold = _Hold(0)
        self._client_full = False
        self._draining = False
        self._end_is_near: Close | None = None

    # The client's side

    def client_bytes(self, view: memoryview, end: int, now: float) -> None:
        """Take `view[:end]`: `requests.rest` as it was left, and what was read behind it."""
        self.active_at = now
        self.requests.client_bytes(view, end, now)
        if len(self.responses.inflight) > MOST_IN_FLIGHT:
            self._hold_client(_Hold.IN_FLIGHT)

    @property
    def held(self) -> bool:
        """Whether no further request is to be taken for now."""
        return bool(self._hold) or self._draining or self.closed

    def connect(self) -> None:
        """A request is to be forwarded, and there is no broker yet."""
        self._hold_client(_Hold.NO_BROKER)
        self.commands.append(ConnectToBroker())

    def outlives_expiry(self, api_key: int, now: float) -> bool:
        """Whether a request may be made on an expired session: to re-authenticate (KIP-368)."""
        session = self.session.state
        assert isinstance(session, Authenticated)
        if api_key == SASL_HANDSHAKE and self.session.may_begin_reauthentication(now):
            return True
        self.requests.expires_at = inf  # one report per session
        self._observer.expired(self, session, api_key, now)
        if session.enforcement is Enforcement.ENFORCE:
            self.end(CloseReason.EXPIRED, now)
            return False
        return True

    # Requests that the proxy answers itself

    def answer_whole(self, content: bytes, now: float) -> None:
        """Answer a frame that is not forwarded: SASL, ApiVersions, and what the store knows."""
        state = self.session.state
        if isinstance(state, Authenticating) and state.raw:
            self._follow(self.session.raw_token(content, now), None, now)
            return
        try:
            request = parse_request(content)
            if request.client_id is not None:
                self.client_id = request.client_id
            if self.requests.relaying and request.api_key not in _OF_SASL:
                self.requests.count += 1
                self.requests.bytes += SIZE.size + len(content)
                self.requests.last_at = now
            self._answer(request, now)
        except ClientFault:
            self.end(CloseReason.MALFORMED_FRAME, now)

    def _answer(self, request: Request, now: float) -> None:
        key, version, state = request.api_key, request.api_version, self.session.state
        if key == SASL_HANDSHAKE and version in SASL_HANDSHAKE_VERSIONS:
            self._follow(self.session.handshake(version, request.body, now), request, now)
        elif isinstance(state, AwaitHandshake):
            if key == API_VERSIONS and not state.api_versions_answered:
                self._answer_api_versions(request, now)
            else:
                self.end(CloseReason.ILLEGAL_STATE, now)
        elif key == SASL_AUTHENTICATE and version in SASL_AUTHENTICATE_VERSIONS:
            self._follow(self.session.authenticate(version, request.body, now), request, now)
        elif isinstance(state, Authenticating):
            self.session.illegal_request()
            self._fail(_refusal(request), now)
        elif key == API_VERSIONS:
            self._answer_api_versions(request, now)
        elif isinstance(state, Authenticated) and answered_here(key, version):
            self._waiting = request
            self._hold_client(_Hold.WAITING)
            self.commands.append(Consult(request=request, principal=state.principal))
        else:
            self.end(CloseReason.UNSUPPORTED_API, now)

    def _answer_api_versions(self, request: Request, now: float) -> None:
        version, correlation_id = request.api_version, request.correlation_id
        if not 0 <= version <= api_versions.HIGHEST_VERSION:
            content = api_versions.unsupported_version(correlation_id)
        elif self.target.api_versions is None:
            self.end(CloseReason.BROKER_UNREACHABLE, now)
            return
        else:
            software = api_versions.parse_request(version, request.body)
            if version >= api_versions.FIRST_FLEXIBLE and not software.valid:
                content = api_versions.refusal(
                    version, correlation_id, api_versions.INVALID_REQUEST
                )
            else:
                self._know_software(software)
                self.session.api_versions_answered()
                content = self.target.api_versions.response(version, correlation_id)
        self._send_answer(SIZE.pack(len(content)) + content)

    def _know_software(self, software: ClientSoftware) -> None:
        if software.name:
            self.client_software_name = software.name[:MOST_CHARACTERS_KEPT]
            self.client_software_version = software.version[:MOST_CHARACTERS_KEPT]

    def consulted(self, body: bytes, now: float) -> None:
        """The body of the answer to a `Consult` is there."""
        assert self._waiting is not None
        request, self._waiting = self._waiting, None
        self._send_answer(response_frame(request, body))
        self._release(_Hold.WAITING, now)

    def misunderstood(self, now: float) -> None:
        """The request of a `Consult` does not parse."""
        self._waiting = None
        self.end(CloseReason.MALFORMED_FRAME, now)

    def _send_answer(self, frame: bytes) -> None:
        self.responses.answer(frame)
        if self._client_full:
            self._hold_client(_Hold.CLIENT_FULL)
        if len(self.responses.inflight) > MOST_IN_FLIGHT:
            self._hold_client(_Hold.IN_FLIGHT)

    # Authentication

    def _follow(self, outcome: Outcome, request: Request | None, now: float) -> None:
        """Carry out what the session says, and take notice of where it stands now."""
        if outcome.wants_keys:
            self._waiting = request
            self._hold_client(_Hold.WAITING)
            self.commands.append(SeekKeys())
            return
        frame = None
        if outcome.reply is not None:
            frame = (
                SIZE.pack(len(outcome.reply)) + outcome.reply
                if request is None
                else response_frame(request, outcome.reply)
            )
        state = self.session.state
        if isinstance(state, Failed):
            self._fail(frame, now)
            return
        if frame is not None:
            self._send_answer(frame)
        was_relaying = self.requests.relaying
        self.requests.relaying = isinstance(state, Authenticated)
        if isinstance(state, Authenticated) and not was_relaying:
            self.requests.expires_at = inf if state.deadline is None else state.deadline
            self._observer.authenticated(self, state, now)

    def keys_sought(self, now: float) -> None:
        """The search for newer keys is over, whatever it found."""
        request, self._waiting = self._waiting, None
        self._follow(self.session.keys_sought(now), request, now)
        self._release(_Hold.WAITING, now)

    def _fail(self, farewell: bytes | None, now: float) -> None:
        failed = self.session.state
        assert isinstance(failed, Failed)
        self._observer.authentication_failed(self, failed, now)
        self.end(
            CloseReason.AUTHENTICATION_FAILED,
            now,
            farewell=farewell,
            delay=self.rules.failed_authentication_delay,
        )

    # The broker's side

    def broker_connected(self, to_broker: Callable[[memoryview], None], now: float) -> None:
        """The upstream connection is there; send it what waited."""
        self.requests.to_broker = to_broker
        self._release(_Hold.NO_BROKER, now)

    def broker_bytes(self, view: memoryview, end: int, now: float) -> None:
        """Take `view[:end]`: `responses.rest` as it was left, and what was read behind it."""
        self.active_at = now
        try:
            self.responses.broker_bytes(view, end)
        except BrokerFault:
            self._finish(CloseReason.BROKER_FAULT, now)
            return
        if self._hold & _Hold.IN_FLIGHT and len(self.responses.inflight) <= MOST_IN_FLIGHT // 2:
            self._release(_Hold.IN_FLIGHT, now)
        if self._end_is_near is not None or self._draining:
            self._end_when_settled(now)

    # Backpressure

    def broker_full(self, full: bool, now: float) -> None:
        """The broker does not take more bytes for now, or takes them again."""
        if full:
            self._hold_client(_Hold.BROKER_FULL)
        else:
            self._release(_Hold.BROKER_FULL, now)

    def client_full(self, full: bool, now: float) -> None:
        """The client does not take more bytes for now, or takes them again."""
        self._client_full = full
        if self.requests.to_broker is not None:
            self.commands.append(PauseBroker() if full else ResumeBroker())
        if not full:
            self._release(_Hold.CLIENT_FULL, now)

    def _hold_client(self, reason: _Hold) -> None:
        if not self._hold:
            self.commands.append(PauseClient())
        self._hold |= reason

    def _release(self, reason: _Hold, now: float) -> None:
        if not self._hold & reason:
            return
        self._hold &= ~reason
        if self._hold or self.closed:
            return
        self.commands.append(ResumeClient())
        if self.requests.rest:
            rest = memoryview(self.requests.rest)
            self.client_bytes(rest, len(rest), now)

    # The end

    def next_deadline(self) -> float | None:
        """When `timer` wants to be called, at the latest; None: the connection is over."""
        if self.closed:
            return None
        idle = self.active_at + self.rules.max_idle
        if self._authenticated_once:
            return idle
        return min(idle, self.connected_at + self.rules.authentication_timeout)

    def timer(self, now: float) -> None:
        """Close what has been silent for too long, or does not finish its authentication."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return
        if self._authenticated_once:
            self._finish(CloseReason.IDLE, now)
            return
        if isinstance(self.session.state, Authenticating):
            self.session.abandon()
            assert isinstance(self.session.state, Failed)
            self._observer.authentication_failed(self, self.session.state, now)
        self._finish(CloseReason.AUTHENTICATION_TIMEOUT, now)

    @property
    def _authenticated_once(self) -> bool:
        state = self.session.state
        return isinstance(state, Authenticated) or (
            isinstance(state, Authenticating) and state.previous is not None
        )

    def drain(self, now: float) -> None:
        """Take no further request; close when those under way are answered."""
        self._draining = True
        self._end_when_settled(now)

    def client_closed(self, now: float) -> None:
        """The client is gone."""
        self._finish(CloseReason.CLIENT_CLOSED, now)

    def broker_closed(self, now: float) -> None:
        """The broker is gone: so is the client, rather than told half an answer."""
        self._finish(CloseReason.BROKER_CLOSED, now)

    def broker_unreachable(self, now: float) -> None:
        """The upstream connection could not be opened."""
        self._finish(CloseReason.BROKER_UNREACHABLE, now)

    def cut_short(self, now: float) -> None:
        """The time for draining is over."""
        self._finish(CloseReason.DRAINED, now)

    def broke(self, now: float) -> None:
        """The proxy itself made a mistake with this connection: fail closed."""
        self._finish(CloseReason.INTERNAL_ERROR, now)

    def end(
        self,
        reason: CloseReason,
        now: float,
        *,
        farewell: bytes | None = None,
        delay: float = 0.0,
    ) -> None:
        """Take no more requests; close once those before this one are answered."""
        if self._end_is_near is None:
            self._end_is_near = Close(reason=reason, delay=delay, farewell=farewell)
            self._hold_client(_Hold.CLOSING)
            self._end_when_settled(now)

    def _end_when_settled(self, now: float) -> None:
        if not self.responses.settled or self.requests.mid_frame:
            return
        if self._end_is_near is not None:
            self._finish(self._end_is_near.reason, now, self._end_is_near)
        elif self._draining:
            self._finish(CloseReason.DRAINED, now)

    def _finish(self, reason: CloseReason, now: float, close: Close | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        self.requests.rest = self.responses.rest = b""
        self.commands.append(close or Close(reason=reason))
        self._observer.closed(self, reason, now)
