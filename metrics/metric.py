"""What a metric is: type, labels, and how the values of several workers become one."""

from dataclasses import dataclass
from enum import StrEnum

OTHER = "other"
"""Label value of whatever came after a metric had as many label sets as it may have."""

DEFAULT_MAX_LABEL_SETS = 200


class MetricType(StrEnum):
    """Prometheus' types, by OpenMetrics' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    GAUGE_HISTOGRAM = "gaugehistogram"
    """A histogram of how things stand now: it may shrink, and needs no rate()."""


class Merge(StrEnum):
    """How the values of several workers become one."""

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
    """As scraped, with `_total` for counters."""
    type: MetricType
    help: str
    """What is counted, and what is not."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Base unit; empty: a number of things."""
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without +Inf."""
    kip: tuple[KipMetric, ...] = ()
    """The metrics of KIP-368 that this one stands for."""
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS
    """For each worker; beyond it label values become `other`."""
