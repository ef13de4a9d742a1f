"""Refresh schedule of what is fetched from an identity provider; pure."""

from typing import Final

MAX_DOUBLINGS: Final = 32
"""Maximum number of times that the wait doubles, so that no number overflows."""


class RefreshSchedule:
    """Schedule of fetches: the regular time after a successful one, sooner after a failure."""

    def __init__(self, retry_backoff_ms: int, retry_backoff_max_ms: int) -> None:
        """Wait `retry_backoff_ms` after a failure, twice as long after each further one, and
        `retry_backoff_max_ms` at most."""
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._failures_in_a_row = 0
        self._next_refresh: float | None = None
        self.refresh_failures = 0
        """Number of failed fetches since the start, including those with an invalid result."""
        self.last_error: str | None = None
        """Error of the last fetch; None if it succeeded, or there was none."""

    def _succeeded(self, next_refresh: float) -> None:
        self._failures_in_a_row = 0
        self._next_refresh = next_refresh
        self.last_error = None

    def failed(self, error: str, now: float, *, refused: bool = False) -> None:
        """Record a failed fetch. `refused` says that a retry would be refused too, and may wait for
        `retry_backoff_max_ms`."""
        doublings = min(self._failures_in_a_row, MAX_DOUBLINGS)
        backoff_ms = min(self._retry_backoff_ms * 2**doublings, self._retry_backoff_max_ms)
        if refused:
            backoff_ms = self._retry_backoff_max_ms
        self._failures_in_a_row += 1
        self._next_refresh = now + backoff_ms / 1000
        self.refresh_failures += 1
        self.last_error = error

    def next_refresh(self, now: float) -> float:
        """Return the time of the next fetch in monotonic seconds; `now` if it is overdue."""
        return now if self._next_refresh is None else max(now, self._next_refresh)

    def wants_refresh(self, now: float) -> bool:
        """Return whether a fetch is due."""
        return self.next_refresh(now) <= now
