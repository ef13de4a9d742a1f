"""Request time of one connection, as its worker measures it (request_percentage, KIP-124).

It is charged where it can be announced: with an answer of the proxy's own, before that leaves, or
with the last response that is owed, when the bytes that were read are dealt with. What has no such
answer yet is charged with what comes: the time for part of a request, for one that waits, for the
broker's bytes. Only what nobody answers (a Produce with acks=0) is charged unannounced.
"""

from collections.abc import Callable

from proxy.connection.pipe import RequestPipe
from proxy.scheduling.steps import Steps, T, timed


class Stopwatch:
    """Measures the time that one connection takes."""

    __slots__ = ("_began", "_charged", "_clock", "_pipe", "_spent_ns", "_ticking")

    def __init__(self, clock: Callable[[], int], pipe: RequestPipe) -> None:
        self._clock = clock
        self._pipe = pipe
        self._spent_ns = 0
        self._ticking = False
        self._began = 0
        """Start of the time that is not in `_spent_ns` yet, in ns, while it is ticking."""
        self._charged = pipe.requests
        """Number of requests when time was charged last."""

    def start(self) -> bool:
        """Begin to measure; False: it is being measured already."""
        if self._ticking:
            return False
        self._ticking, self._began = True, self._clock()
        return True

    def stop(self) -> bool:
        """End what `start` began; return whether requests came for which to charge."""
        self._ticking = False
        self._spent_ns += self._clock() - self._began
        return self._pipe.requests != self._charged

    def timed(self, steps: Steps[T]) -> Steps[T]:
        """Take long work's steps, and the time for them."""
        return timed(steps, self.add, self._clock)

    def add(self, nanoseconds: int) -> None:
        """Add time that was spent elsewhere."""
        self._spent_ns += nanoseconds

    def lap(self) -> int:
        """Return the time (ns) that was not charged yet, which the caller charges now."""
        if self._ticking:
            began, self._began = self._began, self._clock()
            self._spent_ns += self._began - began
        self._charged = self._pipe.requests
        spent, self._spent_ns = self._spent_ns, 0
        return spent
