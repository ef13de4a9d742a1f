"""Rate limit of log lines: one a minute for each cause; pure.

And for so many causes only: who makes up a new cause each time, a client id or an address, cannot
make the log grow either. What is passed over is told as a number by the next line.
"""

from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two lines of one cause."""
MAX_CAUSES: Final = 200
"""Lines a minute."""


class LogRateLimit:
    """Remembers when each cause was last told, and how often it was passed over since."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """In the order of the times."""
        self._passed_over: dict[str, int] = {}
        self._too_many = 0
        """Lines of causes that there was no room for."""

    def line(self, cause: str, text: str, now: float) -> str | None:
        """Return what to log; None: this cause was told less than a minute ago, or too many."""
        told = self._told.get(cause)
        if told is not None and now - told < INTERVAL:
            self._passed_over[cause] = self._passed_over.get(cause, 0) + 1
            return None
        self._told.pop(cause, None)
        if len(self._told) >= MAX_CAUSES and not self._forgot_one(now):
            self._too_many += 1
            return None
        self._told[cause] = now
        count = self._passed_over.pop(cause, 0)
        more = f" (and {count} more in the last minute)" if count else ""
        others, self._too_many = self._too_many, 0
        return f"{text}{more}" + (f" (and {others} of others, left out)" if others else "")

    def _forgot_one(self, now: float) -> bool:
        oldest = next(iter(self._told))
        if now - self._told[oldest] < INTERVAL:
            return False
        del self._told[oldest]
        self._passed_over.pop(oldest, None)
        return True
