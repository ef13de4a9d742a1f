"""Merger of several workers' values into counters that never run backwards.

If the counters of a worker that does not answer were left out, Prometheus would see the sum drop
and jump back, and would take the worker's whole history for a burst. So the merger keeps the last
answer of each worker, and adds the counters of a dead worker to those of its replacement.
"""

from collections.abc import Mapping

from metrics.registry import WORKER_UP
from metrics.snapshot import Snapshot


class Merger:
    """Merger of the workers' answers, one round per scrape."""

    def __init__(self) -> None:
        self._last: dict[int, Snapshot] = {}
        self._retired = Snapshot()

    def merge(self, answers: Mapping[int, Snapshot | None]) -> Snapshot:
        """Return the merged answers of one round, by worker; None for a worker that did not
        answer in time."""
        merged = Snapshot()
        for worker, answer in answers.items():
            if answer is not None:
                self._remember(worker, answer)
            merged.merge(answer or self._last.get(worker, Snapshot()))
            merged.gauge(WORKER_UP, float(answer is not None), str(worker))
        merged.merge(self._retired)
        return merged

    def _remember(self, worker: int, answer: Snapshot) -> None:
        last = self._last.get(worker)
        if last is not None and last.run != answer.run:
            self._retired.merge(last)
        self._last[worker] = answer.counted()
