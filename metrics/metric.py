"""Declaration of a metric: type, labels, and the rule that merges several workers' values."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kafka_reauth_proxy_"

OTHER = "other"
"""Value of all labels beyond `max_label_sets`."""

DEFAULT_MAX_LABEL_SETS = 200


class MetricType(StrEnum):
    """Prometheus' types, by OpenMetrics' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    GAUGE_HISTOGRAM = "gaugehistogram"
    """Histogram of the present state, whose counts may decrease; it needs no rate()."""


class Merge(StrEnum):
    """Rule by which the values of several workers are merged."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True, kw_only=True)
class KipMetric:
    """Metric of a KIP, and the query for its value."""

    name: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Declaration of a metric."""

    name: str
    """Name as scraped, with `_total` for counters."""
    type: MetricType
    help: str
    """Text for `# HELP`: what is counted, and what is not."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Base unit of the values; empty for plain numbers."""
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without +Inf; empty for other types."""
    kip: tuple[KipMetric, ...] = ()
    """Metrics of a KIP that correspond to this one."""
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS
    """Maximum number of label sets in each worker; the further ones are counted as `other`."""


def counter(
    name: str,
    help: str,  # noqa: A002 - Prometheus' word
    labels: tuple[str, ...],
    *,
    unit: str = "",
    kip: str = "",
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS,
) -> Metric:
    """Declare a counter; `kip` is the metric that KIP-368 has as `-rate` and `-total`."""
    full = f"{PREFIX}{name}"
    rate = KipMetric(name=f"{kip}-rate", query=f"sum(rate({full}[1m]))")
    total = KipMetric(name=f"{kip}-total", query=f"sum({full})")
    return Metric(
        name=full,
        type=MetricType.COUNTER,
        help=help,
        labels=labels,
        unit=unit,
        kip=(rate, total) if kip else (),
        max_label_sets=max_label_sets,
    )


def gauge(
    name: str,
    help: str,  # noqa: A002
    labels: tuple[str, ...] = (),
    *,
    unit: str = "",
    merge: Merge = Merge.SUM,
) -> Metric:
    """Declare a gauge; `merge` is the rule for the values of several workers."""
    return Metric(
        name=f"{PREFIX}{name}",
        type=MetricType.GAUGE,
        help=help,
        labels=labels,
        unit=unit,
        merge=merge,
    )


def histogram(
    name: str,
    help: str,  # noqa: A002
    labels: tuple[str, ...] = (),
    *,
    buckets: tuple[float, ...],
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS,
) -> Metric:
    """Declare a histogram of seconds; `buckets` are the upper bounds."""
    return Metric(
        name=f"{PREFIX}{name}",
        type=MetricType.HISTOGRAM,
        help=help,
        labels=labels,
        unit="seconds",
        buckets=buckets,
        max_label_sets=max_label_sets,
    )
