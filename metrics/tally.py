"""Counters that a worker increments on its control path.

The hot path does not use it: its counters are plain integers kept elsewhere, which the `collect`
hook adds at each scrape.
"""

from collections.abc import Callable, Iterable

from metrics.metric import OTHER, Metric, MetricType
from metrics.registry import METRICS, SESSION_LABELS
from metrics.snapshot import Histogram, Labels, Snapshot


class Tally:
    """Counters and histograms of one worker, for use by one thread.

    Counters with the label sets of `sessions` (listener, mechanism), of their listeners and of
    `listeners`, which may have no mechanism, are 0 from the start. The counters of any other
    mechanism are set to 0 when one of them is first counted. Beyond these, a metric has at most
    `max_label_sets` label sets, so that clients cannot fill the memory with invented names.
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
        self._max_sets: dict[str, int] = {}
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
        self._max_sets[metric.name] = len(start) + metric.max_label_sets

    def _start_session(self, labels: Labels) -> None:
        """Set the counters of a mechanism that is missing from the configuration to 0."""
        for metric in METRICS:
            if metric.labels == SESSION_LABELS and metric.type is MetricType.COUNTER:
                self._counters[metric.name].setdefault(labels, 0)

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter; label values are in the order of the declaration."""
        series = self._counters[metric.name]
        if labels not in series:
            labels = self._bounded(metric, labels, len(series))
            if metric.labels == SESSION_LABELS:
                self._start_session(labels)
        series[labels] = series.get(labels, 0) + by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        series = self._histograms[metric.name]
        histogram = series.get(labels)
        if histogram is None:
            labels = self._bounded(metric, labels, len(series))
            histogram = series.setdefault(labels, Histogram.empty(metric))
        histogram.observe(metric, value)

    def snapshot(self) -> Snapshot:
        """Return a copy of all values so far, with those that `collect` adds."""
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

    def _bounded(self, metric: Metric, labels: Labels, taken: int) -> Labels:
        """Return the labels of a new label set: `other` if there are already `max_label_sets`."""
        if len(labels) != len(metric.labels):
            raise AssertionError(f"{metric.name} has labels {metric.labels}")
        return labels if taken < self._max_sets[metric.name] else (OTHER,) * len(labels)
