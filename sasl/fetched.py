"""What is fetched from an identity provider again and again: when next, and how that went. Pure."""

from typing import Final

MAX_DOUBLINGS: Final = 32
"""Of the wait after failures: no number overflows after a long outage."""


class Fetched:
    """When the next fetch is due: on schedule after a good one, sooner after a failure."""

    def __init__(self, retry_backoff_ms: int, retry_backoff_max_ms: int) -> None:
        """The first wait after a failure doubles with each further one, up to the longest."""
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._failures_in_a_row = 0
        self._next_refresh: float | None = None
        self.refresh_failures = 0
        """Fetches that failed or brought nothing good, since the start: a counter for metrics."""
        self.last_error: str | None = None
        """Why the last fetch failed; None: it was good, or there was none."""

    def _succeeded(self, next_refresh: float) -> None:
        self._failures_in_a_row = 0
        self._next_refresh = next_refresh
        self.last_error = None

    def failed(self, error: str, now: float, *, refused: bool = False) -> None:
        """Note that a fetch failed; what is held stays. `refused`: to ask soon again is no use."""
        doublings = min(self._failures_in_a_row, MAX_DOUBLINGS)
        backoff_ms = min(self._retry_backoff_ms * 2**doublings, self._retry_backoff_max_ms)
        if refused:
            backoff_ms = self._retry_backoff_max_ms
        self._failures_in_a_row += 1
        self._next_refresh = now + backoff_ms / 1000
        self.refresh_failures += 1
        self.last_error = error

    def next_refresh(self, now: float) -> float:
        """When the next fetch is due, in monotonic seconds; `now` if it is overdue."""
        return now if self._next_refresh is None else max(now, self._next_refresh)

    def wants_refresh(self, now: float) -> bool:
        """Whether a fetch is due."""
        return self.next_refresh(now) <= now
