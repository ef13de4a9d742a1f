"""Connection: the decisions of one client connection, without sockets or clock.

No sockets, no clock. Laws:

- Feed `requests.client_bytes` and `broker_bytes` with what was read, then carry out `commands`.
  Bytes that could not be dealt with yet are in `requests.rest` or `responses.rest`: they come
  before the next read.
- A connection waits (`PauseReason`) or ends in one place, here; how frames are cut is `Requests`'
  and `Responses`' business, what is said to the client is `Authentication`'s.
- What ends a connection lets the requests before it be answered, as Kafka does, which takes a
  connection's requests one by one.
"""

from collections.abc import Callable
from math import inf

from proxy.connection.authentication import Authentication
from proxy.connection.commands import (
    Close,
    CloseReason,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    PauseBroker,
    PauseClient,
    ResumeBroker,
    ResumeClient,
    WakeAt,
)
from proxy.connection.frames import Bytes
from proxy.connection.inflight import InFlight, Question
from proxy.connection.interfaces import ConnectionRules, Observer, UpstreamBroker
from proxy.connection.life import Life, waits_for
from proxy.connection.long_work import LongWork
from proxy.connection.pause_reasons import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.connection.request_time import Stopwatch
from proxy.connection.requests import Requests
from proxy.connection.responses import Responses
from proxy.connection.upstream_login import UpstreamLogin
from proxy.connection.verdicts import Verdicts
from proxy.errors import BrokerFault
from sasl.messages import SASL_HANDSHAKE
from sasl.session import Session
from sasl.states import Authenticated, Authenticating, Enforcement, Failed


class Connection:
    """The decisions of one connection. See the laws at the head of this module."""

    __slots__ = (
        "_end",
        "active_at",
        "client_id",
        "client_is_full",
        "client_software_name",
        "client_software_version",
        "closed",
        "commands",
        "connected_at",
        "connection_id",
        "dialogue",
        "holds",
        "inflight",
        "life",
        "long_work",
        "observer",
        "peer_host",
        "pipe",
        "requests",
        "responses",
        "rules",
        "session",
        "stopwatch",
        "target",
        "telemetry",
        "upstream_login",
        "verdicts",
    )

    def __init__(
        self,
        *,
        connection_id: str,
        peer_host: str,
        rules: ConnectionRules,
        target: UpstreamBroker,
        observer: Observer,
        to_client: Callable[[Bytes], None],
        now: float,
    ) -> None:
        self.connection_id = connection_id
        self.peer_host = peer_host
        self.rules, self.target = rules, target
        self.session = Session(rules.mechanisms, rules.terms)
        self.inflight = InFlight()
        self.responses = Responses(self.inflight, to_client)
        self.pipe = RequestPipe(self.inflight, rules.request_max_bytes)
        self.requests = Requests(self, now)
        self.verdicts = Verdicts(self)
        self.long_work = LongWork(self)
        self.upstream_login = UpstreamLogin(self) if rules.logs_in else None
        """The proxy's own, to the broker; None: the broker wants none."""
        self.stopwatch: Stopwatch | None = None
        """Measures the time that the connection takes; None: nobody pays for it."""
        self.dialogue = Authentication(self)
        self.commands: list[Command] = []
        self.connected_at = self.active_at = now
        self.client_id: str | None = None
        self.client_software_name: str | None = None
        self.client_software_version: str | None = None
        self.life: int = Life.SERVING
        """State in the table of `proxy.connection.life`."""
        self.closed = False
        self.telemetry: object = None
        """Whatever the observer keeps per connection."""
        self.observer = observer
        self.holds = 0
        """Reasons for which the client is not read: bits of `PauseReason`."""
        self.client_is_full = False
        """True if the client does not read its answers, and so the broker is not read."""
        self._end: Close | None = None
        """The close that was decided; None: none is."""

    # The client's side

    def too_many_in_flight(self) -> None:
        """The client is owed more answers than it may be."""
        self.hold(PauseReason.IN_FLIGHT)

    def connect(self) -> None:
        """A request is to be forwarded, and there is no broker yet."""
        self.hold(PauseReason.NO_BROKER)
        self.commands.append(ConnectToBroker())

    def outlives_expiry(self, api_key: int, now: float) -> bool:
        """Return whether a request may be made on an expired session, to renew it (KIP-368)."""
        session = self.session.state
        assert isinstance(session, Authenticated)
        if api_key == SASL_HANDSHAKE and self.session.may_begin_reauthentication(now):
            return True
        self.requests.expires_at = inf  # one report per session
        self.observer.expired(self, session, api_key, now)
        if session.enforcement is Enforcement.ENFORCE:
            self.end(CloseReason.EXPIRED, now)
            return False
        return True

    # What is said to the client

    def send(self, frame: bytes, now: float, key: int = -1, told_ms: int = 0) -> None:
        """Answer the client, when its turn comes; see `Throttling.answer`."""
        if self.requests.throttle is None:
            self.responses.answer(frame)
        else:
            self.requests.throttle.answer(frame, key, now, told_ms)
        if self.client_is_full:
            self.hold(PauseReason.CLIENT_FULL)
        if self.inflight.owes_much:
            self.hold(PauseReason.IN_FLIGHT)

    def authenticated(self, session: Authenticated, now: float) -> None:
        """An authentication or re-authentication succeeded."""
        self.requests.expires_at = inf if session.deadline is None else session.deadline
        if not session.reauthentications:
            self.requests.guard(self.rules.rights.admit(self, session.principal))
            self.commands.append(CountAuthenticated())
        self.meter()
        self.observer.authenticated(self, session, now)

    def refused(self, failed: Failed, farewell: bytes | None, now: float) -> None:
        """An authentication or re-authentication failed."""
        self.observer.authentication_failed(self, failed, now)
        self.end(
            CloseReason.AUTHENTICATION_FAILED,
            now,
            farewell=farewell,
            delay=self.rules.failed_authentication_delay,
        )

    def rights_changed(self, _now: float) -> None:
        """Judge by other rights from now on."""
        if (principal := self.principal) is not None:
            self.requests.guard(self.rules.rights.admit(self, principal))

    @property
    def principal(self) -> str | None:
        """The authenticated principal, also during a re-authentication; None: nobody yet."""
        session = self.session.state
        if isinstance(session, Authenticating) and session.previous is not None:
            return session.previous.principal
        return session.principal if isinstance(session, Authenticated) else None

    # Quotas

    def meter(self) -> None:
        """Find out which quotas apply: somebody logged in, or said what its client is called."""
        if self.rules.quotas is not None and (principal := self.principal) is not None:
            self.rules.quotas.meter(self, principal)

    def throttled(self, now: float) -> None:
        """The client used more than its quota: take no further request for a while."""
        if self.closed or self.holds & PauseReason.THROTTLED:
            return  # the timer sees that it takes longer
        self.hold(PauseReason.THROTTLED)
        self._end_throttling(now)

    @property
    def is_throttled(self) -> bool:
        """Return whether the client is held for a quota."""
        return self.holds & PauseReason.THROTTLED != 0

    def _end_throttling(self, now: float) -> None:
        throttle = self.requests.throttle
        assert throttle is not None
        if now < throttle.held_until:
            self.commands.append(WakeAt(throttle.held_until))
        else:
            self.release(PauseReason.THROTTLED, now)

    # The broker's side

    def broker_connected(self, to_broker: Callable[[Bytes], None], now: float) -> None:
        """The upstream connection is there; log in if need be, then send it what waited."""
        self.pipe.to_broker = to_broker
        if self.upstream_login is not None:
            self.upstream_login.begin()
        self.release(PauseReason.NO_BROKER, now)

    def ask(self, question: Question, frame: bytes) -> None:
        """Ask the broker something on behalf of the proxy, behind what was forwarded."""
        self.pipe.write(frame)
        self.inflight.ask(question)

    def renew_login(self) -> None:
        """Log in to the broker again before it is sent anything else."""
        assert self.upstream_login is not None
        self.upstream_login.begin()

    def broker_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the broker."""
        self.active_at = now
        stopwatch = self.stopwatch
        started = stopwatch is not None and stopwatch.start()
        try:
            self.responses.broker_bytes(data, now)
        except BrokerFault:
            self.finish(CloseReason.BROKER_FAULT, now)
        else:
            if self.requests.held or self.life != Life.SERVING:
                self._answered_something(now)
        if started and stopwatch is not None:
            stopwatch.stop(now)

    def _answered_something(self, now: float) -> None:
        if self.holds & PauseReason.IN_FLIGHT and self.inflight.owes_little:
            self.release(PauseReason.IN_FLIGHT, now)
        self.end_if_settled(now)

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
        self.holds &= ~reason
        self.long_work.release_memory(reason)  # before the next request is taken
        if not self.holds and not self.closed:
            self.requests.held = self.life >= Life.DRAINING
            self.commands.append(ResumeClient())
            self.requests.reconsider()
            self.requests.resume(now)
        self.end_if_settled(now)

    # The end

    def next_deadline(self) -> float | None:
        """The next moment at which `timer` has anything to do; None: it is over.

        It may come later than was said before, for what is not silent. That it comes earlier is
        told by `WakeAt`.
        """
        if self.life == Life.CLOSED:
            return None
        deadlines = [self._silence_ends_at, self.long_work.next_deadline()]
        if self.is_throttled and (throttle := self.requests.throttle) is not None:
            deadlines.append(throttle.held_until)
        if self.upstream_login is not None:
            deadlines.append(self.upstream_login.next_deadline())
        return min(deadlines)

    @property
    def _silence_ends_at(self) -> float:
        """Return when it ends if nothing happens, or if its client does not authenticate."""
        throttle = self.requests.throttle
        waited = 0.0 if throttle is None else throttle.used.waits_until
        idle = max(self.active_at, self.requests.active_at, waited) + self.rules.max_idle
        if self._authenticated_once:
            return idle
        return min(idle, self.connected_at + self.rules.authentication_timeout)

    def timer(self, now: float) -> None:
        """Close what is silent for too long or does not authenticate; end a throttling."""
        if self.is_throttled:
            self._end_throttling(now)
        self.long_work.timer(now)
        if self.upstream_login is not None:
            self.upstream_login.timer(now)
        if self.life == Life.CLOSED or now < self._silence_ends_at:
            return
        if self._authenticated_once:
            near = self._end
            self.finish(CloseReason.IDLE if near is None else near.reason, now)
            return
        if isinstance(self.session.state, Authenticating):
            self.session.abandon()
            assert isinstance(self.session.state, Failed)
            self.observer.authentication_failed(self, self.session.state, now)
        self.finish(CloseReason.AUTHENTICATION_TIMEOUT, now)

    @property
    def _authenticated_once(self) -> bool:
        state = self.session.state
        return isinstance(state, Authenticated) or (
            isinstance(state, Authenticating | Failed) and state.previous is not None
        )

    def drain(self, now: float) -> None:
        """Take no further request; close when those under way are answered."""
        self._move_on(Life.DRAINING)
        self.requests.hold()
        self.end_if_settled(now)

    def client_finished(self, now: float) -> None:
        """The client will send no more: answer what it has asked, then close, as Kafka does."""
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
        """The broker is gone: so is the client, rather than told half an answer."""
        if self.upstream_login is not None and not self.closed:
            self.upstream_login.broker_closed(now)
        self.finish(CloseReason.BROKER_CLOSED, now)

    def broker_unreachable(self, now: float) -> None:
        """The upstream connection could not be opened."""
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

    def end(
        self,
        reason: CloseReason,
        now: float,
        *,
        farewell: bytes | None = None,
        delay: float = 0.0,
    ) -> None:
        """Take no more requests; close once those before this one are answered."""
        if self._end is None:
            self._end = Close(reason=reason, delay=delay, farewell=farewell)
            self._move_on(Life.ENDING)
            self.hold(PauseReason.CLOSING)
            self.end_if_settled(now)

    def end_if_settled(self, now: float) -> None:
        """End if that is due and nothing is under way any more; see `proxy.connection.life`."""
        if self.life == Life.SERVING or self.pipe.left:
            return
        if self.life == Life.DRAINING:
            self.hold(PauseReason.CLOSING)  # or what the client sends on would pile up
        waited_for = waits_for(self.life, authenticated=self._authenticated_once)
        if not self.responses.settled or self.holds & waited_for:
            return
        if self._end is not None:
            self.finish(self._end.reason, now, self._end)
        elif self.life == Life.DRAINING:
            self.finish(CloseReason.DRAINED, now)
        else:
            self.finish(CloseReason.CLIENT_CLOSED, now)

    def finish(self, reason: CloseReason, now: float, close: Close | None = None) -> None:
        """Close now, whatever is under way."""
        if self.closed:
            return
        self.closed, self.life = True, Life.CLOSED
        self.requests.hold()
        self.requests.rest = self.responses.rest = b""
        self.long_work.drop(now)
        self.commands.append(close or Close(reason=reason))
        self.observer.closed(self, reason, now)
