"""Rate limit on the events of connections that never authenticated.

A failed login costs its sender nothing. Two thousand in a second would fill 10 GB in an hour, and
the history of real clients would be removed to make room. So these lines have a token bucket.

Laws: all lines of an unauthenticated connection are written or none, so that no reader misses a
line by its number or waits for the connection's end; lines that are dropped are counted.
"""

from typing import Final, final

from metrics.history import SessionHistory

BYTES_PER_SECOND: Final = 2_048
"""The rate of all workers together: two connections a second, 177 MB a day."""
BURST_BYTES: Final = 1_048_576
"""The burst of each worker: a thousand connections, as when a fleet has a bad secret."""


@final
class UnauthenticatedEventLimit:
    """Rate limit of one worker: a token bucket of bytes."""

    __slots__ = ("_bytes_per_second", "_spent_until", "dropped")

    def __init__(self, *, workers: int) -> None:
        """`workers`: how many share the budget."""
        self._bytes_per_second = BYTES_PER_SECOND / workers
        self._spent_until = 0.0
        """The time in monotonic seconds at which the rate has made up for all that was written."""
        self.dropped = 0
        """The number of lines that were dropped."""

    def allows(self, history: SessionHistory, lines: list[str], now: float) -> bool:
        """Return True if the lines of an unauthenticated connection are to be written."""
        debt = max(0.0, self._spent_until - now)
        if history.is_logged is None:
            history.is_logged = debt * self._bytes_per_second < BURST_BYTES
        if not history.is_logged:
            self.dropped += len(lines)
            return False
        size = sum([len(line) for line in lines])
        self._spent_until = now + debt + size / self._bytes_per_second
        return True
