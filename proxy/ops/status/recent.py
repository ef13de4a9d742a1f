"""Counts of the last ten minutes in one worker: counters now, and as they were each minute."""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from metrics import registry
from metrics.metric import Metric
from metrics.snapshot import Snapshot

MINUTES: Final = 10

COUNTED: Final[Mapping[str, Metric]] = {
    "requests": registry.REQUESTS,
    "request_bytes": registry.REQUEST_BYTES,
    "response_bytes": registry.RESPONSE_BYTES,
    "logins": registry.SUCCESSFUL_AUTHENTICATION,
    "reauthentications": registry.SUCCESSFUL_REAUTHENTICATION,
    "failures": registry.AUTHENTICATION_FAILURES,
    "kills": registry.EXPIRED_CONNECTIONS_KILLED,
    "would_be_kills": registry.EXPIRED_CONNECTIONS_WOULD_BE_KILLED,
}
"""Counters that are looked at, by their names in `/sessions.json`."""


class RecentCounts(NamedTuple):
    """Counts of one worker since a moment."""

    seconds: float
    """Seconds since that moment: ten minutes, and up to one more; less after a start."""
    counts: Mapping[str, float]
    """Increases of the counters, by the names of `COUNTED`."""


class CounterHistory:
    """Counters of the last ten minutes; `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._past = deque([(now, dict.fromkeys(COUNTED, 0.0))], maxlen=MINUTES + 1)

    def remember(self, snapshot: Snapshot, now: float) -> None:
        """Remember the counters of this minute."""
        self._past.append((now, totals(snapshot)))

    def since(self, snapshot: Snapshot, now: float) -> RecentCounts:
        """Return what was counted since the oldest minute that is remembered."""
        then, before = self._past[0]
        increases = {name: total - before[name] for name, total in totals(snapshot).items()}
        return RecentCounts(round(now - then, 1), increases)


def totals(snapshot: Snapshot) -> dict[str, float]:
    """Return the sum of each counter over its labels."""
    return {
        name: sum(snapshot.values.get(metric.name, {}).values()) for name, metric in COUNTED.items()
    }
