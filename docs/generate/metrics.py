"""Tables of docs/metrics.md, docs/events.md and docs/report-tables.md."""

from collections.abc import Callable, Mapping

from docs.generate import meanings, members, table
from metrics import events
from metrics.event_schema import (
    ALL_KINDS,
    ApiVersion,
    AuthInterval,
    EventField,
    LatencyBucket,
    SessionEvent,
    event_fields,
)
from metrics.history import BURST_BYTES, BYTES_PER_SECOND
from metrics.metric import Metric, MetricType
from metrics.period import LATENCY_GAMMA
from metrics.readiness import published
from metrics.registry import METRICS


def _kip_table() -> str:
    rows = [
        (f"`{name}`", f"`{metric.name}`", f"`{query.format(metric.name)}`")
        for metric in METRICS
        for name, query in metric.kip.items()
    ]
    return table(("KIP-368", "Prometheus", "query"), rows)


def _metric_table() -> str:
    rows = [_metric_row(metric) for metric in METRICS]
    return table(("metric", "type", "labels", "of several workers", "meaning"), rows)


def _bucket_table() -> str:
    rows = [
        (f"`{metric.name}`", ", ".join(f"{bound:g}" for bound in metric.buckets))
        for metric in METRICS
        if metric.buckets
    ]
    return table(("histogram", "upper bounds of its buckets"), rows)


def _limit_table() -> str:
    rows = [
        ("`schema_version`", f"{events.SCHEMA_VERSION}"),
        ("characters of a text", f"{events.MAX_TEXT_CHARS}"),
        ("intervals in a summary row", f"{events.MAX_INTERVALS}"),
        ("growth of a latency bucket (gamma)", f"{LATENCY_GAMMA}"),
        (
            "bytes per second about connections without a login or a broker, all workers together",
            f"{BYTES_PER_SECOND:,}",
        ),
        ("the same at once, for each worker", f"{BURST_BYTES:,} bytes"),
    ]
    return table(("limit", "value"), rows)


def _metric_row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    merge = "each by itself" if metric.labels == ("worker",) else str(metric.merge)
    if metric.type is MetricType.GAUGE_HISTOGRAM:
        merge = "sum, of now"
    return (f"`{metric.name}`", metric.type, labels, merge, metric.help)


def _field_table(row: type) -> str:
    meaning = meanings(row)
    return table(
        ("field", "type", "null", "only on", "meaning"),
        [
            (
                f"`{column.name}`",
                column.type.split("<", maxsplit=1)[0],
                "yes" if column.nullable else "",
                _kinds(column),
                meaning[column.name],
            )
            for column in event_fields(row)
        ],
    )


def _kinds(column: EventField) -> str:
    if column.kinds == ALL_KINDS:
        return ""
    return ", ".join(kind for kind in events.EventKind if kind in column.kinds)


def _published_tables() -> str:
    sections = []
    for name, published_table in published.TABLES.items():
        rows = [
            (f"`{column.name}`", column.type, column.meaning) for column in published_table.columns
        ]
        columns = table(("column", "type", "meaning"), rows)
        sections.append(f"### {name}\n\nA row is {published_table.rows}.\n\n{columns}")
    return "\n\n".join(sections)


def _run_columns() -> str:
    return table(
        ("column", "type", "meaning"),
        [(f"`{column.name}`", column.type, column.meaning) for column in published.RUN],
    )


METRIC_TABLES: Mapping[str, Callable[[], str]] = {
    "KIP-368": _kip_table,
    "metrics": _metric_table,
    "buckets": _bucket_table,
}
"""Tables of metrics.md, by the names of their markers."""

EVENT_TABLES: Mapping[str, Callable[[], str]] = {
    "limits": _limit_table,
    "kinds": lambda: table(("kind", "meaning"), members(events.EventKind)),
    "fields": lambda: _field_table(SessionEvent),
    "intervals": lambda: _field_table(AuthInterval),
    "interval ends": lambda: table(("ended_by", "meaning"), members(events.IntervalEnd)),
    "dropped versions": lambda: _field_table(ApiVersion),
    "latencies": lambda: _field_table(LatencyBucket),
}
"""Tables of events.md, by the names of their markers."""

READINESS_TABLES: Mapping[str, Callable[[], str]] = {
    "run columns": _run_columns,
    "tables": _published_tables,
}
"""Tables of report-tables.md, by the names of their markers."""
