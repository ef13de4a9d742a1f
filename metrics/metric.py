"""Declaration of a metric: type, labels, and the rule that merges several workers' values."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kafka_reauth_proxy_"

OTHER = "other"
"""The label value of whatever comes after a metric has as many label sets as it may have."""

DEFAULT_MAX_LABEL_SETS = 200


class MetricType(StrEnum):
    """Prometheus' types, by OpenMetrics' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    GAUGE_HISTOGRAM = "gaugehistogram"
    """A histogram of the present state: it may shrink, and needs no rate()."""


class Merge(StrEnum):
    """Rule that makes one value of several workers' values."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True, kw_only=True)
class KipMetric:
    """A metric of a KIP, and the query that gives its value."""

    name: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One declared metric."""

    name: str
    """The name as scraped, with `_total` for counters."""
    type: MetricType
    help: str
    """The text for `# HELP`: it says what is counted and what is not."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """The base unit of the values; empty: they are numbers of things."""
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, ascending, without +Inf; else empty."""
    kip: tuple[KipMetric, ...] = ()
    """The metrics of a KIP that this one stands for."""
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS
    """The number of label sets in each worker; beyond it label values become `other`."""


def counter(
    name: str,
    help: str,  # noqa: A002 - the word that Prometheus has for it
    labels: tuple[str, ...],
    *,
    unit: str = "",
    kip: str = "",
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS,
) -> Metric:
    """Declare a counter; `kip` is a metric that KIP-368 gives a `-rate` and a `-total`."""
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
    """Declare a gauge; `merge` makes one value of the workers'."""
    return Metric(
        name=f"{PREFIX}{name}",
        type=MetricType.GAUGE,
        help=help,
        labels=labels,
        unit=unit,
        merge=merge,
    )
