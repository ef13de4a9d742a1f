"""Logins to brokers on one connection: the proxy's own, and a client's that is relayed.

No sockets, no clock. Both machines use the connection through `LoginHost`, and hold its client
(`PauseReason.LOGIN`) while the broker has a message to answer. Their requests are queued between
whole requests of the client (`proxy.connection.inflight`).

Rules of the proxy's own login (KIP-368):

- No request reaches a broker before the login is complete. Requests before a renewed login are
  answered first; those after it wait.
- A session is renewed when it is used, as Kafka's clients do: an unused session never ends.
- A failed login ends the connection: the client never receives half a response.

Rules of a relayed login:

- One message of a login is under way at a time.
- A side connection carries one login and nothing else, so this module cuts its responses into
  frames. It is bounded in time (`ends_at`) and in bytes (`MAX_RESPONSE_BYTES`), and unsolicited
  bytes are a broker fault.
- A broker that checks which node is meant (KIP-1242) is identified once on the connection of the
  requests, and asked on each side connection after the login: if it is another node, the
  re-authentication fails.
- A client that wants an unknown broker logs in at another one (`RelayedLogin.wanted`). After the
  login the proxy asks that broker for the cluster's brokers, and closes. By the time the client
  reconnects, its broker is known. No request of the client is forwarded.
"""

import random
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from proxy.connection.authentication import Authentication
from proxy.connection.commands import (
    Close,
    CloseReason,
    CloseSideConnection,
    Command,
    ConnectToBroker,
    DeriveKeys,
    MoveToSideConnection,
    OpenSideConnection,
    Relay,
    SessionChanged,
    Verdict,
    WakeAt,
)
from proxy.connection.frames import RESPONSE_HEAD, SIZE, Bytes
from proxy.connection.inflight import ASKED_ID, InFlight, Question
from proxy.connection.interfaces import ConnectionRules, Observer, UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.connection.requests import Requests
from proxy.connection.responses import Responses
from proxy.errors import BrokerFault
from proxy.wire import metadata
from proxy.wire.api_versions import (
    REBOOTSTRAP_REQUIRED,
    BrokerIdentity,
    Identification,
    Query,
    identify,
    meaning,
    metadata_version,
    names_itself,
)
from proxy.wire.apis import API_VERSIONS, METADATA, response_body_at
from proxy.wire.primitives import INT16, Malformed
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.login import ClientExchange, Derive, LoggedIn, Login, LoginError, Send, Step
from sasl.mechanism import FailureReason
from sasl.messages import MAX_RESPONSE_BYTES
from sasl.relayed import RelayedSession
from sasl.states import Authenticated, Channel, Failed

RENEW_AFTER: Final = 0.85, 0.95
"""Range of the share of a session's lifetime after which it is renewed, chosen at random as in
Kafka's clients, so that renewals spread out and come in time."""
MIN_INTERVAL: Final = 1.1
"""Seconds between two logins: Kafka refuses a second one within one second (KIP-368)."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two checks whether the response to a login is next in the queue."""
PATIENCE: Final = 10.0
"""Seconds for that response once it is next."""

CONFIRMATION: Final = request_frame(API_VERSIONS, 0, ASKED_ID, CLIENT_ID, b"")
"""Request that a broker answers without an error before or after a login, but not during one."""
CONFIRM_SECONDS: Final = 10.0
"""Seconds for its response."""
ABSENT_SECONDS: Final = 3.0
"""Delay in seconds of the close of a client whose broker is not in the cluster, or not now: each
reconnect costs a login."""
MAX_NODES_TRIED: Final = 16
"""Maximum number of nodes that a broker is asked for on a client's connection."""

_CLIENTS_OWN_HOLDS: Final = PauseReason.CLIENT_FULL | PauseReason.IN_FLIGHT | PauseReason.THROTTLED
"""Reasons for a hold that a client can cause and prolong itself."""


class LoginHost(Protocol):
    """Interface of a `proxy.connection.connection.Connection` to its logins."""

    commands: list[Command]
    holds: int
    active_at: float
    closed: bool
    ending: Close | None
    rules: ConnectionRules
    target: UpstreamBroker
    observer: Observer[Any]
    authentication: Authentication
    pipe: RequestPipe
    inflight: InFlight
    requests: Requests
    responses: Responses

    def hold(self, reason: int) -> None:
        """Hold the client for a reason, a bit of `PauseReason`."""

    def release(self, reason: int, now: float) -> None:
        """Release a reason."""

    def ask(self, question: Question, frame: bytes, correlation_id: int = ASKED_ID) -> None:
        """Write a request of the proxy's own to the broker."""

    def carry_out(self, verdict: Verdict, now: float) -> None:
        """Carry out a verdict."""

    def end(self, reason: CloseReason, now: float) -> None:
        """Close after the requests so far have been answered."""

    def finish(self, reason: CloseReason, now: float) -> None:
        """Close now."""


class UpstreamLogin:
    """The proxy's own login. The module docstring has its rules."""

    __slots__ = ("_host", "_login", "_overdue_at", "_owed", "is_renewal", "looks_at")

    def __init__(self, host: LoginHost) -> None:
        self._host = host
        self.is_renewal = False
        """True if it is not the connection's first login."""
        self._login: Login | None = None
        """Login under way; None before and after a login, and while the identity is looked up."""
        self._owed: Question | None = None
        """Queue entry of the expected response; None if no response is expected."""
        self._overdue_at: float | None = None
        """Deadline of that response, in monotonic seconds; None until it is next in the queue."""
        self.looks_at = inf
        """Time of the next check of the queue for that response, in monotonic seconds; inf if no
        check is due."""

    def identified(self, exchange: ClientExchange, now: float) -> None:
        """Log in with this identity of the proxy."""
        self._login = Login(exchange, self._host.target.sasl_version)
        self._take_step(self._login.begin, now)

    def derived(self, token: bytes, now: float) -> None:
        """Continue with the derived keys (`DeriveKeys`)."""
        assert self._login is not None
        self._take_step(partial(self._login.derived, token), now)

    def _answered(self, content: bytes, now: float) -> None:
        login, owed = self._login, self._owed
        self._owed, self.looks_at = None, inf
        if login is not None and owed is not None:
            self._take_step(lambda: login.answered(_body(owed, content)), now)

    def _take_step(self, take: Callable[[], Step], now: float) -> None:
        host = self._host
        try:
            step = take()
        except LoginError as error:
            self.failed(error, now)
            return
        if isinstance(step, Send):
            self._owed = Question(step.api_key, step.api_version, self._answered)
            self._overdue_at, self.looks_at = None, now + LOOK_SECONDS
            host.commands.append(WakeAt(self.looks_at))
            frame = request_frame(step.api_key, step.api_version, ASKED_ID, CLIENT_ID, step.body)
            host.ask(self._owed, frame)
        elif isinstance(step, Derive):
            host.commands.append(DeriveKeys(step.work))
        elif isinstance(step, LoggedIn):
            host.observer.logged_in(again=self.is_renewal)
            host.observer.reached_broker(host)
            host.requests.renew_at = self._renewal_at(step.session_lifetime_ms, now)
            host.release(PauseReason.LOGIN, now)

    def _renewal_at(self, session_lifetime_ms: int, now: float) -> float:
        """Return when to log in again, in monotonic seconds; inf if never."""
        self._over()
        self.is_renewal = True
        if not session_lifetime_ms:
            return inf
        lasts = session_lifetime_ms / 1000 * random.uniform(*RENEW_AFTER)  # noqa: S311 - no secret
        return now + max(MIN_INTERVAL, lasts)

    def _over(self) -> None:
        self._login, self._owed, self.looks_at = None, None, inf

    def failed(self, error: LoginError, now: float) -> None:
        """Close the connection: the login failed."""
        self._over()
        self._host.observer.login_failed(self._host, error.reason, again=self.is_renewal)
        self._host.finish(CloseReason.BROKER_LOGIN_FAILED, now)

    def broker_closed(self, now: float) -> None:
        """Handle the end of the upstream connection."""
        if self._login is not None and not self._host.closed:
            self.failed(LoginError("it closed the connection instead of answering"), now)

    def timer(self, now: float, *, client_is_full: bool) -> None:
        """Give up on a broker that does not respond; responses before that one may take longer."""
        if self._owed is None:
            return
        self.looks_at = now + LOOK_SECONDS
        owed = self._host.inflight.next
        if owed is None or owed[1] is not self._owed or client_is_full:
            self._overdue_at = None
        elif self._overdue_at is None:
            self._overdue_at = now + PATIENCE
        elif now >= self._overdue_at:
            self.failed(LoginError(f"no answer within {PATIENCE:g} s"), now)


def _body(route: Question, content: bytes) -> bytes:
    """Return a response's body. Raises LoginError."""
    try:
        return content[response_body_at(route.api_key, route.api_version, content) :]
    except Malformed:
        raise LoginError("an answer whose header does not parse") from None


class RelayedLogin:
    """Login of a client that its broker authenticates. The module docstring has its rules."""

    __slots__ = (
        "_data",
        "_expected",
        "_host",
        "_identification",
        "_is_identified",
        "_is_moving",
        "_session",
        "_to_side",
        "_unsent",
        "_waits_since",
        "confirmation",
        "ends_at",
        "is_confirming",
        "wanted",
    )

    def __init__(self, host: LoginHost, session: RelayedSession, wanted: int | None) -> None:
        self._host = host
        self._session = session
        self.wanted = wanted
        """Id of the unknown broker that the client wants; None if its broker is known."""
        self._unsent: Relay | None = None
        """Message that waits for its connection; None if no message waits."""
        self._waits_since = 0.0
        """Time since which the login has waited for the client's next message, in monotonic
        seconds; part of a message does not reset it."""
        self._to_side: Callable[[Bytes], None] | None = None
        """Function that writes to the side connection; None if no side connection is open."""
        self.ends_at = inf
        """Deadline of a re-authentication on a side connection, of a confirmation, or of the
        request for the cluster's brokers, in monotonic seconds; inf if no deadline applies."""
        self._is_moving = False
        """True if requests will move to the side connection once those in flight are answered."""
        self.is_confirming = False
        """True while the broker is asked whether a login is complete."""
        self.confirmation = CONFIRMATION
        """Request that a broker answers without an error after a login; on a side connection only
        the broker of the requests does, if it checks which node is meant."""
        self._is_identified = False
        """True if the broker of the requests has been identified, as far as possible."""
        self._identification: Identification | None = None
        """Identification of the broker while it is under way; None otherwise."""
        self._expected: int | None = None
        """Correlation id of the expected response on the side connection; -1 for the response to a
        raw token, which has no correlation id; None if no response is expected."""
        self._data = bytearray()
        """Available part of that response."""

    # Messages, and their responses

    def relay(self, message: Relay, now: float) -> None:
        """Send a message of the client to the broker, over the connection that it is for."""
        host = self._host
        host.hold(PauseReason.LOGIN)
        if message.channel is Channel.SIDE:
            if self._to_side is None:
                self._open_side(message, now)
                return
            self._ask_aside(message.frame, message.correlation_id)
        elif host.pipe.to_broker is None:
            self._unsent = message
            host.commands.append(ConnectToBroker())
            return
        else:
            self._ask(message)
        if self._session.is_unconfirmed:
            host.requests.is_unconfirmed = True
            self._resume(now)

    def _ask(self, message: Relay) -> None:
        raw = message.correlation_id is None
        question = Question(message.api_key, message.api_version, self._answered, is_raw=raw)
        self._host.ask(question, message.frame, message.correlation_id or 0)

    def _answered(self, content: bytes, now: float) -> None:
        """Process the broker's response to a message. Raises BrokerFault."""
        if isinstance(self._session.state, Failed):
            return
        self._host.carry_out(self._host.authentication.relayed(content, now), now)
        self._resume(now)

    def _resume(self, now: float) -> None:
        """Read the client again, unless the proxy waits for something else."""
        if not (self._is_moving or self.is_confirming):
            self._waits_since = now
            self._host.release(PauseReason.LOGIN, now)

    @property
    def unsent_bytes(self) -> int:
        """Size in bytes of the message that waits for its connection."""
        return 0 if self._unsent is None else len(self._unsent.frame)

    def broker_connected(self) -> None:
        """Send the message that waited for the upstream connection."""
        if self._unsent is not None:
            message, self._unsent = self._unsent, None
            self._ask(message)

    def authenticated(self, now: float) -> None:
        """Handle the client's login, or re-authentication, which succeeded."""
        if self._to_side is not None:
            if self._session.moves:
                self._is_moving = True
                self._host.hold(PauseReason.LOGIN)
                self.settled(now)
            else:
                self.close_side()
        if self.wanted is not None:
            self._learn_brokers(now)

    def silence(self, now: float) -> float:
        """Return for how many seconds the login has waited for its client; 0 while it waits for the
        broker or the proxy.

        Waiting for responses to the client's earlier requests is waiting for the client, which may
        have asked the broker to respond late (a Fetch's `max_wait_ms`).
        """
        owed = self._host.inflight.next
        waits_behind_requests = (
            self.is_confirming
            and self._identification is not None
            and owed is not None
            and not isinstance(owed[1], Question)
        )
        if self._host.holds & ~_CLIENTS_OWN_HOLDS and not waits_behind_requests:
            return 0.0
        return now - self._waits_since

    def failed(self, reason: FailureReason, now: float) -> None:
        """Close the connection: the login cannot be completed."""
        host = self._host
        if host.closed or isinstance(self._session.state, Failed):
            return
        self._session.abandon(reason)
        assert isinstance(self._session.state, Failed)
        host.observer.authentication_failed(host, self._session.state, now)
        host.finish(CloseReason.AUTHENTICATION_FAILED, now)

    def broker_closed(self, now: float) -> None:
        """Handle the end of the upstream connection."""
        if self._session.is_awaited:
            self.failed(self._session.closed_reason, now)

    def timer(self, now: float) -> None:
        """Give up at `ends_at`."""
        if now < self.ends_at:
            return
        if self.wanted is None:
            self.failed(FailureReason.TIMEOUT, now)
        else:
            self._host.finish(CloseReason.BROKER_FAULT, now)

    # Identification of the broker, and confirmation of a login

    def _identify(self, query: Query | None) -> None:
        """Send the next query of the identification; None if it is over."""
        self._session.confirms_aside = (
            self._identification is not None or self.confirmation != CONFIRMATION
        )
        if query is not None:
            api_key, api_version, body = query
            frame = request_frame(api_key, api_version, ASKED_ID, CLIENT_ID, body)
            self._host.ask(Question(api_key, api_version, self._identified), frame)

    def _begin_identification(self) -> Query | None:
        """Return the first query of the identification; None if it is not needed or not
        possible."""
        target = self._host.target
        offered = target.offered
        if self._is_identified or self._identification is not None or offered is None:
            return None
        if not names_itself(offered):
            self._is_identified = True
            return None
        node_id = next(iter(target.identity.node_ids), None)
        self._identification = identify(offered, target.address, node_id, MAX_NODES_TRIED)
        return self._next_query(None)

    def _next_query(self, answer: bytes | None) -> Query | None:
        steps = self._identification
        assert steps is not None
        try:
            return next(steps) if answer is None else steps.send(answer)
        except StopIteration as found:
            self._identification = None
            self._is_identified = True
            identity: BrokerIdentity = found.value
            for node_id in identity.node_ids:
                assert identity.cluster_id is not None
                api_key, version, body = meaning(identity.cluster_id, node_id)
                self.confirmation = request_frame(api_key, version, ASKED_ID, CLIENT_ID, body)
            return None

    def _identified(self, content: bytes, now: float) -> None:
        """Process a response of the identification. Raises BrokerFault."""
        self._identify(self._next_query(content[SIZE.size :]))
        if self.is_confirming and self._identification is None:
            self.confirm(now)

    def confirm(self, now: float) -> None:
        """Ask the broker whether a login is complete; on a side connection, once the broker of the
        requests is identified."""
        host = self._host
        host.hold(PauseReason.LOGIN)
        self.is_confirming = True
        if self._to_side is not None and self._identification is not None:
            self._waits_since = now
            return
        self.ends_at = min(self.ends_at, now + CONFIRM_SECONDS)
        host.commands.append(WakeAt(self.ends_at))
        if self._to_side is not None:
            self._ask_aside(self.confirmation, ASKED_ID)
        else:
            if host.inflight.owes_raw:
                host.inflight.forget_last()  # the last token gets no response
            host.ask(Question(API_VERSIONS, 0, self._confirmed), CONFIRMATION)

    def _confirmed(self, content: bytes, now: float) -> None:
        """Process the response to a confirmation. Raises BrokerFault."""
        self.is_confirming = False
        if self._to_side is None:
            self.ends_at = inf
        if len(content) < SIZE.size + INT16.size:
            raise BrokerFault("a response that is too short")
        error_code: int = INT16.unpack_from(content, SIZE.size)[0]
        if error_code == REBOOTSTRAP_REQUIRED:  # another node
            self.failed(FailureReason.BROKER_UNAVAILABLE, now)
            return
        self._session.confirmed(error_code, now)
        self._host.carry_out(SessionChanged(None, is_relayed=True), now)
        self._resume(now)

    # The side connection of a re-authentication

    def _open_side(self, message: Relay, now: float) -> None:
        self._unsent = message
        session = self._session.state
        assert isinstance(session, Authenticated)
        self._identify(self._begin_identification())
        until = now if session.deadline is None else max(now, session.deadline)
        self.ends_at = max(until, now + self._host.rules.authentication_timeout)
        self._host.commands += (WakeAt(self.ends_at), OpenSideConnection(until))

    def side_connected(self, to_side: Callable[[Bytes], None], now: float) -> None:
        """Send the waiting message on the side connection, which is open."""
        message, self._unsent, self._to_side = self._unsent, None, to_side
        if message is None:
            self.failed(FailureReason.TIMEOUT, now)
            return
        self.ends_at = now + self._host.rules.authentication_timeout
        self._host.commands.append(WakeAt(self.ends_at))
        self._ask_aside(message.frame, message.correlation_id)

    def _ask_aside(self, frame: bytes, correlation_id: int | None) -> None:
        assert self._to_side is not None
        self._expected = -1 if correlation_id is None else correlation_id & 0xFFFFFFFF
        self._to_side(frame)

    def side_bytes(self, data: Bytes, now: float) -> None:
        """Process bytes that were read from the side connection."""
        if self._to_side is None:
            return  # it is being closed
        self._host.active_at = now
        try:
            content = self._side_answer(data)
            if content is not None and self.is_confirming:
                self._confirmed(content, now)
            elif content is not None:
                self._answered(content, now)
        except BrokerFault:
            self.failed(FailureReason.BROKER_FAULT, now)

    def _side_answer(self, data: Bytes) -> bytes | None:
        """Return the response without its size; None if it is incomplete. Raises BrokerFault."""
        if self._expected is None:
            raise BrokerFault("an unsolicited response")
        self._data += data
        if len(self._data) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._data)
        if not 0 <= size <= MAX_RESPONSE_BYTES or len(self._data) > SIZE.size + size:
            raise BrokerFault(
                "a response to a login, of an impossible size or with more bytes after it"
            )
        if len(self._data) < SIZE.size + size:
            return None
        if self._expected >= 0:
            if size < SIZE.size:
                raise BrokerFault("a response to a login, of an impossible size")
            _, correlation_id = RESPONSE_HEAD.unpack_from(self._data)
            if correlation_id & 0xFFFFFFFF != self._expected:
                raise BrokerFault("a response with the wrong correlation id")
        content = bytes(self._data[SIZE.size :])
        self._data.clear()
        self._expected = None
        return content

    def side_closed(self, now: float) -> None:
        """Fail: the broker closed the side connection before the re-authentication was over."""
        if self._to_side is not None:
            self.failed(self._session.closed_reason, now)

    def side_unreachable(self, now: float) -> None:
        """Fail: the side connection could not be opened in time."""
        self.failed(FailureReason.BROKER_UNAVAILABLE, now)

    def close_side(self) -> None:
        """Close the side connection, if there is one."""
        if self._to_side is not None:
            self.forget_side()
            self._host.commands.append(CloseSideConnection())

    def settled(self, now: float) -> None:
        """Move requests to the side connection, if a move is pending and no response is owed."""
        host = self._host
        if (
            not self._is_moving
            or not host.responses.settled
            or host.holds & PauseReason.BROKER_FULL
        ):
            return
        host.pipe.flush()
        host.pipe.to_broker = self._to_side
        self.forget_side()
        self._session.moved()
        host.commands.append(MoveToSideConnection())
        host.release(PauseReason.LOGIN, now)

    def forget_side(self) -> None:
        """Forget the side connection, which is closed or has taken over the requests."""
        self._to_side = self._expected = None
        self.ends_at = inf
        self._is_moving = False
        self._data.clear()

    # A client that wants an unknown broker

    def _learn_brokers(self, now: float) -> None:
        """Ask the broker for the cluster's brokers, and close after its response."""
        host = self._host
        offered = host.target.offered
        known = None if offered is None else metadata_version(offered)
        version = metadata.LOWEST_VERSION if known is None else known
        body = metadata.write_request(version)
        frame = request_frame(METADATA, version, ASKED_ID, CLIENT_ID, body)
        host.ask(Question(METADATA, version, partial(self._learned, version)), frame)
        self.ends_at = now + CONFIRM_SECONDS
        host.commands.append(WakeAt(self.ends_at))
        host.end(CloseReason.BROKER_UNKNOWN, now)

    def _learned(self, version: int, content: bytes, _now: float) -> None:
        """Process the broker's list of brokers. Raises BrokerFault."""
        view = metadata.parse_response(version, content[SIZE.size :])
        self._host.target.learn(view.brokers)
        if self.wanted not in view.brokers:
            absent = Close(reason=CloseReason.BROKER_UNKNOWN, delay=ABSENT_SECONDS)
            self._host.ending = absent
