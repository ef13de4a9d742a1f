"""Merger of several workers' values into counters that never run backwards.

A worker that does not answer must not take its counters with it: Prometheus would see the sum drop,
then jump back, and report the whole history of that worker as a burst. So the last answer of each
worker is kept, and what a dead worker had counted is carried on when another takes its place.
"""

from collections.abc import Mapping

from metrics.registry import WORKER_UP
from metrics.snapshot import Snapshot


class Merger:
    """Merges what the workers answer, scrape after scrape."""

    def __init__(self) -> None:
        self._last: dict[int, Snapshot] = {}
        self._retired = Snapshot()

    def merge(self, answers: Mapping[int, Snapshot | None]) -> Snapshot:
        """Merge one round of answers by worker; None: the worker did not answer in time."""
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
