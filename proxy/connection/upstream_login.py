"""Login to the broker on one connection, renewed before it expires (KIP-368).

No sockets, no clock. Laws:

- Nothing of the client goes to a broker before the login is complete: the client is held
  (`PauseReason.LOGIN`). Its requests before a renewed login are answered first, those behind it
  wait.
- Requests of the login stand in the queue among the client's own, between two whole frames.
- A session is renewed when it is used, as Kafka's clients do it: one that nobody uses never ends.
- What ends a login wrongly ends the connection: the client is never given half a response.
"""

import random
from collections.abc import Callable
from math import inf
from typing import Final

from proxy.connection.inflight import ASKED_ID, InFlight, Question
from proxy.wire.apis import response_body_at
from proxy.wire.primitives import Malformed
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.login import ClientExchange, Login, LoginError, Send, Step

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
    """Login of the proxy on one connection to a broker. See the laws at the head of this module.

    Its methods return the next step, and raise LoginError.
    """

    __slots__ = ("_inflight", "_login", "_overdue_at", "_owed", "is_renewal", "looks_at")

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self.is_renewal = False
        """True if it is not the connection's first login."""
        self._login: Login | None = None
        """The login under way; None: there is none, or the identity is being looked up."""
        self._owed: Question | None = None
        """Queue entry of the answer that is awaited; None: none is."""
        self._overdue_at: float | None = None
        """Deadline of the answer, in monotonic seconds; None: it is not its turn yet."""
        self.looks_at = inf
        """Time of the next look whether it is its turn, in monotonic seconds; infinity: none is
        awaited."""

    @property
    def is_under_way(self) -> bool:
        """Return whether the broker has yet to accept the login."""
        return self._login is not None

    def identified(self, exchange: ClientExchange, sasl_version: int) -> Step:
        """Go on with the identity of the proxy; the broker has this version of SaslAuthenticate."""
        self._login = Login(exchange, sasl_version)
        return self._login.begin()

    def derived(self, token: bytes) -> Step:
        """Go on with the keys that were to be derived."""
        assert self._login is not None
        return self._login.derived(token)

    def asked(
        self, request: Send, answered: Callable[[bytes, float], None], now: float
    ) -> tuple[Question, bytes]:
        """Return the queue entry and the frame of a request; `answered` takes the answer."""
        self._owed = Question(request.api_key, request.api_version, answered)
        self._overdue_at, self.looks_at = None, now + LOOK_SECONDS
        return self._owed, request_frame(
            request.api_key, request.api_version, ASKED_ID, CLIENT_ID, request.body
        )

    def answered(self, content: bytes) -> Step | None:
        """Go on with the broker's answer; None: nobody waits for it."""
        login, owed = self._login, self._owed
        self._owed, self.looks_at = None, inf
        return None if login is None or owed is None else login.answered(_body(owed, content))

    def over(self) -> None:
        """The login succeeded or failed."""
        self._login, self._owed, self.looks_at = None, None, inf

    def renewal_at(self, session_lifetime_ms: int, now: float) -> float:
        """Return when to log in again, in monotonic seconds; infinity: never. A login succeeded."""
        self.over()
        self.is_renewal = True
        if not session_lifetime_ms:
            return inf
        lasts = session_lifetime_ms / 1000 * random.uniform(*RENEW_AFTER)  # noqa: S311 - no secret
        return now + max(MIN_INTERVAL, lasts)

    def check_patience(self, now: float, *, client_is_full: bool) -> None:
        """Give up on a broker that does not answer; others' requests may take their time first.

        Raises LoginError.
        """
        if self._owed is None:
            return
        self.looks_at = now + LOOK_SECONDS
        owed = self._inflight.next
        if owed is None or owed[1] is not self._owed or client_is_full:
            self._overdue_at = None
        elif self._overdue_at is None:
            self._overdue_at = now + PATIENCE
        elif now >= self._overdue_at:
            raise LoginError(f"no answer within {PATIENCE:g} s")


def _body(route: Question, content: bytes) -> bytes:
    """Return a response's body, behind its header. Raises LoginError."""
    try:
        return content[response_body_at(route.api_key, route.api_version, content) :]
    except Malformed:
        raise LoginError("an answer whose header does not parse") from None
