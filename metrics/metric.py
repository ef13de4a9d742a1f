"""What a metric is: type, labels, how several workers' values become one; how one is declared."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kafka_reauth_proxy_"

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
