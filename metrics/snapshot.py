"""Snapshot of one worker's values, or of all workers' values merged.

At each scrape a worker fills a `Snapshot`, and sends it as JSON to the HTTP process, which parses
it. Values are stored by metric name, then by label values in the metric's order.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrics.metric import Merge, Metric, MetricType
from metrics.registry import BY_NAME, WORKER_UP

Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """Histogram whose counts are not cumulative."""

    counts: list[int]
    """Counts: one per declared bucket, and one for values above the last bound."""
    sum: float = 0.0

    @classmethod
    def empty(cls, metric: Metric) -> "Histogram":
        """Return the histogram without values."""
        return cls([0] * (len(metric.buckets) + 1))

    def observe(self, metric: Metric, value: float) -> None:
        """Count a value, in the first bucket whose bound is not below it."""
        self.counts[bisect_left(metric.buckets, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        """Add another histogram of the same metric."""
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.sum += other.sum

    def copy(self) -> "Histogram":
        """Return an independent copy."""
        return Histogram(list(self.counts), self.sum)


@dataclass(slots=True)
class Snapshot:
    """All values at one moment. Counters include everything since the start of the worker."""

    run: str = ""
    """Id of this run of the worker; if it changes, the counters have restarted at 0."""
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    """Values of counters and gauges, by metric name and labels."""
    histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=dict)

    def count(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a counter."""
        _expect(metric, labels, MetricType.COUNTER)
        series = self.values.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + value

    def gauge(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        _expect(metric, labels, MetricType.GAUGE)
        self.values.setdefault(metric.name, {})[labels] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        _expect(metric, labels, MetricType.HISTOGRAM, MetricType.GAUGE_HISTOGRAM)
        series = self.histograms.setdefault(metric.name, {})
        if labels not in series:
            series[labels] = Histogram.empty(metric)
        series[labels].observe(metric, value)

    def take(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """Set a histogram whose values were counted elsewhere."""
        _expect(metric, labels, MetricType.HISTOGRAM, MetricType.GAUGE_HISTOGRAM)
        self.histograms.setdefault(metric.name, {})[labels] = histogram

    def merge(self, other: "Snapshot") -> None:
        """Add another worker's values by the rule of each metric."""
        for name, theirs in other.values.items():
            mine = self.values.setdefault(name, {})
            rule = BY_NAME[name].merge
            for labels, value in theirs.items():
                mine[labels] = _merged(rule, mine[labels], value) if labels in mine else value
        for name, histograms in other.histograms.items():
            held = self.histograms.setdefault(name, {})
            for labels, histogram in histograms.items():
                if labels in held:
                    held[labels].add(histogram)
                else:
                    held[labels] = histogram.copy()

    def counted(self) -> "Snapshot":
        """Return a copy of the counters and histograms, without metrics of the present state."""
        lasting = (MetricType.COUNTER, MetricType.HISTOGRAM)
        kept = Snapshot(run=self.run)
        kept.merge(
            Snapshot(
                values={k: v for k, v in self.values.items() if BY_NAME[k].type in lasting},
                histograms={k: v for k, v in self.histograms.items() if BY_NAME[k].type in lasting},
            )
        )
        return kept

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as lists and dictionaries, for a message between processes."""
        return {
            "run": self.run,
            "values": {
                name: [[*labels, value] for labels, value in series.items()]
                for name, series in self.values.items()
            },
            "histograms": {
                name: [[*labels, data.counts, data.sum] for labels, data in series.items()]
                for name, series in self.histograms.items()
            },
        }

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "Snapshot":
        """Parse the result of `to_json`."""
        return cls(
            run=message["run"],
            values={
                name: {tuple(row[:-1]): row[-1] for row in rows}
                for name, rows in message["values"].items()
            },
            histograms={
                name: {tuple(row[:-2]): Histogram(row[-2], row[-1]) for row in rows}
                for name, rows in message["histograms"].items()
            },
        )


class Merger:
    """Merger of the workers' answers into counters that never run backwards, one round per scrape.

    If the counters of a worker that does not answer were left out, Prometheus would see the sum
    drop and jump back, and would take the worker's whole history for a burst. So the merger keeps
    the last answer of each worker, and adds the counters of a dead worker to those of its
    replacement.
    """

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


def _merged(rule: Merge, mine: float, theirs: float) -> float:
    if rule is Merge.SUM:
        return mine + theirs
    return max(mine, theirs) if rule is Merge.MAX else min(mine, theirs)


def _expect(metric: Metric, labels: Labels, *types: MetricType) -> None:
    """Raise AssertionError for a wrong type or number of labels, rather than fail at the scrape."""
    if metric.type not in types or len(labels) != len(metric.labels):
        raise AssertionError(f"{metric.name} is a {metric.type} with labels {metric.labels}")
