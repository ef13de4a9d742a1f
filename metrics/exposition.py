"""Text exposition of merged values for Prometheus."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from metrics.metric import Metric, MetricType
from metrics.registry import METRICS
from metrics.snapshot import Histogram, Snapshot


class SnapshotCollector(Collector):
    """Collector of one snapshot for prometheus_client, in the order of the registry."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        """Yield every metric that has a value."""
        for metric in METRICS:
            if metric.type in (MetricType.COUNTER, MetricType.GAUGE):
                if series := self._snapshot.values.get(metric.name):
                    yield _simple(metric, series)
            elif histograms := self._snapshot.histograms.get(metric.name):
                yield _histogram(metric, histograms)


def expose(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return a snapshot encoded as the `Accept` header demands, and its content type."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # raised for a version that is not a number
        encode, content_type = choose_encoder("")
    return encode(SnapshotCollector(snapshot)), content_type


def _simple(metric: Metric, series: dict[tuple[str, ...], float]) -> Family:
    make = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, series: dict[tuple[str, ...], Histogram]) -> Family:
    bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
    lasting = metric.type is MetricType.HISTOGRAM
    make = HistogramMetricFamily if lasting else GaugeHistogramMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, data in series.items():
        buckets = list(zip(bounds, accumulate(data.counts), strict=True))
        family.add_metric(labels, buckets, data.sum)
    return family
