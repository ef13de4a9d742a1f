"""Rate limit of log lines: one a minute for each cause; pure.

The number of causes is limited, too: a client that invents a new one each time, such as a client
id or an address, cannot make the log grow either. The next line gives the number of suppressed
lines.
"""

import logging
from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two lines of one cause."""
MAX_CAUSES: Final = 200
"""Largest number of lines in one interval."""
MAX_DETAILS: Final = 10
"""Largest number of details of one cause that are logged separately in one interval."""


class LogRateLimit:
    """State of the rate limit: when each cause was last logged, and how often suppressed since."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        """Time of the last line in seconds by cause, oldest first."""
        self._suppressed: dict[str, int] = {}
        """Number of lines suppressed since then by cause."""
        self._suppressed_causes = 0
        """Number of lines suppressed because there were too many causes."""

    def line(self, cause: str, text: str, now: float, *, detail: str = "") -> str | None:
        """Return the line to log; None if the cause was logged lately, or there are too many
        causes.

        Each `detail` of a cause, such as the name that a client claims, counts as a cause of its
        own, up to `MAX_DETAILS` of them; the others share the line of the cause. `now` is monotonic
        seconds.
        """
        if detail:
            detailed = f"{cause} {detail}"
            if detailed in self._logged_at or self._details(cause, now) < MAX_DETAILS:
                cause = detailed
        last = self._logged_at.get(cause)
        if last is not None and now - last < INTERVAL:
            self._suppressed[cause] = self._suppressed.get(cause, 0) + 1
            return None
        self._logged_at.pop(cause, None)
        if len(self._logged_at) >= MAX_CAUSES and not self._forgot_one(now):
            self._suppressed_causes += 1
            return None
        self._logged_at[cause] = now
        count = self._suppressed.pop(cause, 0)
        more = f" (and {count} more in the last minute)" if count else ""
        others, self._suppressed_causes = self._suppressed_causes, 0
        return f"{text}{more}" + (f" (and {others} of others, left out)" if others else "")

    def warn(self, log: logging.Logger, text: str, now: float, *, cause: str | None = None) -> None:
        """Log a warning, within the limit of its cause; without `cause`, the text is the cause."""
        if (line := self.line(cause or text, text, now)) is not None:
            log.warning("%s", line)

    def _details(self, cause: str, now: float) -> int:
        """Return the number of details of a cause that were logged lately."""
        return sum(
            now - last < INTERVAL and one.startswith(f"{cause} ")
            for one, last in self._logged_at.items()
        )

    def _forgot_one(self, now: float) -> bool:
        """Forget the oldest cause if its interval is over; return whether it was."""
        oldest = next(iter(self._logged_at))
        if now - self._logged_at[oldest] < INTERVAL:
            return False
        del self._logged_at[oldest]
        self._suppressed.pop(oldest, None)
        return True
