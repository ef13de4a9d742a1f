"""Connection: the decisions of one client connection, without sockets or clock.

Rules:

- The shell passes in the bytes that it reads (`client_bytes`, `broker_bytes`), then carries out
  `commands`. Bytes that cannot be processed yet are kept, and precede the next read.
- The connection carries out the verdicts of the stages. Only it waits (`PauseReason`) and ends
  (`proxy.connection.life`); no other module of this package holds it, except that the logins use it
  through `LoginHost`.
- When a verdict, the client's EOF or a drain ends a connection, the requests before it are answered
  first: Kafka also processes a connection's requests one by one.
"""

import random
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from proxy.acl.administration import ADMINISTRATIVE, Administered
from proxy.connection.authentication import Authentication
from proxy.connection.blocks import Login
from proxy.connection.commands import (
    Answer,
    Ask,
    AwaitBroker,
    AwaitMemory,
    AwaitTurn,
    ClientNamed,
    Close,
    CloseReason,
    Command,
    Confirm,
    ConnectToBroker,
    CountAuthenticated,
    CountUnread,
    Done,
    Expired,
    Forward,
    GetIdentity,
    Misrouted,
    NeedMemory,
    PauseBroker,
    PauseClient,
    Relay,
    ResumeBroker,
    ResumeClient,
    RunLongTask,
    SessionChanged,
    Verdict,
    Wait,
    WakeAt,
    Work,
)
from proxy.connection.frames import Bytes, route_key
from proxy.connection.inflight import ASKED_ID, InFlight, Question
from proxy.connection.interfaces import ConnectionRules, Observer, UpstreamBroker
from proxy.connection.life import BACK_PRESSURE, HELD_OPEN, Input, Life, PauseReason, next_life
from proxy.connection.logins import RelayedLogin, UpstreamLogin
from proxy.connection.long_work import IN_MEMORY, LongWork, changed_in_steps
from proxy.connection.pipe import RequestPipe
from proxy.connection.requests import Requests
from proxy.connection.responses import Responses
from proxy.connection.stages import Stages
from proxy.connection.throttling import Stopwatch, Throttling
from proxy.errors import BrokerFault
from proxy.scheduling.steps import Steps
from proxy.wire.apis import METADATA
from sasl.identity import Identity, LoginFacts
from sasl.mechanism import PASSWORD, FailureReason
from sasl.relayed import RelayedSession
from sasl.session import Session
from sasl.states import Authenticated, Authenticating, Enforcement, Failed, State, Terms, failed

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization

_REQUEST_WAITS: Final = (
    PauseReason.NO_BROKER
    | PauseReason.WAITING
    | PauseReason.NO_MEMORY
    | PauseReason.AUTHORIZING
    | PauseReason.LOGIN
    | PauseReason.TURN
)
"""Reasons for a hold before a request that will be answered: its time is charged with the
answer."""
HELD_SECONDS: Final = 3.0
"""Seconds for which a client is held while its broker is down. Clients then reconnect with their
usual back-off; if they were closed at once, any earlier answer would have reset it."""
HELD_BYTES: Final = 65_536
"""Number of kept bytes at which a held client is no longer read: more than most clients send before
they have a response."""
_DIAL_WAITS: Final = PauseReason.NO_BROKER | PauseReason.LOGIN | PauseReason.BROKER_DOWN
_STAGE_WAITS: Final = PauseReason.WAITING | PauseReason.AUTHORIZING

Schedule = Callable[[Callable[["Connection", float], None]], None]
"""Function of the shell that calls a function with the connection and the time, immediately or in a
later iteration of the event loop."""


class Connection:
    """Decisions of one connection. The module docstring has its rules."""

    __slots__ = (
        "_ends_at",
        "_judged_as",
        "_refused_in",
        "_relayed_login",
        "_upstream_login",
        "active_at",
        "authentication",
        "client_is_full",
        "closed",
        "commands",
        "connected_at",
        "connection_id",
        "ending",
        "held_until",
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
        "stages",
        "target",
        "telemetry",
        "throttling",
        "upstream_principal",
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
        """`wanted` is `RelayedLogin.wanted`."""
        self.connection_id = connection_id
        self.peer_host = peer_host
        self.rules, self.target = rules, target
        self.session: Session | RelayedSession
        self._relayed_login: RelayedLogin | None = None
        """Login that the broker decides; None if the proxy does."""
        if rules.relays is None:
            self.session = Session(rules.mechanisms, self._terms, self._refusal)
        else:
            relayed = RelayedSession(rules.relays, self._terms, peer_host, self._refusal)
            self.session, self._relayed_login = relayed, RelayedLogin(self, relayed, wanted)
        self.inflight = InFlight()
        self.responses = Responses(self.inflight, to_client)
        self.pipe = RequestPipe(self.inflight, rules.request_max_bytes, rules.latency)
        self.authentication = Authentication(self.session, self.pipe, target, rules.rights)
        report = self._administered if rules.rights.records_uses else None
        self.stages = Stages(
            self.authentication, self.pipe, target, rules, self._passes_unjudged, report
        )
        self.long_work = LongWork()
        self.requests = Requests(self.stages, self.pipe, self.long_work, target, rules)
        self.throttling: Throttling | None = None
        """Quota stage; None if no quota applies."""
        self._upstream_login = UpstreamLogin(self) if rules.logs_in else None
        """The proxy's own login to the broker; None if the proxy does not log in."""
        self._refused_in: Authenticated | None = None
        """Last session with a reported refusal of a re-authentication; None if there is no such
        session."""
        self.commands: list[Command] = []
        self.connected_at = self.active_at = now
        max_age = rules.max_age * random.uniform(0.9, 1)  # noqa: S311 - no secret
        self._ends_at = now + max_age, CloseReason.MAX_AGE
        """Time at which the connection ends in any case, in monotonic seconds, and why."""
        self.life: int = Life.SERVING
        """State, see `proxy.connection.life`."""
        self.closed = False
        self.held_until = 0.0
        """Time until which the connection waits for a broker that is down, in monotonic seconds; 0
        if the broker was never down."""
        self.telemetry: object = None
        """Data of the observer."""
        self.observer = observer
        self.holds = 0
        """Reasons for which the client is not read: bits of `PauseReason`."""
        self.client_is_full = False
        """True if the client does not read its responses, and so the broker is not read."""
        self._judged_as: tuple[str, ...] = ()
        """Principals by whose rights requests are judged; empty before the login."""
        self.upstream_principal: str | None = None
        """Principal of the client at brokers (`upstream.identity`); None if they see another."""
        self.ending: Close | None = None
        """Close that follows once all requests are answered; None if no close is pending."""

    # State

    @property
    def principal(self) -> str | None:
        """Authenticated principal, also during a re-authentication; None before the login."""
        identity = self.authentication.identity
        return None if identity is None else identity.principal

    def _terms(self, identity: Identity, mechanism: str) -> Terms:
        """Return the terms of a session of this client."""
        return self.rules.terms(identity, mechanism, self.authentication.claimed)

    @property
    def authorization(self) -> "RequestAuthorization | None":
        """Stage that judges requests by ACLs; None if the client may do everything."""
        return self.stages.authorization

    @property
    def relayed_login(self) -> RelayedLogin:
        """Login that the broker decides; only where logins are relayed."""
        assert self._relayed_login is not None
        return self._relayed_login

    @property
    def upstream_login(self) -> UpstreamLogin:
        """The proxy's own login to the broker; only where brokers need it."""
        assert self._upstream_login is not None
        return self._upstream_login

    # Bytes of the client

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Process bytes that were read from the client."""
        self.active_at = now
        if self.throttling is not None and self.throttling.stopwatch is not None:
            stopwatch = self.throttling.stopwatch
            started = stopwatch.start()
            self._settle(self.requests.take(data, now), now)
            if started:
                self._charge_time(stopwatch, now)
        elif (verdict := self.requests.take(data, now)) is not None:
            self._settle(verdict, now)

    def _settle(self, verdict: Verdict | None, now: float) -> None:
        """Carry out the verdicts of a read; None if there is nothing to do."""
        if verdict is None:
            return
        while not isinstance(verdict, Done):
            self.carry_out(verdict, now)
            self._limit(now)
            verdict = self.requests.proceed(now)
        self._limit(now)
        self._release_memory()
        if self.holds & PauseReason.BROKER_DOWN and not self.closed:
            self._keep_bytes(now)
        if self.requests.held and not self.pipe.left:
            self.end_if_settled(now)

    def _resume(self, now: float) -> None:
        """Process the bytes that could not be processed before."""
        stopwatch = None if self.throttling is None else self.throttling.stopwatch
        started = stopwatch is not None and stopwatch.start()
        self._settle(self.requests.resume(now), now)
        if started and stopwatch is not None:
            self._charge_time(stopwatch, now)

    def _limit(self, now: float) -> None:
        """Hold the client if it is owed much, has exceeded a quota, or has had its turn."""
        if self.closed or not self.requests.is_limited(now):
            return
        if self.inflight.owes_much:
            self.hold(PauseReason.IN_FLIGHT)
        if self.long_work.turn_is_over:
            self.long_work.begin_turn()
            self.hold(PauseReason.TURN)
            self.commands.append(AwaitTurn(self.principal or ""))
        throttling = self.throttling
        if throttling is None or self.pipe.left or self.is_throttled:
            return  # a throttled client's timer notices a later `held_until`
        if throttling.holds(now):
            self.hold(PauseReason.THROTTLED)
            self.commands.append(WakeAt(throttling.used.held_until))

    # Verdicts

    def carry_out(self, verdict: Verdict, now: float) -> None:
        """Carry out a verdict."""
        if isinstance(verdict, Forward):
            self.requests.forward_whole(verdict, now)
            if verdict.close is not None:
                self._end(verdict.close, now)
        elif isinstance(verdict, Answer):
            self._answer(verdict, now)
        elif isinstance(verdict, Wait):
            self.hold(verdict.reason)
            if verdict.command is not None:
                self.commands.append(verdict.command)
        elif isinstance(verdict, Close):
            self._end(verdict, now)
        elif isinstance(verdict, SessionChanged):
            self._session_changed(verdict, now)
        else:
            self._carry_out_rare(verdict, now)

    def _carry_out_rare(self, verdict: Verdict, now: float) -> None:
        if isinstance(verdict, Work):
            self.hold(PauseReason.AUTHORIZING)
            self._run(verdict.steps, verdict.size, self._resume_stage)
        elif isinstance(verdict, Ask):
            self.hold(PauseReason.WAITING)
            self.ask(Question(METADATA, verdict.api_version, self._resume_stage), verdict.frame)
        elif isinstance(verdict, NeedMemory):
            self._reserve_memory(verdict.size, now)
        elif isinstance(verdict, Expired):
            self._expired(verdict.api_key, now)
        elif isinstance(verdict, ClientNamed):
            self.apply_quotas(now)
        elif isinstance(verdict, Relay):
            self.relayed_login.relay(verdict, now)
        elif isinstance(verdict, Confirm):
            self.relayed_login.confirm(now)
        elif isinstance(verdict, Misrouted):
            self.observer.misrouted(self, verdict.request, now)
            self._answer(verdict.answer, now)

    def _resume_stage(self, result: Any, now: float) -> None:
        """Continue judging the request that waited for `result`."""
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
        self.carry_out(verdict, now)
        self._limit(now)
        self.release(_STAGE_WAITS & ~waits, now)

    def _answer(self, answer: Answer, now: float) -> None:
        """Charge an answer of the proxy's own, and send it when its turn comes."""
        throttling = self.throttling
        self._send(answer.frame if throttling is None else throttling.charged(answer, now))
        self._limit(now)

    def _send(self, frame: bytes) -> None:
        self.responses.answer(frame)
        if self.client_is_full:
            self.hold(PauseReason.CLIENT_FULL)
        if self.inflight.owes_much:
            self.hold(PauseReason.IN_FLIGHT)

    def ask(self, question: Question, frame: bytes, correlation_id: int = ASKED_ID) -> None:
        """Write a request of the proxy's own to the broker, after the forwarded ones."""
        self.pipe.write(frame)
        self.inflight.ask(question, correlation_id)

    # The session

    def admit(self, identity: Identity, now: float, ends_at: float = inf) -> None:
        """Authenticate a client without SASL, by its listener or its certificate; or close its
        connection if it is blocked.

        `ends_at` is when the certificate expires, in monotonic seconds.
        """
        assert isinstance(self.session, Session)
        if self._refusal(identity, PASSWORD, now) is not None:
            self.finish(CloseReason.BLOCKED, now)
            return
        if ends_at < self._ends_at[0]:
            self._ends_at = ends_at, CloseReason.CERTIFICATE_EXPIRED
            self.commands.append(WakeAt(ends_at))
        session = self.session.admit(identity, now)
        self.requests.relaying = self.requests.nameless = True
        self._authenticated(session, now)

    def _session_changed(self, change: SessionChanged, now: float) -> None:
        """Answer a SASL request, and apply the session's new state."""
        state, relayed = self.session.state, self._relayed_login
        if isinstance(state, Failed):
            self.observer.authentication_failed(self, state, now)
            reason = CloseReason.AUTHENTICATION_FAILED
            delay = 0.0 if change.is_relayed else self.rules.failed_authentication_delay
            self._end(Close(reason=reason, delay=delay, farewell=change.frame), now)
            if relayed is not None:
                relayed.close_side()
            return
        if change.is_refusal:
            self._refused(state, now)
        if change.frame is not None:
            self._send(change.frame)
        if isinstance(self.session, RelayedSession):
            self.requests.is_unconfirmed = self.session.is_unconfirmed
            if change.confirms:
                self.relayed_login.confirm(now)
        was_relaying = self.requests.relaying
        may_relay = relayed is None or relayed.wanted is None
        self.requests.relaying = isinstance(state, Authenticated) and may_relay
        if isinstance(state, Authenticated) and not was_relaying:
            self._authenticated(state, now)

    def _refused(self, session: State, now: float) -> None:
        """Report a refused re-authentication, once for each session with an announced lifetime."""
        assert isinstance(session, Authenticated)
        if session.announced_lifetime_ms and session is not self._refused_in:
            self._refused_in = session
            detail = "a re-authentication within a second of the last one"
            refused = failed(session, FailureReason.ILLEGAL_STATE, detail=detail)
            self.observer.authentication_failed(self, refused, now)

    def _authenticated(self, session: Authenticated, now: float) -> None:
        """Apply an authentication or re-authentication that succeeded."""
        end = inf if session.deadline is None else session.deadline
        self._expire_at(-inf if session.began_expired else end)
        relayed = self._relayed_login
        if not session.reauthentications or relayed is not None:
            self.commands.append(CountAuthenticated())
        if session.identity.principals != self._judged_as:
            self._judge_by(session.identity)  # a newer token may have other groups
        self.apply_quotas(now)
        before, self.upstream_principal = self.upstream_principal, self.rules.presents(session)
        if session.reauthentications and before != self.upstream_principal:
            self.finish(CloseReason.IDENTITY_REFUSED, now)
            return
        self.observer.authenticated(self, session)
        if relayed is not None:
            relayed.authenticated(now)

    def _expire_at(self, when: float) -> None:
        self.stages.expire_at(when)
        if self.stages.unmeasured_end < inf:
            self.commands.append(WakeAt(when))

    def session_ended(self, unread: int, now: float) -> None:
        """Record how many bytes had arrived at the end of the session without being read. They are
        on time, unless the client was not read on purpose."""
        if now >= self.stages.unmeasured_end:
            waits = self.holds & BACK_PRESSURE
            self.stages.on_time = 0 if waits else len(self.requests.rest) + unread

    def _expired(self, api_key: int, now: float) -> None:
        """Report the use of an expired session, and end the connection if its terms require it."""
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

    def resume_login(self, now: float) -> None:
        """Continue a login after signing keys were fetched, or a password was checked, or could not
        be."""
        self.carry_out(self.authentication.resume(now), now)
        self.release(PauseReason.WAITING, now)

    def store_answered(self, body: bytes, now: float) -> None:
        """Send the answer to an `AnswerFromStore`, given its body."""
        request = self.authentication.waiting
        assert request is not None
        if self.rules.rights.records_uses and request.api_key in ADMINISTRATIVE:
            key = route_key(request.api_key, request.api_version)
            self._administered(Administered(key, now, request.body, body))
        self._answer(self.authentication.store_answered(body), now)
        self.release(PauseReason.WAITING, now)

    # Blocks

    def _refusal(self, identity: Identity, facts: LoginFacts, now: float) -> FailureReason | None:
        """Return why a client with valid credentials is refused; None if it is not."""
        return self.rules.blocks.refusal(self._login(identity, facts, None), now)

    def session_login(self) -> Login | None:
        """Return what can block the session; None before the login."""
        session = self.authentication.established
        if session is None:
            return None
        return self._login(session.identity, session.facts, session.authenticated_at)

    def end_if_blocked(self, now: float) -> None:
        """Close the connection now if an operator has blocked its session."""
        login = self.session_login()
        if login is not None and self.rules.blocks.ends(login, now):
            self.finish(CloseReason.BLOCKED, now)

    def end_if_revoked(self, now: float) -> None:
        """Close the connection now if its session's credential is no longer valid."""
        session = self.authentication.established
        if session is not None and not session.is_current():
            self.finish(CloseReason.REVOKED, now)

    def _login(
        self, identity: Identity, facts: LoginFacts, authenticated_at: float | None
    ) -> Login:
        about = self.authentication
        claimed = about.client_id, about.client_software_name, about.client_software_version
        return Login(identity, facts, self.peer_host, claimed, authenticated_at)

    # Rights and quotas

    def rights_changed(self, _now: float) -> None:
        """Judge by new rights from now on."""
        if (identity := self.authentication.identity) is not None:
            self._judge_by(identity)

    def regroup(self, now: float, identity: Identity) -> None:
        """Judge the client, and apply quotas to it, by other groups from now on."""
        session = self.authentication.established
        assert session is not None
        session.identity = identity
        self._judge_by(identity)
        self.apply_quotas(now)

    def _judge_by(self, identity: Identity) -> None:
        """Judge by this client's rights, and forget earlier findings, including fetch sessions."""
        self._judged_as = identity.principals
        self.stages.flush_uses()  # they belong to the principal before
        self.stages.authorization = self.rules.rights.admit(self, identity)
        self.forget()

    def _passes_unjudged(self, key: int) -> None:
        if (identity := self.authentication.identity) is not None:
            self.rules.rights.passes_unjudged(self, identity, key)

    def _administered(self, request: Administered) -> None:
        self.observer.administered(self, request)

    def forget(self) -> None:
        """Forget all fingerprints: judge every request again."""
        self.pipe.forget()

    def apply_quotas(self, _now: float) -> None:
        """Apply the quotas for the current principal, groups and client id."""
        quotas, throttling = self.rules.quotas, self.throttling
        identity = self.authentication.identity
        if quotas is None or identity is None:
            return
        before = None if throttling is None else throttling.used
        throttle = quotas.throttle(identity, self.authentication.client_id, before)
        self.forget()  # a Fetch may be bounded now
        if throttle is None:
            return
        if throttling is None:
            self.throttling = throttling = Throttling(throttle, self.pipe)
            self.stages.throttling = throttling
            self.pipe.throttle = self.responses.throttle = throttle
        throttling.time_requests(quotas.clock)
        throttling.limit_mutations(self.target, lambda: self.active_at)

    @property
    def is_throttled(self) -> bool:
        """True if the client is held for a quota."""
        return self.holds & PauseReason.THROTTLED != 0

    def _charge_time(self, stopwatch: Stopwatch, now: float) -> None:
        """Stop measuring, and charge the time if a response can announce it."""
        waits = self.closed or self.holds & _REQUEST_WAITS
        if stopwatch.stop() and self.requests.relaying and not waits:
            assert self.throttling is not None
            if self.throttling.charge_time(stopwatch, now):
                self._limit(now)

    def spent(self, nanoseconds: int, now: float) -> None:
        """Charge time that a thread spent on a request."""
        if self.throttling is not None and self.throttling.stopwatch is not None:
            self.throttling.stopwatch.add(nanoseconds)
            if self.closed:
                self.throttling.closed(now)

    # The broker

    def broker_connected(self, to_broker: Callable[[Bytes], None], now: float) -> None:
        """Use the open upstream connection: log in if necessary, and process the waiting bytes."""
        self.pipe.to_broker = to_broker
        if self._upstream_login is not None:
            self.hold(PauseReason.LOGIN)
            self.commands.append(GetIdentity())
        else:
            self.observer.reached_broker(self)
        if self._relayed_login is not None:
            self._relayed_login.broker_connected()
        self.release(PauseReason.NO_BROKER, now)

    def broker_is_down(self, now: float) -> None:
        """Hold the client for up to `HELD_SECONDS`: the upstream connection could not be opened."""
        self.held_until = self.held_until or now + HELD_SECONDS
        if now >= self.held_until or self.life != Life.SERVING:
            self.finish(CloseReason.BROKER_UNREACHABLE, now)
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
        """Connect again, and judge the waiting request again: the broker can be reached."""
        if self._relayed_login is not None:
            self.commands += (PauseClient(), ConnectToBroker())
        self.release(PauseReason.NO_BROKER | PauseReason.BROKER_DOWN, now)

    def _keep_bytes(self, now: float) -> None:
        """Reserve memory for the bytes of a held client; close it if there is not enough."""
        unsent = 0 if self._relayed_login is None else self._relayed_login.unsent_bytes
        size = len(self.requests.rest) + unsent
        rules = self.rules
        budget = rules.memory if self.requests.relaying else rules.unauthenticated_memory
        if not self.long_work.reserve(budget, self.connection_id, size):
            self.finish(CloseReason.BROKER_UNREACHABLE, now)
        elif size >= HELD_BYTES:
            self.commands.append(PauseClient())

    def broker_bytes(self, data: Bytes, now: float) -> None:
        """Process bytes that were read from the broker."""
        self.active_at = now
        throttling = self.throttling
        stopwatch = None if throttling is None else throttling.stopwatch
        started = stopwatch is not None and stopwatch.start()
        try:
            looked = self.responses.broker_bytes(data, now)
            if self.inflight.timed is not None:
                self.responses.time(self.inflight.timed, now)
            if looked or self.requests.held or self.life != Life.SERVING:
                self._responses_sent(now)
        except BrokerFault:
            self.finish(CloseReason.BROKER_FAULT, now)
        if started and stopwatch is not None:
            self._charge_time(stopwatch, now)

    def _responses_sent(self, now: float) -> None:
        if (change := self.responses.take_change()) is not None:
            transform, content = change
            self._run(changed_in_steps(transform, content), len(content), self._response_changed)
            self._read_broker()
        self._limit(now)
        if self.holds & PauseReason.IN_FLIGHT and self.inflight.owes_little:
            self.release(PauseReason.IN_FLIGHT, now)
        if self._relayed_login is not None:
            self._relayed_login.settled(now)
        self.end_if_settled(now)

    def _response_changed(self, content: bytes | BrokerFault, now: float) -> None:
        if isinstance(content, BrokerFault):
            self.finish(CloseReason.BROKER_FAULT, now)
            return
        self.responses.changed(content)
        self.broker_bytes(b"", now)  # for bytes that arrived meanwhile
        self._read_broker()

    def broker_closed(self, now: float) -> None:
        """Handle the end of the upstream connection: the client must not receive half a
        response."""
        if self._upstream_login is not None:
            self._upstream_login.broker_closed(now)
        if self._relayed_login is not None:
            self._relayed_login.broker_closed(now)
        self.finish(CloseReason.BROKER_CLOSED, now)

    # Long work, turns and memory

    def _run(self, steps: Steps[Any], size: int, then: Callable[[Any, float], None]) -> None:
        """Run long work on a message of `size` bytes; call `then(result, now)` with its result."""
        throttling = self.throttling
        if throttling is not None and throttling.stopwatch is not None:
            steps = throttling.stopwatch.timed(steps)
        long_task = self.long_work.begin(self.principal or "", steps, size, then)
        self.commands.append(RunLongTask(long_task))

    def turn_came(self, now: float) -> None:
        """Resume after other clients have had a turn."""
        self.release(PauseReason.TURN, now)

    def await_memory(self, size: int, schedule: Schedule) -> None:
        """Reserve memory when it is available, and resume."""
        principal, budget = self.principal or "", self.rules.memory

        def found() -> None:
            if self.closed:
                budget.release(principal)
                return
            self.long_work.take(budget, principal, size)
            schedule(_memory_found)

        budget.wait(principal, size, found)

    def _reserve_memory(self, size: int, now: float) -> None:
        """Reserve memory for a frame, or wait for it; unauthenticated clients are closed
        instead."""
        long_work, rules = self.long_work, self.rules
        if not self.requests.relaying:
            if not long_work.reserve(rules.unauthenticated_memory, self.connection_id, size):
                self.end(CloseReason.OVERSIZE_FRAME, now)
        elif long_work.reserve(rules.memory, self.principal or "", size):
            _memory_found(self, now)
        else:
            self.hold(PauseReason.NO_MEMORY)
            self.commands.append(AwaitMemory(size))

    def _release_memory(self) -> None:
        """Release the reserved memory if no request needs it."""
        if (
            self.long_work.reserves_any
            and not self.holds & IN_MEMORY
            and self.requests.gathered is None
        ):
            self.long_work.release_memory()

    # Backpressure

    def _read_broker(self) -> None:
        """Read from the broker, or pause reading."""
        leave = self.client_is_full or self.responses.changing
        self.commands.append(PauseBroker() if leave else ResumeBroker())

    def broker_full(self, full: bool, now: float) -> None:
        """Handle a broker that has stopped reading, or reads again."""
        if full:
            self.hold(PauseReason.BROKER_FULL)
        else:
            self.release(PauseReason.BROKER_FULL, now)
            if self._relayed_login is not None:
                self._relayed_login.settled(now)

    def client_full(self, full: bool, now: float) -> None:
        """Handle a client that has stopped reading, or reads again."""
        self.client_is_full = full
        if self.pipe.to_broker is not None:
            self._read_broker()
        if not full:
            self.release(PauseReason.CLIENT_FULL, now)

    def hold(self, reason: int) -> None:
        """Take no requests until `reason`, a bit of `PauseReason`, is released."""
        if not self.holds:
            self.commands.append(PauseClient())
        self.holds |= reason
        self.requests.hold()

    def release(self, reason: int, now: float) -> None:
        """Release reasons, bits of `PauseReason`; take requests again if no reason is left."""
        if not self.holds & reason:
            return
        if self.holds & reason & BACK_PRESSURE:
            self.stages.waited_on_purpose()
        self.holds &= ~reason
        if reason != PauseReason.NO_MEMORY or self.holds:  # otherwise it is needed now
            self._release_memory()  # before the next request is taken
        if not self.holds and not self.closed:
            self.requests.held = self.life >= Life.DRAINING
            self.commands.append(ResumeClient())
            self.requests.reconsider()
            self._resume(now)
        self.end_if_settled(now)

    # Time

    def next_deadline(self) -> float | None:
        """Return the time at which `timer` must be called; None once the connection is closed.

        It may move later while there is traffic. `WakeAt` announces when it moves earlier.
        """
        if self.life == Life.CLOSED:
            return None
        ends = self.stages.unmeasured_end
        deadline = min(self._silence_ends_at, self.long_work.looks_at, ends)
        if self.ending is None:
            deadline = min(deadline, self._ends_at[0])
        if self.is_throttled and self.throttling is not None:
            deadline = min(deadline, self.throttling.used.held_until)
        if self._upstream_login is not None:
            deadline = min(deadline, self._upstream_login.looks_at)
        if self._relayed_login is not None:
            deadline = min(deadline, self._relayed_login.ends_at)
        if self.holds & PauseReason.BROKER_DOWN:
            deadline = min(deadline, self.held_until)
        return deadline

    @property
    def _silence_ends_at(self) -> float:
        """Deadline of an idle connection, or of a client that does not authenticate."""
        waited = 0.0 if self.throttling is None else self.throttling.used.waits_until
        idle = max(self.active_at, waited, self.held_until) + self.rules.max_idle
        if self.authentication.ever_succeeded:
            return idle
        ends_at = max(self.connected_at, self.held_until) + self.rules.authentication_timeout
        if self._relayed_login is not None and self._relayed_login.is_confirming:
            ends_at = max(ends_at, self._relayed_login.ends_at)
        return min(idle, ends_at)

    def timer(self, now: float) -> None:
        """Apply the deadlines that have passed."""
        if now >= self.stages.unmeasured_end:
            self.commands.append(CountUnread())
        if now >= self._ends_at[0]:
            self.end(self._ends_at[1], now)
        if self.is_throttled and self.throttling is not None:
            if now < self.throttling.used.held_until:
                self.commands.append(WakeAt(self.throttling.used.held_until))
            else:
                self.release(PauseReason.THROTTLED, now)
        if self.long_work.is_too_slow(now) and not self.holds & PauseReason.AUTHORIZING:
            self.finish(CloseReason.IDLE, now)
        if self._upstream_login is not None:
            self._upstream_login.timer(now, client_is_full=self.client_is_full)
        if self.holds & PauseReason.BROKER_DOWN and now >= self.held_until:
            self.finish(CloseReason.BROKER_UNREACHABLE, now)
        if self._relayed_login is not None:
            self._relayed_login.timer(now)
        if self.life != Life.CLOSED and now >= self._silence_ends_at:
            self._end_silence(now)

    def _end_silence(self, now: float) -> None:
        if self.authentication.ever_succeeded:
            self.finish(CloseReason.IDLE if self.ending is None else self.ending.reason, now)
            return
        if self.requests.is_unconfirmed and not self.holds:
            self.relayed_login.confirm(now)
            return
        if isinstance(self.session.state, Authenticating):
            self.session.abandon()
            assert isinstance(self.session.state, Failed)
            self.observer.authentication_failed(self, self.session.state, now)
        self.finish(CloseReason.AUTHENTICATION_TIMEOUT, now)

    # The end

    def drain(self, now: float) -> None:
        """Take no further request; close once those under way are answered."""
        self.life = next_life(self.life, Input.DRAIN)
        self.requests.hold()
        self.end_if_settled(now)

    def client_finished(self, now: float) -> None:
        """Handle the client's EOF: answer its requests, then close, as Kafka does."""
        if self.holds & PauseReason.BROKER_DOWN:  # it has most probably gone: free its place
            self.finish(CloseReason.CLIENT_CLOSED, now)
            return
        self.life = next_life(self.life, Input.CLIENT_FINISHED)
        if self.pipe.cut_off():
            self.hold(PauseReason.CLOSING)
        self.end_if_settled(now)

    def end(self, reason: CloseReason, now: float) -> None:
        """Take no more requests; close once the earlier ones are answered."""
        self._end(Close(reason=reason), now)

    def _end(self, close: Close, now: float) -> None:
        if self.ending is None and not self.closed:
            self.ending = close
            self.life = next_life(self.life, Input.END)
            self.hold(PauseReason.CLOSING)
            self.end_if_settled(now)

    def end_if_settled(self, now: float) -> None:
        """Close if the connection is ending (`proxy.connection.life`) and nothing is under way."""
        if self.life == Life.SERVING or self.closed or self.pipe.left:
            return
        if self.life == Life.DRAINING:
            self.hold(PauseReason.CLOSING)  # so that the client's bytes do not pile up
        held_open = HELD_OPEN[self.life, self.authentication.ever_succeeded]
        if not self.responses.settled or self.holds & held_open:
            return
        if self.ending is not None:
            self.finish(self.ending.reason, now, self.ending)
        elif self.life == Life.DRAINING:
            self.finish(CloseReason.DRAINED, now)
        else:
            self.finish(CloseReason.CLIENT_CLOSED, now)

    def finish(self, reason: CloseReason, now: float, close: Close | None = None) -> None:
        """Close now, even if requests are under way, and release everything that they hold.

        A closed connection is part of a reference cycle, so the garbage collector frees it late.
        """
        if self.closed:
            return
        self.closed, self.life = True, next_life(self.life, Input.CLOSE)
        self.requests.close()
        self.responses.rest = b""
        if self._relayed_login is not None:
            self._relayed_login.forget_side()
        self.stages.drop()
        self.pipe.forget()
        self.inflight.clear()
        self.long_work.drop()
        if self.throttling is not None:
            self.throttling.closed(now)
        self.commands.append(close or Close(reason=reason))
        self.observer.closed(self, reason, now)


def finishing(reason: CloseReason) -> Callable[[Connection, float], None]:
    """Return a function that closes a connection for this reason (`Connection.finish`)."""
    return lambda connection, now: connection.finish(reason, now)


def _memory_found(connection: Connection, now: float) -> None:
    """Resume with the request for which memory is reserved."""
    connection.long_work.be_patient(now)
    connection.commands.append(WakeAt(connection.long_work.looks_at))
    connection.release(PauseReason.NO_MEMORY, now)
