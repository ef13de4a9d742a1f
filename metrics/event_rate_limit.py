"""How much of the event log is about strangers: connections that never authenticated.

A failed login costs whoever makes it nothing. Two thousand in a second would fill 10 GB in an hour,
and what real clients did would be aged out for it. So the lines about strangers have a budget.

Laws: a history is told of whole or not at all, so that no reader misses a line by its number or
waits for its end; lines that are left out are counted.
"""

from typing import Final, final

from metrics.history import SessionHistory

BYTES_PER_SECOND: Final = 2_048
"""Of all workers together: some two strangers a second, 177 MB a day, 10 GiB in two months."""
BURST_BYTES: Final = 1_048_576
"""Of each worker, at once: some thousand strangers, as when a fleet comes with a bad secret."""


@final
class UnauthenticatedEventLimit:
    """The budget of one worker."""

    __slots__ = ("_bytes_per_second", "_spent_until", "dropped")

    def __init__(self, *, workers: int) -> None:
        """`workers`: how many share the budget."""
        self._bytes_per_second = BYTES_PER_SECOND / workers
        self._spent_until = 0.0
        """When all that was written will be paid for, monotonic seconds."""
        self.dropped = 0
        """Lines."""

    def allows(self, history: SessionHistory, lines: list[str], now: float) -> bool:
        """Whether lines about a history are to be written; all of a history's are, or none."""
        debt = max(0.0, self._spent_until - now)
        if history.is_logged is None:
            history.is_logged = debt * self._bytes_per_second < BURST_BYTES
        if not history.is_logged:
            self.dropped += len(lines)
            return False
        size = sum([len(line) for line in lines])
        self._spent_until = now + debt + size / self._bytes_per_second
        return True
