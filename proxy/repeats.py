"""Log lines that strangers can cause are written once a minute for each cause. Pure."""

from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two lines of one cause."""
MOST_CAUSES: Final = 200


class Repeats:
    """Remembers when each cause was last told, and how often it was passed over since."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._passed_over: dict[str, int] = {}

    def line(self, cause: str, text: str, now: float) -> str | None:
        """Return what to log; None: this cause was told less than a minute ago."""
        told = self._told.get(cause)
        if told is not None and now - told < INTERVAL:
            self._passed_over[cause] = self._passed_over.get(cause, 0) + 1
            return None
        if len(self._told) >= MOST_CAUSES:
            self._told.clear()
            self._passed_over.clear()
        self._told[cause] = now
        count = self._passed_over.pop(cause, 0)
        return f"{text} (and {count} more in the last minute)" if count else text
