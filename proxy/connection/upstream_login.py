"""Login to the broker on one connection, renewed before it expires (KIP-368).

No sockets, no clock. Laws:

- Nothing of the client goes to a broker before the login is complete: the client is held
  (`PauseReason.LOGIN`). Its requests before a renewed login are answered first, those behind it
  wait.
- Requests of the login stand in the queue among the client's own, between two whole frames.
- A session is renewed when it is used, as Kafka's clients do it: one that nobody uses never ends.
- What ends a login wrongly ends the connection: the client is never told half an answer.
"""

import random
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.connection.commands import CloseReason, DeriveKeys, GetIdentity, WakeAt
from proxy.connection.inflight import ASKED_ID, Question
from proxy.connection.pause_reasons import PauseReason
from proxy.wire.apis import response_body_at
from proxy.wire.primitives import Malformed
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.login import ClientExchange, Derive, LoggedIn, Login, LoginError, Say, Step

if TYPE_CHECKING:
    from proxy.connection.connection import Connection

RENEW_AFTER: Final = 0.85, 0.95
"""Shares of a session's lifetime between which it is renewed, at random: Kafka's clients do so,
that not all come at once and that each comes in time."""
MIN_INTERVAL: Final = 1.1
"""Seconds between two logins: Kafka refuses a second one within one second (KIP-368)."""
LOOK_SECONDS: Final = 1.0
"""Between two looks whether an answer is due."""
PATIENCE: Final = 10.0
"""Seconds for an answer, once those before it are there."""


class UpstreamLogin:
    """Login of the proxy on one connection to a broker. See the laws at the head of this module."""

    __slots__ = ("_connection", "_is_renewal", "_login", "_looks_at", "_overdue_at", "_owed")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._is_renewal = False
        self._login: Login | None = None
        """The login under way; None: there is none, or the identity is being looked up."""
        self._owed: Question | None = None
        """Queue entry of the answer that is awaited; None: none is."""
        self._overdue_at: float | None = None
        """Deadline of the answer, in monotonic seconds; None: it is not its turn yet."""
        self._looks_at = inf
        """Time of the next look whether it is its turn, in monotonic seconds."""

    def begin(self) -> None:
        """Log in, or log in again, before anything else is sent."""
        self._connection.requests.renew_at = inf
        self._connection.hold(PauseReason.LOGIN)
        self._connection.commands.append(GetIdentity())

    def identified(self, exchange: ClientExchange, now: float) -> None:
        """Go on with the identity of the proxy."""
        login = self._login = Login(exchange, self._connection.target.sasl_version)
        self._advance(login.begin, now)

    def derived(self, token: bytes, now: float) -> None:
        """Go on with the keys that `DeriveKeys` asked for."""
        login = self._login
        assert login is not None
        self._advance(lambda: login.derived(token), now)

    def failed(self, error: LoginError, now: float) -> None:
        """There is no login, and so no connection."""
        self._login = self._owed = None
        connection = self._connection
        connection.observer.login_failed(connection, error.reason, again=self._is_renewal)
        connection.finish(CloseReason.BROKER_LOGIN_FAILED, now)

    def broker_closed(self, now: float) -> None:
        """The broker is gone: a login that is under way fails."""
        if self._login is not None:
            self.failed(LoginError("it closed the connection instead of answering"), now)

    def next_deadline(self) -> float:
        """Return when `timer` has anything to do, in monotonic seconds; infinity: never."""
        return inf if self._owed is None else self._looks_at

    def timer(self, now: float) -> None:
        """Give up on a broker that does not answer; others' requests may take their time first."""
        self._looks_at = now + LOOK_SECONDS
        owed = self._connection.inflight.next
        is_due = owed is not None and owed[1] is self._owed
        if not is_due or self._connection.client_is_full:
            self._overdue_at = None
        elif self._overdue_at is None:
            self._overdue_at = now + PATIENCE
        elif now >= self._overdue_at:
            self.failed(LoginError(f"no answer within {PATIENCE:g} s"), now)

    def _advance(self, step: Callable[[], Step], now: float) -> None:
        try:
            following = step()
        except LoginError as error:
            self.failed(error, now)
            return
        match following:
            case Say():
                self._say(following, now)
            case Derive(work):
                self._connection.commands.append(DeriveKeys(work))
            case LoggedIn(session_lifetime_ms):
                self._succeeded(session_lifetime_ms, now)

    def _say(self, say: Say, now: float) -> None:
        question = Question(say.api_key, say.api_version, self._answered)
        self._owed, self._overdue_at, self._looks_at = question, None, now + LOOK_SECONDS
        self._connection.commands.append(WakeAt(self._looks_at))
        self._connection.ask(
            question, request_frame(say.api_key, say.api_version, ASKED_ID, CLIENT_ID, say.body)
        )

    def _answered(self, content: bytes, now: float) -> None:
        """Take the broker's answer."""
        login, owed = self._login, self._owed
        self._owed = None
        if login is not None and owed is not None:
            self._advance(lambda: login.answered(_body(owed, content)), now)

    def _succeeded(self, session_lifetime_ms: int, now: float) -> None:
        connection = self._connection
        self._login = None
        connection.observer.logged_in(again=self._is_renewal)
        self._is_renewal = True
        if session_lifetime_ms:
            lasts = session_lifetime_ms / 1000 * random.uniform(*RENEW_AFTER)  # noqa: S311 - no secret
            connection.requests.renew_at = now + max(MIN_INTERVAL, lasts)
        connection.release(PauseReason.LOGIN, now)


def _body(route: Question, content: bytes) -> bytes:
    """Return a response's body, behind its header. Raises LoginError."""
    try:
        return content[response_body_at(route.api_key, route.api_version, content) :]
    except Malformed:
        raise LoginError("an answer whose header does not parse") from None
