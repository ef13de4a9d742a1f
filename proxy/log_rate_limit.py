"""Rate limit of log lines: one a minute for each cause; pure.

And for so many causes only: who makes up a new cause each time, a client id or an address, cannot
make the log grow either. The next line gives the number of those suppressed.
"""

from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two lines of one cause."""
MAX_CAUSES: Final = 200
"""Largest number of lines in one interval."""


class LogRateLimit:
    """Memory of when each cause was last logged, and how often it was suppressed since."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        """Time of the last line in seconds by cause, oldest first."""
        self._passed_over: dict[str, int] = {}
        self._too_many = 0
        """Number of lines suppressed because there were too many causes."""

    def line(self, cause: str, text: str, now: float) -> str | None:
        """Return what to log; None: the cause was logged lately, or there are too many causes."""
        last = self._logged_at.get(cause)
        if last is not None and now - last < INTERVAL:
            self._passed_over[cause] = self._passed_over.get(cause, 0) + 1
            return None
        self._logged_at.pop(cause, None)
        if len(self._logged_at) >= MAX_CAUSES and not self._forgot_one(now):
            self._too_many += 1
            return None
        self._logged_at[cause] = now
        count = self._passed_over.pop(cause, 0)
        more = f" (and {count} more in the last minute)" if count else ""
        others, self._too_many = self._too_many, 0
        return f"{text}{more}" + (f" (and {others} of others, left out)" if others else "")

    def _forgot_one(self, now: float) -> bool:
        oldest = next(iter(self._logged_at))
        if now - self._logged_at[oldest] < INTERVAL:
            return False
        del self._logged_at[oldest]
        self._passed_over.pop(oldest, None)
        return True
