"""Declaration of a metric: type, labels, and the rule that merges several workers' values."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from functools import partial

PREFIX = "kafka_reauth_proxy_"

OTHER = "other"
"""Value of all labels beyond `max_label_sets`."""

_UNITS = ("seconds", "bytes")


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


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of a metric."""

    type: MetricType
    name: str = field(init=False)
    """Name as scraped, with `_total` for counters."""
    short_name: InitVar[str]
    """The name without `PREFIX`."""
    help: str
    """Text for `# HELP`: what is counted, and what is not."""
    labels: tuple[str, ...] = ()
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without +Inf; empty for other types."""
    kip: Mapping[str, str] = field(default_factory=dict)
    """Metrics of a KIP that correspond to this one, with their queries; `{0}` is its name."""
    max_label_sets: int = 200
    """Maximum number of label sets in each worker; the further ones are counted as `other`."""

    def __post_init__(self, short_name: str) -> None:
        object.__setattr__(self, "name", f"{PREFIX}{short_name}")

    @property
    def unit(self) -> str:
        """Base unit of the values, which ends the name; empty for plain numbers."""
        *_, last = self.name.removesuffix("_total").split("_")
        return last if last in _UNITS else ""


counter = partial(Metric, MetricType.COUNTER)
gauge = partial(Metric, MetricType.GAUGE)
histogram = partial(Metric, MetricType.HISTOGRAM)
