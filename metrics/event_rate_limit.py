"""Rate limit on the events of connections that never authenticated, or never reached a broker.

Failed logins cost a client nothing. Two thousand a second would fill 10 GB in an hour, and
retention would remove the events of real clients. While a broker is down, its clients log in
again and again. So a token bucket limits these lines.

Rules: the lines of such a connection are written all or not at all, so that readers never miss a
sequence number or the end of a connection. Dropped lines are counted.
"""

from typing import Final, final

from metrics.history import SessionHistory

BYTES_PER_SECOND: Final = 2_048
"""Rate of all workers together, in bytes: two connections a second, 177 MB a day."""
BURST_BYTES: Final = 1_048_576
"""Burst of each worker in bytes: a thousand connections, as when many clients have a wrong
secret."""


@final
class UnauthenticatedEventLimit:
    """Rate limit of one worker: a token bucket of bytes."""

    __slots__ = ("_bytes_per_second", "_full_at", "dropped")

    def __init__(self, *, workers: int) -> None:
        """`workers` is the number of workers that share the rate."""
        self._bytes_per_second = BYTES_PER_SECOND / workers
        self._full_at = 0.0
        """Time in monotonic seconds at which the bucket is full again."""
        self.dropped = 0
        """Number of lines that were dropped."""

    def allows(self, history: SessionHistory, lines: list[str], now: float) -> bool:
        """Return whether the lines of a connection without a login or a broker are written."""
        debt = max(0.0, self._full_at - now)
        if history.is_logged is None:
            history.is_logged = debt * self._bytes_per_second < BURST_BYTES
        if not history.is_logged:
            self.dropped += len(lines)
            return False
        size = sum([len(line) for line in lines])
        self._full_at = now + debt + size / self._bytes_per_second
        return True
