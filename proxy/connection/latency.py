"""Latency of requests, sampled: the broker's part of it, and the proxy's.

Laws:

- A listener of a worker begins to time one request in `SAMPLE_SECONDS` at most, and a connection
  has one that is timed: at little load these are all, at much load their cost stays the same.
- The broker's part begins when all of the request was written to it, and ends with the first bytes
  of its response. The proxy's part is the rest: from the read that completed the request, or at
  which it began to wait (for a judgement, memory, a quota, a connection), and from the read that
  completed the response.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from proxy.connection.frames import Owed

SAMPLE_SECONDS: Final = 0.01

Report = Callable[[int, float, float], None]
"""`report(api_key, broker, proxy)`: a request was answered; both parts in seconds."""


class TimedRequest:
    """A request that is timed."""

    __slots__ = ("_completed_at", "_forwarded_at", "_responded_at", "_sampler", "_spent", "owed")

    def __init__(
        self, sampler: "LatencySampler", owed: Owed, arrived_at: float, forwarded_at: float
    ) -> None:
        self.owed = owed
        """Its entry in the in-flight queue; equal, not identical: compiled, tuples are values."""
        self._sampler = sampler
        self._spent = forwarded_at - arrived_at
        """The proxy's part of the way to the broker, in seconds."""
        self._forwarded_at = forwarded_at
        self._responded_at = inf
        """Time of the response's first bytes; inf: none came."""
        self._completed_at = inf
        """Time at which the response could be sent; inf: not yet."""

    def responding(self, now: float) -> None:
        """Take notice of bytes of the response, which were read at `now`."""
        self._responded_at = min(self._responded_at, now)

    def complete(self, now: float) -> None:
        """Take notice that nothing is missing of the response, or it is sent as it comes."""
        self._completed_at = min(self._completed_at, now)

    def responded(self) -> None:
        """The client was sent the response, or its first bytes."""
        proxy = self._spent + self._sampler.clock() - self._completed_at
        self._sampler.report(self.owed[1].api_key, self._responded_at - self._forwarded_at, proxy)


class LatencySampler:
    """Chooses the requests of one listener that are timed."""

    __slots__ = ("clock", "due", "report")

    def __init__(self, clock: Callable[[], float], report: Report, due: float = 0.0) -> None:
        self.clock = clock
        """Clock that the `now` of connections is from, in seconds."""
        self.report = report
        self.due = due
        """Time from which on the next request is timed; inf: none is."""

    def begin(self, owed: Owed, arrived_at: float) -> TimedRequest:
        """Return what times a request that was just written to the broker."""
        now = self.clock()
        self.due = now + SAMPLE_SECONDS
        return TimedRequest(self, owed, arrived_at, now)


UNSAMPLED: Final = LatencySampler(lambda: 0.0, lambda _key, _broker, _proxy: None, due=inf)
