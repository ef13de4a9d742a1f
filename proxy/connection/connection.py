"""Connection: the decisions of one client connection, without sockets or clock.

Laws:

- Feed `client_bytes` and `broker_bytes` with what was read, then carry out `commands`. Bytes that
  could not be dealt with yet are kept, and come before the next read.
- The verdicts of the stages are carried out here, and nowhere else does a connection wait
  (`PauseReason`) or end (`proxy.connection.life`). Whatever else is in this package holds no
  connection.
- What ends a connection lets the requests before it be answered, as Kafka does, which takes a
  connection's requests one by one.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from proxy.connection.authentication import Authentication
from proxy.connection.commands import (
    AwaitBroker,
    AwaitMemory,
    AwaitTurn,
    Close,
    CloseReason,
    CloseSideConnection,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    CountUnread,
    DeriveKeys,
    GetIdentity,
    MoveToSideConnection,
    OpenSideConnection,
    PauseBroker,
    PauseClient,
    ResumeBroker,
    ResumeClient,
    RunLongTask,
    WakeAt,
)
from proxy.connection.frames import SIZE, Bytes
from proxy.connection.inflight import ASKED_ID, InFlight, Question
from proxy.connection.interfaces import ConnectionRules, Observer, UpstreamBroker
from proxy.connection.life import BACK_PRESSURE, Life, PauseReason, waits_for
from proxy.connection.login_relay import (
    ABSENT_SECONDS,
    CONFIRM_SECONDS,
    CONFIRMATION,
    LoginRelay,
    confirmation_error,
)
from proxy.connection.long_requests import changed_in_steps
from proxy.connection.long_work import IN_MEMORY, LongWork
from proxy.connection.pipe import RequestPipe
from proxy.connection.request_time import Stopwatch
from proxy.connection.requests import Requests
from proxy.connection.responses import Responses
from proxy.connection.stages import Stages
from proxy.connection.throttling import Throttling
from proxy.connection.upstream_login import UpstreamLogin
from proxy.connection.verdicts import (
    Answer,
    Ask,
    ClientNamed,
    Confirm,
    Expired,
    Forward,
    Misrouted,
    NeedMemory,
    Relay,
    SessionChanged,
    Verdict,
    Wait,
    Work,
)
from proxy.errors import BrokerFault
from proxy.scheduling.steps import LongTask, Steps
from proxy.wire import metadata
from proxy.wire.api_versions import REBOOTSTRAP_REQUIRED
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.wire.identification import Query, metadata_version
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.identity import Identity
from sasl.login import ClientExchange, Derive, LoggedIn, LoginError, Send, Step
from sasl.mechanism import FailureReason
from sasl.relayed import RelayedSession
from sasl.session import Session
from sasl.states import Authenticated, Authenticating, Channel, Enforcement, Failed

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization  # with 16 MiB of schemas

_REQUEST_WAITS: Final = (
    PauseReason.NO_BROKER
    | PauseReason.WAITING
    | PauseReason.NO_MEMORY
    | PauseReason.AUTHORIZING
    | PauseReason.LOGIN
    | PauseReason.TURN
)
"""Reasons for which a client is held before a request that will be answered: its time is charged
then."""
HELD_SECONDS: Final = 3.0
"""Seconds for which a client is held while its broker is down. Clients then reconnect with their
usual back-off: closed at once, they take each answer before that as a success."""
HELD_BYTES: Final = 65_536
"""Bytes of a held client from which it is not read any more: more than most clients send before
they have an answer."""
_DIAL_WAITS: Final = PauseReason.NO_BROKER | PauseReason.LOGIN | PauseReason.BROKER_DOWN
_STAGE_WAITS: Final = PauseReason.WAITING | PauseReason.AUTHORIZING

_CLIENTS_OWN_HOLDS: Final = PauseReason.CLIENT_FULL | PauseReason.IN_FLIGHT | PauseReason.THROTTLED
"""Reasons for which a client is held that it can bring about, and make last."""

Schedule = Callable[[Callable[["Connection", float], None]], None]
"""Function of the shell that calls a function with the connection and the time, at once or in a
later iteration of the event loop."""


class Connection:
    """The decisions of one connection. See the laws at the head of this module."""

    __slots__ = (
        "_end",
        "_judged_as",
        "active_at",
        "authentication",
        "client_is_full",
        "closed",
        "commands",
        "connected_at",
        "connection_id",
        "held_until",
        "holds",
        "inflight",
        "life",
        "login_relay",
        "long_work",
        "observer",
        "peer_host",
        "pipe",
        "requests",
        "responses",
        "rules",
        "session",
        "stages",
        "target",
        "telemetry",
        "throttling",
        "upstream_login",
    )

    def __init__(
        self,
        *,
        connection_id: str,
        peer_host: str,
        rules: ConnectionRules,
        target: UpstreamBroker,
        observer: "Observer[Connection]",
        to_client: Callable[[Bytes], None],
        now: float,
        wanted: int | None = None,
    ) -> None:
        """`wanted` is `LoginRelay.wanted`."""
        self.connection_id = connection_id
        self.peer_host = peer_host
        self.rules, self.target = rules, target
        self.session: Session | RelayedSession = (
            Session(rules.mechanisms, rules.terms)
            if rules.relays is None
            else RelayedSession(rules.relays, rules.terms, peer_host)
        )
        self.inflight = InFlight()
        self.responses = Responses(self.inflight, to_client)
        self.pipe = RequestPipe(self.inflight, rules.request_max_bytes, rules.latency)
        self.authentication = Authentication(self.session, self.pipe, target, rules.rights)
        self.stages = Stages(self.authentication, self.pipe, target, rules, self._passes_unjudged)
        self.long_work = LongWork()
        self.requests = Requests(self.stages, self.pipe, self.long_work, target, rules)
        self.throttling: Throttling | None = None
        """Applies quotas; None: the client has none."""
        self.upstream_login = UpstreamLogin(self.inflight) if rules.logs_in else None
        """The proxy's own, to the broker; None: the broker wants none."""
        self.login_relay = None if rules.relays is None else LoginRelay(wanted)
        """The client's login on its way to the broker; None: the proxy ends logins itself."""
        self.commands: list[Command] = []
        self.connected_at = self.active_at = now
        self.life: int = Life.SERVING
        """State in the table of `proxy.connection.life`."""
        self.closed = False
        self.held_until = 0.0
        """Time until which it waits for a broker that is down, in monotonic seconds; 0: the broker
        was never down."""
        self.telemetry: object = None
        """Whatever the observer keeps per connection."""
        self.observer = observer
        self.holds = 0
        """Reasons for which the client is not read: bits of `PauseReason`."""
        self.client_is_full = False
        """True if the client does not read its answers, and so the broker is not read."""
        self._judged_as: tuple[str, ...] = ()
        """Principals by whose rights requests are judged; empty: nobody is authenticated yet."""
        self._end: Close | None = None
        """The close that was decided; None: none is."""

    # What is known of the client

    @property
    def client_id(self) -> str | None:
        """Client id, as far as the proxy read it; None: unknown."""
        return self.authentication.client_id

    @property
    def client_software_name(self) -> str | None:
        """Name of the client's library (KIP-511); None: unknown."""
        return self.authentication.client_software_name

    @property
    def client_software_version(self) -> str | None:
        """Version of the client's library (KIP-511); None: unknown."""
        return self.authentication.client_software_version

    @property
    def dropped_versions(self) -> frozenset[int]:
        """API keys and versions that the client used and Kafka 4.0 dropped, by `route_key`."""
        return self.stages.dropped_versions

    @property
    def principal(self) -> str | None:
        """The authenticated principal, also during a re-authentication; None: nobody yet."""
        identity = self.authentication.identity
        return None if identity is None else identity.principal

    @property
    def authorization(self) -> "RequestAuthorization | None":
        """Stage that judges requests by ACLs; None: the client may do everything."""
        return self.stages.authorization

    # What the client sends

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the client."""
        self.active_at = now
        if self.throttling is not None and self.throttling.stopwatch is not None:
            self._take_timed(self.throttling.stopwatch, data, now)
        elif not self.requests.flow(data, now):
            self._take(data, now)

    def _take_timed(self, stopwatch: Stopwatch, data: Bytes, now: float) -> None:
        started = stopwatch.start()
        if not self.requests.flow(data, now):
            self._take(data, now)
        if started:
            self._charge_time(stopwatch, now)

    def _take(self, data: Bytes, now: float) -> None:
        """Deal with what a first look left of a read, and carry out what comes of it."""
        requests = self.requests
        data = requests.behind_rest(data)
        while (verdict := requests.next(data, now)) is not None:
            self._carry_out(verdict, now)
            self._limit(now)
        requests.finish(data, now, closed=self.closed)
        self._limit(now)
        self._release_memory()
        if self.holds & PauseReason.BROKER_DOWN and not self.closed:
            self._keep_bytes(now)
        if requests.held and not self.pipe.left:
            self.end_if_settled(now)

    def _resume(self, now: float) -> None:
        """Take what could not be dealt with before."""
        throttling = self.throttling
        stopwatch = None if throttling is None else throttling.stopwatch
        started = stopwatch is not None and stopwatch.start()
        if self.requests.rest:
            self.requests.position = 0
            self._take(b"", now)
        else:
            self.pipe.waiting_since = inf
        if started and stopwatch is not None:
            self._charge_time(stopwatch, now)

    def _limit(self, now: float) -> None:
        """Hold the client if it is owed much, has used much, or had its turn."""
        if self.closed or not self.requests.is_limited(now):
            return
        if self.inflight.owes_much:
            self.hold(PauseReason.IN_FLIGHT)
        if self.long_work.turn_is_over:
            self.long_work.begin_turn()
            self.hold(PauseReason.TURN)
            self.commands.append(AwaitTurn())
        throttling = self.throttling
        if throttling is not None and not self.pipe.left and throttling.holds(now):
            self._throttle(throttling)

    # Verdicts

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        if isinstance(verdict, Forward):
            self.requests.forward_whole(verdict, now)
            if verdict.close is not None:
                self._close(verdict.close, now)
        elif isinstance(verdict, Answer):
            self._answer(verdict, now)
        elif isinstance(verdict, Wait):
            self.hold(verdict.reason)
            if verdict.command is not None:
                self.commands.append(verdict.command)
        elif isinstance(verdict, Close):
            self._close(verdict, now)
        elif isinstance(verdict, SessionChanged):
            self._session_changed(verdict, now)
        else:
            self._carry_out_rarely(verdict, now)

    def _carry_out_rarely(self, verdict: Verdict, now: float) -> None:
        if isinstance(verdict, Work):
            self.hold(PauseReason.AUTHORIZING)
            self._do(verdict.steps, verdict.size, self._go_on)
        elif isinstance(verdict, Ask):
            self.hold(PauseReason.WAITING)
            self._ask(Question(METADATA, verdict.api_version, self._go_on), verdict.frame)
        elif isinstance(verdict, NeedMemory):
            self._reserve_memory(verdict.size, now)
        elif isinstance(verdict, Expired):
            self._expired(verdict.api_key, now)
        elif isinstance(verdict, ClientNamed):
            self._meter()
        elif isinstance(verdict, Relay):
            self._relay_login(verdict, now)
        elif isinstance(verdict, Confirm):
            self._confirm_login(now)
        elif isinstance(verdict, Misrouted):
            self.observer.misrouted(self, verdict.request, now)
            self._answer(verdict.answer, now)

    def _go_on(self, result: Any, now: float) -> None:
        """Have a request judged on that waited for `result`."""
        if self.closed:
            return
        waits = 0
        try:
            verdict = self.stages.resume(result, now)
        except BrokerFault:
            self.finish(CloseReason.BROKER_FAULT, now)
            return
        if isinstance(verdict, Work):
            waits = PauseReason.AUTHORIZING
        elif isinstance(verdict, Ask):
            waits = PauseReason.WAITING
        self._carry_out(verdict, now)
        self._limit(now)
        self.release(_STAGE_WAITS & ~waits, now)

    def _answer(self, answer: Answer, now: float) -> None:
        """Answer the client, when its turn comes; it is charged for that."""
        throttling = self.throttling
        self._send(answer.frame if throttling is None else throttling.charged(answer, now))
        self._limit(now)

    def _send(self, frame: bytes) -> None:
        self.responses.answer(frame)
        if self.client_is_full:
            self.hold(PauseReason.CLIENT_FULL)
        if self.inflight.owes_much:
            self.hold(PauseReason.IN_FLIGHT)

    def _ask(self, question: Question, frame: bytes, correlation_id: int = ASKED_ID) -> None:
        """Ask the broker something whose answer the proxy takes, behind what was forwarded."""
        self.pipe.write(frame)
        self.inflight.ask(question, correlation_id)

    # The session

    def admit(self, identity: Identity, now: float) -> None:
        """Know a client without SASL: by what its listener is, or by its certificate."""
        assert isinstance(self.session, Session)
        session = self.session.admit(identity, now)
        self.requests.relaying = self.requests.nameless = True
        self._authenticated(session, now)

    def _session_changed(self, change: SessionChanged, now: float) -> None:
        """Answer a request of SASL, and take notice of where the session stands now."""
        state = self.session.state
        if isinstance(state, Failed):
            self.observer.authentication_failed(self, state, now)
            reason = CloseReason.AUTHENTICATION_FAILED
            delay = 0.0 if change.is_relayed else self.rules.failed_authentication_delay
            self._close(Close(reason=reason, delay=delay, farewell=change.frame), now)
            if self.login_relay is not None and self.login_relay.to_side is not None:
                self._close_side(self.login_relay)
            return
        if change.frame is not None:
            self._send(change.frame)
        if isinstance(self.session, RelayedSession):
            self.requests.is_unconfirmed = self.session.is_unconfirmed
            if change.confirms:
                self._confirm_login(now)
        was_relaying = self.requests.relaying
        may_relay = self.login_relay is None or self.login_relay.wanted is None
        self.requests.relaying = isinstance(state, Authenticated) and may_relay
        if isinstance(state, Authenticated) and not was_relaying:
            self._authenticated(state, now)

    def _authenticated(self, session: Authenticated, now: float) -> None:
        """An authentication or re-authentication succeeded."""
        end = inf if session.deadline is None else session.deadline
        self._expire_at(-inf if session.began_expired else end)
        if not session.reauthentications or self.login_relay is not None:
            self.commands.append(CountAuthenticated())
        if session.identity.principals != self._judged_as:
            self._judge_by(session.identity)  # a newer token may bring other groups
        self._meter()
        self.observer.authenticated(self, session)
        if self.login_relay is not None and self.login_relay.to_side is not None:
            self._end_side(self.login_relay, now)
        if self.login_relay is not None and self.login_relay.wanted is not None:
            self._learn_brokers(self.login_relay, now)

    def _expire_at(self, when: float) -> None:
        self.stages.expire_at(when)
        if self.stages.unmeasured_end < inf:
            self.commands.append(WakeAt(when))

    def session_ended(self, unread: int, now: float) -> None:
        """Take the number of bytes that arrived before the end of the session, and were not read
        yet. They are on time, unless it is on purpose that they wait."""
        if now >= self.stages.unmeasured_end:
            waits = self.holds & BACK_PRESSURE
            self.stages.on_time = 0 if waits else len(self.requests.rest) + unread

    def _expired(self, api_key: int, now: float) -> None:
        """An expired session is used."""
        session = self.session.state
        assert isinstance(session, Authenticated)
        if session.began_expired:
            self.end(CloseReason.EXPIRED_AT_LOGIN, now)
            return
        self.observer.expired(self, session, api_key, now)
        if session.is_killed(now):
            enforced = session.enforcement is Enforcement.ENFORCE
            self.end(CloseReason.EXPIRED if enforced else CloseReason.TOKEN_EXPIRED, now)
        elif session.killed_after is not None:
            self._expire_at(session.killed_after)

    # A login that is relayed

    def _relay_login(self, relay: Relay, now: float) -> None:
        """Send a message of a login to the broker, whose answer `_relay_answered` takes."""
        login = self.login_relay
        assert login is not None
        self.hold(PauseReason.LOGIN)
        if relay.channel is Channel.SIDE:
            if login.to_side is not None:
                login.ask_aside(relay.frame, relay.correlation_id)
                self._await_answer(now)
                return
            login.unsent = relay
            session = self.session.state
            assert isinstance(session, Authenticated)
            self._identify(login.identify(self.target))
            until = now if session.deadline is None else max(now, session.deadline)
            login.ends_at = max(until, now + self.rules.authentication_timeout)
            self.commands += (WakeAt(login.ends_at), OpenSideConnection(until))
        elif self.pipe.to_broker is None:
            login.unsent = relay
            self.commands.append(ConnectToBroker())
        else:
            self._relay_here(relay)
            self._await_answer(now)

    def _await_answer(self, now: float) -> None:
        """Hold the client until the broker has answered, unless there may be no answer."""
        assert isinstance(self.session, RelayedSession)
        if not self.session.is_answered:
            self.requests.is_unconfirmed = True
            self._relay_goes_on(now)

    def _relay_here(self, relay: Relay) -> None:
        raw = relay.correlation_id is None
        question = Question(relay.api_key, relay.api_version, self._relay_answered, is_raw=raw)
        self._ask(question, relay.frame, relay.correlation_id or 0)

    def _relay_answered(self, content: bytes, now: float) -> None:
        """The broker answered a message of a login. Raises BrokerFault."""
        if isinstance(self.session.state, Failed):
            return  # it is not wanted any more
        self._carry_out(self.authentication.relayed(content, now), now)
        self._relay_goes_on(now)

    def _relay_goes_on(self, now: float) -> None:
        login = self.login_relay
        assert login is not None
        if not (login.is_moving or login.is_confirming):
            login.waits_since = now
            self.release(PauseReason.LOGIN, now)

    def silence(self, now: float) -> float:
        """Return for how many seconds a relayed login has waited for its client; 0 while it waits
        for the broker or the proxy.

        A login that waits for answers to the client's earlier requests waits for the client, which
        may have asked the broker to answer late (a Fetch's `max_wait_ms`).
        """
        login, owed = self.login_relay, self.inflight.next
        if login is None:
            return 0.0
        waits_behind_requests = (
            login.is_confirming
            and login.is_identifying
            and owed is not None
            and not isinstance(owed[1], Question)
        )
        if self.holds & ~_CLIENTS_OWN_HOLDS and not waits_behind_requests:
            return 0.0
        return now - login.waits_since

    def displaced(self, now: float) -> None:
        """Give up a login, or re-authentication, whose slot another one was given."""
        self._relay_failed(FailureReason.DISPLACED, now)

    def _identify(self, query: Query | None) -> None:
        """Ask the broker of the requests which one it is; None: that is over."""
        login = self.login_relay
        assert login is not None
        assert isinstance(self.session, RelayedSession)
        self.session.confirms_aside = login.is_identifying or login.confirmation != CONFIRMATION
        if query is not None:
            api_key, api_version, body = query
            frame = request_frame(api_key, api_version, ASKED_ID, CLIENT_ID, body)
            self._ask(Question(api_key, api_version, self._identified), frame)

    def _identified(self, content: bytes, now: float) -> None:
        login = self.login_relay
        assert login is not None
        self._identify(login.identified(content))
        if login.is_confirming and not login.is_identifying:
            self._confirm_login(now)

    def _confirm_login(self, now: float) -> None:
        """Ask the broker whether a login is complete; aside, when it is known which one to ask."""
        login = self.login_relay
        assert login is not None
        self.hold(PauseReason.LOGIN)
        login.is_confirming = True
        if login.to_side is not None and login.is_identifying:
            login.waits_since = now
            return
        login.ends_at = min(login.ends_at, now + CONFIRM_SECONDS)
        self.commands.append(WakeAt(login.ends_at))
        if login.to_side is not None:
            login.ask_aside(login.confirmation, ASKED_ID)
        else:
            if self.inflight.owes_raw:
                self.inflight.forget_last()  # to the last token there is no answer
            self._ask(Question(API_VERSIONS, 0, self._confirmed), CONFIRMATION)

    def _confirmed(self, content: bytes, now: float) -> None:
        login = self.login_relay
        assert login is not None
        assert isinstance(self.session, RelayedSession)
        login.is_confirming = False
        if login.to_side is None:
            login.ends_at = inf
        error_code = confirmation_error(content)
        if error_code == REBOOTSTRAP_REQUIRED:  # another node
            self._relay_failed(FailureReason.BROKER_UNAVAILABLE, now)
            return
        self.session.confirmed(error_code, now)
        self._session_changed(SessionChanged(None, is_relayed=True), now)
        self._relay_goes_on(now)

    def side_connected(self, to_side: Callable[[Bytes], None], now: float) -> None:
        """The side connection is there; send it what waited."""
        login = self.login_relay
        assert login is not None
        relay, login.unsent, login.to_side = login.unsent, None, to_side
        if relay is None:
            self._relay_failed(FailureReason.TIMEOUT, now)
            return
        login.ends_at = now + self.rules.authentication_timeout
        self.commands.append(WakeAt(login.ends_at))
        login.ask_aside(relay.frame, relay.correlation_id)

    def side_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the side connection."""
        login = self.login_relay
        assert login is not None
        if login.to_side is None:
            return  # it is being closed
        self.active_at = now
        try:
            content = login.side_answer(data)
            if content is not None and login.is_confirming:
                self._confirmed(content, now)
            elif content is not None:
                self._relay_answered(content, now)
        except BrokerFault:
            self._relay_failed(FailureReason.BROKER_FAULT, now)

    def side_closed(self, now: float) -> None:
        """The broker closed the side connection before the re-authentication was over."""
        if self.login_relay is not None and self.login_relay.to_side is not None:
            self._relay_failed(FailureReason.REFUSED_BY_BROKER, now)

    def side_unreachable(self, now: float) -> None:
        """The side connection could not be opened in time."""
        self._relay_failed(FailureReason.BROKER_UNAVAILABLE, now)

    def _relay_failed(self, reason: FailureReason, now: float) -> None:
        """A relayed login came to no end: there is no session, and so no connection."""
        assert isinstance(self.session, RelayedSession)
        if self.closed or isinstance(self.session.state, Failed):
            return  # it ends already
        self.session.abandon(reason)
        assert isinstance(self.session.state, Failed)
        self.observer.authentication_failed(self, self.session.state, now)
        self.finish(CloseReason.AUTHENTICATION_FAILED, now)

    def _end_side(self, login: LoginRelay, now: float) -> None:
        """A re-authentication succeeded: end its side connection, or have requests move to it."""
        assert isinstance(self.session, RelayedSession)
        if self.session.moves:
            login.is_moving = True
            self.hold(PauseReason.LOGIN)
            self._move_if_settled(login, now)
        else:
            self._close_side(login)

    def _close_side(self, login: LoginRelay) -> None:
        login.end_side()
        self.commands.append(CloseSideConnection())

    def _move_if_settled(self, login: LoginRelay, now: float) -> None:
        """Move requests to the side connection if those in flight are answered."""
        if not self.responses.settled or self.holds & PauseReason.BROKER_FULL:
            return
        assert isinstance(self.session, RelayedSession)
        self.pipe.flush()
        self.pipe.to_broker = login.to_side
        login.end_side()
        self.session.moved()
        self.commands.append(MoveToSideConnection())
        self.release(PauseReason.LOGIN, now)

    def _learn_brokers(self, login: LoginRelay, now: float) -> None:
        """Ask the broker of this login for the others, and close when it has answered."""
        offered = self.target.offered
        known = None if offered is None else metadata_version(offered)
        version = metadata.LOWEST_VERSION if known is None else known
        body = metadata.write_request(version)
        frame = request_frame(METADATA, version, ASKED_ID, CLIENT_ID, body)
        self._ask(Question(METADATA, version, partial(self._learned, version)), frame)
        login.ends_at = now + CONFIRM_SECONDS
        self.commands.append(WakeAt(login.ends_at))
        self.end(CloseReason.BROKER_UNKNOWN, now)

    def _learned(self, version: int, content: bytes, _now: float) -> None:
        """The broker named the others. Raises BrokerFault."""
        view = metadata.parse_response(version, content[SIZE.size :])
        self.target.learn(view.brokers)
        assert self.login_relay is not None
        if self.login_relay.wanted not in view.brokers:
            self._end = Close(reason=CloseReason.BROKER_UNKNOWN, delay=ABSENT_SECONDS)

    def keys_refreshed(self, now: float) -> None:
        """The search for newer keys is over, whatever it found."""
        self._carry_out(self.authentication.keys_refreshed(now), now)
        self.release(PauseReason.WAITING, now)

    def store_answered(self, body: bytes, now: float) -> None:
        """The body of the answer to an `AnswerFromStore` is there."""
        self._answer(self.authentication.store_answered(body), now)
        self.release(PauseReason.WAITING, now)

    def misunderstood(self, now: float) -> None:
        """The request of an `AnswerFromStore` does not parse."""
        self.authentication.waiting = None
        self.end(CloseReason.MALFORMED_FRAME, now)

    # Rights and quotas

    def rights_changed(self, _now: float) -> None:
        """Judge by other rights from now on."""
        if (identity := self.authentication.identity) is not None:
            self._judge_by(identity)

    def regroup(self, _now: float, identity: Identity) -> None:
        """Judge the client, and apply quotas to it, by other groups from now on."""
        session = self.authentication.established
        assert session is not None
        session.identity = identity
        self._judge_by(identity)
        self._meter()

    def _judge_by(self, identity: Identity) -> None:
        """Judge by the rights of this client, and forget what was found before, fetch sessions
        included."""
        self._judged_as = identity.principals
        self.stages.authorization = self.rules.rights.admit(self, identity)
        self.forget()

    def _passes_unjudged(self, key: int) -> None:
        if (identity := self.authentication.identity) is not None:
            self.rules.rights.passes_unjudged(self, identity, key)

    def forget(self) -> None:
        """Look closer at all requests again."""
        self.pipe.forget()

    def quotas_changed(self, _now: float) -> None:
        """Find out which quotas apply from now on."""
        self._meter()

    def _meter(self) -> None:
        """Find out which quotas apply: to a new principal, to other groups, or to a client id that
        is known now."""
        quotas, throttling = self.rules.quotas, self.throttling
        identity = self.authentication.identity
        if quotas is None or identity is None:
            return
        before = None if throttling is None else throttling.used
        throttle = quotas.throttle(identity, self.client_id, before)
        self.forget()  # a Fetch may be bounded now
        if throttle is None:
            return
        if throttling is None:
            self.throttling = throttling = Throttling(throttle, self.pipe)
            self.stages.throttling = throttling
            self.pipe.throttle = self.responses.pipe.throttle = throttle
        throttling.time_requests(quotas.clock)
        throttling.limit_mutations(self.target, lambda: self.active_at)

    @property
    def is_throttled(self) -> bool:
        """Return whether the client is held for a quota."""
        return self.holds & PauseReason.THROTTLED != 0

    def _throttle(self, throttling: Throttling) -> None:
        """Take no further request before the client has made up for what it used."""
        if not self.is_throttled:  # else the timer sees that it takes longer
            self.hold(PauseReason.THROTTLED)
            self.commands.append(WakeAt(throttling.used.held_until))

    def _end_throttling(self, throttling: Throttling, now: float) -> None:
        if now < throttling.used.held_until:
            self.commands.append(WakeAt(throttling.used.held_until))
        else:
            self.release(PauseReason.THROTTLED, now)

    def _charge_time(self, stopwatch: Stopwatch, now: float) -> None:
        """End what is measured, and charge for it if an answer can announce it."""
        waits = self.closed or self.holds & _REQUEST_WAITS
        if stopwatch.stop() and self.requests.relaying and not waits:
            assert self.throttling is not None
            if self.throttling.charge_time(stopwatch, now):
                self._limit(now)

    def spent(self, nanoseconds: int, now: float) -> None:
        """Add time that a thread spent on a request."""
        if self.throttling is not None and self.throttling.stopwatch is not None:
            self.throttling.stopwatch.add(nanoseconds)
            if self.closed:
                self.throttling.closed(now)

    # The broker's side

    def broker_connected(self, to_broker: Callable[[Bytes], None], now: float) -> None:
        """The upstream connection is there; log in if need be, then send it what waited."""
        self.pipe.to_broker = to_broker
        if self.upstream_login is not None:
            self.hold(PauseReason.LOGIN)
            self.commands.append(GetIdentity())
        else:
            self.observer.reached_broker(self)
        login = self.login_relay
        if login is not None and login.unsent is not None:
            relay, login.unsent = login.unsent, None
            self._relay_here(relay)
        self.release(PauseReason.NO_BROKER, now)

    def broker_is_down(self, now: float) -> None:
        """The upstream connection could not be opened: wait until it can, for `HELD_SECONDS`."""
        self.held_until = self.held_until or now + HELD_SECONDS
        if now >= self.held_until or self.life != Life.SERVING:
            self.broker_unreachable(now)
            return
        self.hold(PauseReason.BROKER_DOWN)
        if not self.holds & ~_DIAL_WAITS:
            self.commands.append(ResumeClient())
        self._keep_bytes(now)
        if not self.closed:
            self.commands += (AwaitBroker(), WakeAt(self.held_until))

    @property
    def awaits_broker(self) -> bool:
        """True if it waits for its upstream connection."""
        return not self.closed and self.holds & _DIAL_WAITS != 0

    def broker_is_back(self, now: float) -> None:
        """The broker can be reached again: judge the waiting request again, and connect."""
        if self.login_relay is not None:
            self.commands += (PauseClient(), ConnectToBroker())
        self.release(PauseReason.NO_BROKER | PauseReason.BROKER_DOWN, now)

    def _keep_bytes(self, now: float) -> None:
        """Count the bytes of a held client in the memory budget; close it if they do not fit."""
        relay = None if self.login_relay is None else self.login_relay.unsent
        size = len(self.requests.rest) + (0 if relay is None else len(relay.frame))
        rules = self.rules
        budget = rules.memory if self.requests.relaying else rules.unauthenticated_memory
        if not self.long_work.reserve(budget, self.connection_id, size):
            self.broker_unreachable(now)
        elif size >= HELD_BYTES:
            self.commands.append(PauseClient())

    def broker_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the broker."""
        self.active_at = now
        throttling = self.throttling
        stopwatch = None if throttling is None else throttling.stopwatch
        started = stopwatch is not None and stopwatch.start()
        try:
            looked = self.responses.broker_bytes(data, now)
            if self.inflight.timed is not None:
                self.responses.time(self.inflight.timed, now)
            if looked or self.requests.held or self.life != Life.SERVING:
                self._answered_something(now)
        except BrokerFault:
            self.finish(CloseReason.BROKER_FAULT, now)
        if started and stopwatch is not None:
            self._charge_time(stopwatch, now)

    def _answered_something(self, now: float) -> None:
        if (change := self.responses.take_change()) is not None:
            transform, content = change
            self._do(changed_in_steps(transform, content), len(content), self._response_changed)
            self.read_broker()
        self._limit(now)
        if self.holds & PauseReason.IN_FLIGHT and self.inflight.owes_little:
            self.release(PauseReason.IN_FLIGHT, now)
        if self.login_relay is not None and self.login_relay.is_moving:
            self._move_if_settled(self.login_relay, now)
        self.end_if_settled(now)

    def _response_changed(self, content: bytes | BrokerFault, now: float) -> None:
        if isinstance(content, BrokerFault):
            self.finish(CloseReason.BROKER_FAULT, now)
            return
        self.responses.changed(content)
        self.broker_bytes(b"", now)  # for what came meanwhile
        self.read_broker()

    def identified(self, exchange: ClientExchange, now: float) -> None:
        """Log in to the broker with this identity of the proxy."""
        login, version = self.upstream_login, self.target.sasl_version
        assert login is not None
        self._log_in(lambda: login.identified(exchange, version), now)

    def derived(self, token: bytes, now: float) -> None:
        """Go on with the login, with the keys that `DeriveKeys` asked for."""
        login = self.upstream_login
        assert login is not None
        self._log_in(lambda: login.derived(token), now)

    def _login_answered(self, content: bytes, now: float) -> None:
        login = self.upstream_login
        assert login is not None
        self._log_in(lambda: login.answered(content), now)

    def _log_in(self, take_step: Callable[[], Step | None], now: float) -> None:
        login = self.upstream_login
        assert login is not None
        try:
            step = take_step()
        except LoginError as error:
            self.login_failed(error, now)
            return
        if isinstance(step, Send):
            question, frame = login.asked(step, self._login_answered, now)
            self.commands.append(WakeAt(login.looks_at))
            self._ask(question, frame)
        elif isinstance(step, Derive):
            self.commands.append(DeriveKeys(step.work))
        elif isinstance(step, LoggedIn):
            self.observer.logged_in(again=login.is_renewal)
            self.observer.reached_broker(self)
            self.requests.renew_at = login.renewal_at(step.session_lifetime_ms, now)
            self.release(PauseReason.LOGIN, now)

    def login_failed(self, error: LoginError, now: float) -> None:
        """There is no login to the broker, and so no connection."""
        login = self.upstream_login
        assert login is not None
        login.over()
        self.observer.login_failed(self, error.reason, again=login.is_renewal)
        self.finish(CloseReason.BROKER_LOGIN_FAILED, now)

    # Long work, and memory for it

    def _do(self, steps: Steps[Any], size: int, then: Callable[[Any, float], None]) -> None:
        """Have work done, about so many bytes; `then(result, now)` is called with the result."""
        throttling = self.throttling
        if throttling is not None and throttling.stopwatch is not None:
            steps = throttling.stopwatch.timed(steps)
        long_task = self.long_work.begin(self.principal or "", steps, size, then)
        self.commands.append(RunLongTask(long_task))

    def done(self, long_task: LongTask, result: Any, now: float) -> None:
        """The work of a `RunLongTask` was done."""
        self.long_work.done(long_task, result, now)

    def await_turn(
        self, wait: Callable[[str, Callable[[], None]], object], schedule: Schedule
    ) -> None:
        """Go on when it is this principal's turn; the unauthenticated have one together."""
        wait(self.principal or "", lambda: schedule(_take_turn))

    def await_memory(self, size: int, schedule: Schedule) -> None:
        """Reserve memory when there is, and go on."""
        principal, budget = self.principal or "", self.rules.memory

        def found() -> None:
            if self.closed:
                budget.release(principal)
                return
            self.long_work.take(budget, principal, size)
            schedule(_take_memory)

        budget.wait(principal, size, found)

    def _reserve_memory(self, size: int, now: float) -> None:
        """Reserve memory for a frame, or wait for it; the unauthenticated wait for nothing."""
        long_work, rules = self.long_work, self.rules
        if not self.requests.relaying:
            if not long_work.reserve(rules.unauthenticated_memory, self.connection_id, size):
                self.end(CloseReason.OVERSIZE_FRAME, now)
        elif long_work.reserve(rules.memory, self.principal or "", size):
            self.memory_found(now)
        else:
            self.hold(PauseReason.NO_MEMORY)
            self.commands.append(AwaitMemory(size))

    def memory_found(self, now: float) -> None:
        """Memory is reserved: take the request."""
        self.long_work.be_patient(now)
        self.commands.append(WakeAt(self.long_work.looks_at))
        self.release(PauseReason.NO_MEMORY, now)

    def _release_memory(self) -> None:
        """Release the reserved memory if no request needs it any more."""
        if (
            self.long_work.reserves_any
            and not self.holds & IN_MEMORY
            and self.requests.gathered is None
        ):
            self.long_work.release_memory()

    # Backpressure

    def read_broker(self) -> None:
        """Read from the broker, or leave it."""
        leave = self.client_is_full or self.responses.changing
        self.commands.append(PauseBroker() if leave else ResumeBroker())

    def broker_full(self, full: bool, now: float) -> None:
        """The broker does not take more bytes for now, or takes them again."""
        if full:
            self.hold(PauseReason.BROKER_FULL)
        else:
            self.release(PauseReason.BROKER_FULL, now)
            if self.login_relay is not None and self.login_relay.is_moving:
                self._move_if_settled(self.login_relay, now)

    def client_full(self, full: bool, now: float) -> None:
        """The client does not take more bytes for now, or takes them again."""
        self.client_is_full = full
        if self.pipe.to_broker is not None:
            self.read_broker()
        if not full:
            self.release(PauseReason.CLIENT_FULL, now)

    def hold(self, reason: int) -> None:
        """Take no further request until `reason`, a bit of `PauseReason`, is released."""
        if not self.holds:
            self.commands.append(PauseClient())
        self.holds |= reason
        self.requests.hold()

    def release(self, reason: int, now: float) -> None:
        """A reason not to take requests is gone."""
        if not self.holds & reason:
            return
        if self.holds & reason & BACK_PRESSURE:
            self.stages.waited_on_purpose()
        self.holds &= ~reason
        if reason != PauseReason.NO_MEMORY or self.holds:  # else it is needed now
            self._release_memory()  # before the next request is taken
        if not self.holds and not self.closed:
            self.requests.held = self.life >= Life.DRAINING
            self.commands.append(ResumeClient())
            self.requests.reconsider()
            self._resume(now)
        self.end_if_settled(now)

    # The end

    def next_deadline(self) -> float | None:
        """The next moment at which `timer` has anything to do; None: it is over.

        It may come later than was returned before, for what is not silent. `WakeAt` reports that
        it comes earlier.
        """
        if self.life == Life.CLOSED:
            return None
        ends = self.stages.unmeasured_end
        deadline = min(self._silence_ends_at, self.long_work.looks_at, ends)
        if self.is_throttled and self.throttling is not None:
            deadline = min(deadline, self.throttling.used.held_until)
        if self.upstream_login is not None:
            deadline = min(deadline, self.upstream_login.looks_at)
        if self.login_relay is not None:
            deadline = min(deadline, self.login_relay.ends_at)
        if self.holds & PauseReason.BROKER_DOWN:
            deadline = min(deadline, self.held_until)
        return deadline

    @property
    def _silence_ends_at(self) -> float:
        """Return when it ends if nothing happens, or if its client does not authenticate."""
        waited = 0.0 if self.throttling is None else self.throttling.used.waits_until
        idle = max(self.active_at, waited, self.held_until) + self.rules.max_idle
        if self.authentication.ever_succeeded:
            return idle
        ends_at = max(self.connected_at, self.held_until) + self.rules.authentication_timeout
        if self.login_relay is not None and self.login_relay.is_confirming:
            ends_at = max(ends_at, self.login_relay.ends_at)
        return min(idle, ends_at)

    def timer(self, now: float) -> None:
        """Close what is silent for too long or does not authenticate; end a throttling."""
        if now >= self.stages.unmeasured_end:
            self.commands.append(CountUnread())
        if self.is_throttled and self.throttling is not None:
            self._end_throttling(self.throttling, now)
        if self.long_work.is_too_slow(now) and not self.holds & PauseReason.AUTHORIZING:
            self.finish(CloseReason.IDLE, now)
        if self.upstream_login is not None:
            try:
                self.upstream_login.check_patience(now, client_is_full=self.client_is_full)
            except LoginError as error:
                self.login_failed(error, now)
        if self.holds & PauseReason.BROKER_DOWN and now >= self.held_until:
            self.broker_unreachable(now)
        if self.login_relay is not None and now >= self.login_relay.ends_at:
            if self.login_relay.wanted is None:
                self._relay_failed(FailureReason.TIMEOUT, now)
            else:
                self.finish(CloseReason.BROKER_FAULT, now)
        if self.life != Life.CLOSED and now >= self._silence_ends_at:
            self._end_silence(now)

    def _end_silence(self, now: float) -> None:
        if self.authentication.ever_succeeded:
            near = self._end
            self.finish(CloseReason.IDLE if near is None else near.reason, now)
            return
        if self.requests.is_unconfirmed and not self.holds:
            self._confirm_login(now)
            return
        if isinstance(self.session.state, Authenticating):
            self.session.abandon()
            assert isinstance(self.session.state, Failed)
            self.observer.authentication_failed(self, self.session.state, now)
        self.finish(CloseReason.AUTHENTICATION_TIMEOUT, now)

    def drain(self, now: float) -> None:
        """Take no further request; close when those under way are answered."""
        self._move_on(Life.DRAINING)
        self.requests.hold()
        self.end_if_settled(now)

    def client_finished(self, now: float) -> None:
        """The client will send no more: answer what it has asked, then close, as Kafka does."""
        if self.holds & PauseReason.BROKER_DOWN:  # it is most probably gone, and frees its place
            self.finish(CloseReason.CLIENT_CLOSED, now)
            return
        self._move_on(Life.FINISHING)
        if self.pipe.cut_off():
            self.hold(PauseReason.CLOSING)
        self.end_if_settled(now)

    def _move_on(self, life: int) -> None:
        self.life = max(self.life, life)

    def client_closed(self, now: float) -> None:
        """The client is gone."""
        self.finish(CloseReason.CLIENT_CLOSED, now)

    def broker_closed(self, now: float) -> None:
        """The broker is gone: so is the client, rather than given half a response."""
        login = self.upstream_login
        if login is not None and login.is_under_way and not self.closed:
            self.login_failed(LoginError("it closed the connection instead of answering"), now)
        if isinstance(self.session, RelayedSession) and self.session.is_awaited and not self.closed:
            self._relay_failed(FailureReason.REFUSED_BY_BROKER, now)
        self.finish(CloseReason.BROKER_CLOSED, now)

    def broker_unreachable(self, now: float) -> None:
        """The upstream connection could not be opened in time, or too many clients wait for it."""
        self.finish(CloseReason.BROKER_UNREACHABLE, now)

    def cut_short(self, now: float) -> None:
        """The time for draining is over."""
        self.finish(CloseReason.DRAINED, now)

    def killed(self, now: float) -> None:
        """An operator has had enough of it."""
        self.finish(CloseReason.KILLED, now)

    def broke(self, now: float) -> None:
        """The proxy itself made a mistake with this connection: fail closed."""
        self.finish(CloseReason.INTERNAL_ERROR, now)

    def end(self, reason: CloseReason, now: float) -> None:
        """Take no more requests; close once those before this one are answered."""
        self._close(Close(reason=reason), now)

    def _close(self, close: Close, now: float) -> None:
        if self._end is None:
            self._end = close
            self._move_on(Life.ENDING)
            self.hold(PauseReason.CLOSING)
            self.end_if_settled(now)

    def end_if_settled(self, now: float) -> None:
        """End if that is due and nothing is under way any more; see `proxy.connection.life`."""
        if self.life == Life.SERVING or self.pipe.left:
            return
        if self.life == Life.DRAINING:
            self.hold(PauseReason.CLOSING)  # or what the client sends on would pile up
        waited_for = waits_for(self.life, authenticated=self.authentication.ever_succeeded)
        if not self.responses.settled or self.holds & waited_for:
            return
        if self._end is not None:
            self.finish(self._end.reason, now, self._end)
        elif self.life == Life.DRAINING:
            self.finish(CloseReason.DRAINED, now)
        else:
            self.finish(CloseReason.CLIENT_CLOSED, now)

    def finish(self, reason: CloseReason, now: float, close: Close | None = None) -> None:
        """Close now, whatever is under way; let go of all that requests hold.

        A closed connection is a cycle, which is found when it is old.
        """
        if self.closed:
            return
        self.closed, self.life = True, Life.CLOSED
        self.requests.hold()
        self.requests.rest = self.responses.rest = b""
        self.requests.gathered = None
        if self.login_relay is not None:
            self.login_relay.end_side()
        self.stages.drop()
        self.pipe.forget()
        self.inflight.clear()
        self.long_work.drop()
        if self.throttling is not None:
            self.throttling.closed(now)
        self.commands.append(close or Close(reason=reason))
        self.observer.closed(self, reason, now)


def _take_turn(connection: Connection, now: float) -> None:
    connection.release(PauseReason.TURN, now)


def _take_memory(connection: Connection, now: float) -> None:
    connection.memory_found(now)
