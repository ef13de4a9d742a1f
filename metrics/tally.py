"""Counters that a worker increments on its control path.

The hot path does not come here: its counters are plain integers where they arise, handed in by the
`collect` hook when somebody scrapes.
"""

from collections.abc import Callable, Iterable

from metrics.metric import OTHER, Metric, MetricType
from metrics.registry import METRICS, SESSION_LABELS
from metrics.snapshot import Histogram, Labels, Snapshot


class Tally:
    """Counters and histograms of one worker, for one thread.

    The label sets of `sessions` (listener, mechanism), of their listeners and of `listeners`, which
    may have no mechanism, are 0 from the start, and always find room; of others a metric takes
    `max_label_sets`, so that no client can fill the memory by inventing names.
    """

    def __init__(
        self,
        *,
        run: str,
        sessions: Iterable[tuple[str, str]] = (),
        listeners: Iterable[str] = (),
        collect: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._run = run
        self._collect = collect
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._room: dict[str, int] = {}
        known = list(sessions)
        everyone = list(dict.fromkeys((*(listener for listener, _ in known), *listeners)))
        for metric in METRICS:
            self._start(metric, known, everyone)

    def _start(self, metric: Metric, known: list[tuple[str, str]], listeners: list[str]) -> None:
        sets: dict[tuple[str, ...], list[Labels]] = {
            (): [()],
            SESSION_LABELS: list(known),
            SESSION_LABELS[:1]: [(listener,) for listener in listeners],
        }
        start = sets.get(metric.labels, [])
        if metric.type is MetricType.COUNTER:
            self._counters[metric.name] = dict.fromkeys(start, 0)
        elif metric.type is MetricType.HISTOGRAM:
            self._histograms[metric.name] = {labels: Histogram.empty(metric) for labels in start}
        self._room[metric.name] = len(start) + metric.max_label_sets

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter; label values in the order of the declaration."""
        series = self._counters[metric.name]
        if labels not in series:
            labels = self._admit(metric, labels, len(series))
        series[labels] = series.get(labels, 0) + by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        series = self._histograms[metric.name]
        histogram = series.get(labels)
        if histogram is None:
            labels = self._admit(metric, labels, len(series))
            histogram = series.setdefault(labels, Histogram.empty(metric))
        histogram.observe(metric, value)

    def snapshot(self) -> Snapshot:
        """Copy everything counted so far, and let `collect` add what is counted elsewhere."""
        snapshot = Snapshot(
            run=self._run,
            values={name: dict(series) for name, series in self._counters.items() if series},
            histograms={
                name: {labels: data.copy() for labels, data in series.items()}
                for name, series in self._histograms.items()
                if series
            },
        )
        if self._collect is not None:
            self._collect(snapshot)
        return snapshot

    def _admit(self, metric: Metric, labels: Labels, taken: int) -> Labels:
        if len(labels) != len(metric.labels):
            raise AssertionError(f"{metric.name} has labels {metric.labels}")
        return labels if taken < self._room[metric.name] else (OTHER,) * len(labels)
