"""Text exposition of merged values for Prometheus: text format 0.0.4, and OpenMetrics 1.0.

prometheus_client could write both, but its import takes 2 MiB, and includes a web server.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from metrics.metric import Metric, MetricType
from metrics.registry import METRICS
from metrics.snapshot import Histogram, Snapshot

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PRESENT: Final = ("gcount", "gsum")
"""Suffixes of the totals of a histogram of the present state."""
_NOT_FINITE: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def expose(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return a snapshot encoded as the `Accept` header demands, and its content type.

    The metrics are in the order of the registry; those without a value are left out.
    """
    openmetrics = any(_is_openmetrics(one) for one in accept.split(","))
    lines: list[str] = []
    for metric in METRICS:
        if metric.type in (MetricType.COUNTER, MetricType.GAUGE):
            if series := snapshot.values.get(metric.name):
                lines += _head(metric, openmetrics=openmetrics)
                lines += _samples(metric.name, metric.labels, series.items())
        elif histograms := snapshot.histograms.get(metric.name):
            lines += _head(metric, openmetrics=openmetrics)
            lines += _histogram(metric, histograms, openmetrics=openmetrics)
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode(), _OPENMETRICS if openmetrics else _TEXT


def _is_openmetrics(accepted: str) -> bool:
    """Return whether an element of `Accept` is OpenMetrics in version 1, or in any version."""
    media_type, *parameters = (one.strip() for one in accepted.split(";"))
    versions = [one for one in parameters if one.startswith("version=")]
    known = all(one.startswith("version=1.") for one in versions)
    return media_type == "application/openmetrics-text" and known


def _head(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    name, kind = metric.name, str(metric.type)
    if openmetrics:
        name = name.removesuffix("_total")
    elif metric.type is MetricType.GAUGE_HISTOGRAM:
        kind = "histogram"
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {kind}\n"
    if openmetrics and metric.unit:
        yield f"# UNIT {name} {metric.unit}\n"


def _histogram(
    metric: Metric, series: dict[tuple[str, ...], Histogram], *, openmetrics: bool
) -> Iterator[str]:
    bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
    lasting = metric.type is MetricType.HISTOGRAM
    count, total = (f"{metric.name}_{one}" for one in (("count", "sum") if lasting else _PRESENT))
    counts: list[str] = []
    sums: list[str] = []
    for labels, data in series.items():
        buckets = list(zip(bounds, accumulate(data.counts), strict=True))
        with_bound = [((*labels, bound), value) for bound, value in buckets]
        yield from _samples(f"{metric.name}_bucket", (*metric.labels, "le"), with_bound)
        counts += _samples(count, metric.labels, [(labels, buckets[-1][1])])
        sums += _samples(total, metric.labels, [(labels, data.sum)])
        if lasting or openmetrics:  # OpenMetrics has the samples of a label set together
            yield from (counts.pop(), sums.pop())
    for name, lines in ((count, counts), (total, sums)):
        if lines:  # metrics of their own: the text format has no histogram of the present state
            yield f"# HELP {name} {metric.help}\n# TYPE {name} gauge\n"
            yield from lines


def _samples(
    name: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Iterator[str]:
    for found, value in values:
        pairs = ",".join(
            f'{label}="{_escaped(one)}"' for label, one in zip(labels, found, strict=True)
        )
        number = repr(float(value))
        yield f"{name}{f'{{{pairs}}}' if pairs else ''} {_NOT_FINITE.get(number, number)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
