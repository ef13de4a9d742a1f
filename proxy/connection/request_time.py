"""Request time of one connection, as its worker measures it (request_percentage, KIP-124)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.connection.pause_reasons import PauseReason
from proxy.connection.throttling import Throttling
from proxy.scheduling.steps import Steps, T, timed

if TYPE_CHECKING:
    from proxy.connection.connection import Connection

_REQUEST_WAITS: Final = (
    PauseReason.NO_BROKER
    | PauseReason.WAITING
    | PauseReason.NO_MEMORY
    | PauseReason.AUTHORIZING
    | PauseReason.LOGIN
    | PauseReason.TURN
)
"""Reasons for which a client is held before a request that will be answered: `resume`, or the
answer itself."""


class Stopwatch:
    """Measures the time that one connection takes (request_percentage, KIP-124).

    It is charged where it can be told: with an answer of the proxy's own, before that leaves, or
    with the last response that is owed, when the bytes that were read are dealt with. What has no
    such answer yet is charged with what comes: the time for part of a request, for one that waits,
    for the broker's bytes. Only what nobody answers (a Produce with acks=0) is charged untold.
    """

    __slots__ = (
        "_began",
        "_charged",
        "_clock",
        "_connection",
        "_spent_ns",
        "_throttle",
        "_ticking",
    )

    def __init__(
        self, connection: "Connection", throttle: Throttling, clock: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._throttle = throttle
        self._clock = clock
        self._spent_ns = 0
        self._ticking = False
        self._began = 0
        """Start of the time that is not in `_spent_ns` yet, in ns, while it is ticking."""
        self._charged = connection.pipe.requests
        """Number of requests when time was charged last."""

    @classmethod
    def fit(cls, connection: "Connection", throttle: Throttling, clock: Callable[[], int]) -> None:
        """Time a connection if, and as long as, it has such a quota."""
        if not throttle.used.times_requests:
            connection.stopwatch = None
        elif connection.stopwatch is None:
            connection.stopwatch = cls(connection, throttle, clock)

    def start(self) -> bool:
        """Begin to measure; False: it is being measured already."""
        if self._ticking:
            return False
        self._ticking, self._began = True, self._clock()
        return True

    def stop(self, now: float) -> None:
        """End what `start` began, and charge for it if an answer can carry the time."""
        self._ticking = False
        self._spent_ns += self._clock() - self._began
        connection = self._connection
        if (
            connection.pipe.requests != self._charged
            and connection.requests.relaying
            and not (connection.closed or connection.holds & _REQUEST_WAITS)
            and (ms := self._throttle.used.spent(self.lap(), now))
        ):
            self._throttle.tell(ms, now)

    def timed(self, steps: Steps[T]) -> Steps[T]:
        """Take long work's steps, and the time for them."""
        return timed(steps, self._took, self._clock)

    def _took(self, nanoseconds: int) -> None:
        self._spent_ns += nanoseconds

    def add(self, nanoseconds: int, now: float) -> None:
        """Add the time (ns) that a thread spent on a request."""
        self._took(nanoseconds)
        if self._connection.closed:
            self.close(now)

    def close(self, now: float) -> None:
        """The connection is closed: charge for what it has had.

        Or who asks for much, and does not wait for the answer, would have it for nothing.
        """
        self._throttle.used.left(self.lap(), now)

    def lap(self) -> int:
        """Return the time (ns) that was not charged yet, which the caller charges now."""
        if self._ticking:
            began, self._began = self._began, self._clock()
            self._spent_ns += self._began - began
        self._charged = self._connection.pipe.requests
        spent, self._spent_ns = self._spent_ns, 0
        return spent
