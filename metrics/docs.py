"""Generator of the tables of docs/metrics.md and docs/events.md.

    python -m metrics.docs            write them
    python -m metrics.docs --check    compare only; exit status 1 if a page is stale

A table stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`; the text around it is
written by hand.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from metrics import events
from metrics.event_rate_limit import BURST_BYTES, BYTES_PER_SECOND
from metrics.events import EVENT_SCHEMA, AuthInterval, EventField, LatencyBucket, event_fields
from metrics.metric import Metric, MetricType
from metrics.period import LATENCY_GAMMA
from metrics.registry import METRICS

DOCS = Path(__file__).resolve().parent.parent / "docs"


def _kip_table() -> str:
    rows = [
        (f"`{kip.name}`", f"`{metric.name}`", f"`{kip.query}`")
        for metric in METRICS
        for kip in metric.kip
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
            "bytes per second about unauthenticated connections, all workers together",
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


def _field_table(columns: tuple[EventField, ...]) -> str:
    return table(
        ("field", "type", "null", "only on", "meaning"),
        [
            (
                f"`{column.name}`",
                column.type.split("<", maxsplit=1)[0],
                "yes" if column.nullable else "",
                _kinds(column),
                column.meaning,
            )
            for column in columns
        ],
    )


def _kinds(column: EventField) -> str:
    if column.kinds == events.ALL_KINDS:
        return ""
    return ", ".join(kind for kind in events.EventKind if kind in column.kinds)


def members(enumeration: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the members of an enumeration, each with the docstring below it."""
    (definition,) = ast.parse(inspect.getsource(enumeration)).body
    if not isinstance(definition, ast.ClassDef):
        raise AssertionError(enumeration)
    meanings: dict[str, str] = {}
    name = ""
    for node in definition.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            meanings[name] = ""
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            meanings[name] = " ".join(str(node.value.value).split())
    return [(f"`{enumeration[name]}`", meaning) for name, meaning in meanings.items()]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(_line(cells) for cells in lines)


def _line(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "metrics.md": {
        "KIP-368": _kip_table,
        "metrics": _metric_table,
        "buckets": _bucket_table,
    },
    "events.md": {
        "limits": _limit_table,
        "kinds": lambda: table(("kind", "meaning"), members(events.EventKind)),
        "fields": lambda: _field_table(EVENT_SCHEMA),
        "intervals": lambda: _field_table(event_fields(AuthInterval)),
        "interval ends": lambda: table(("ended_by", "meaning"), members(events.IntervalEnd)),
        "latencies": lambda: _field_table(event_fields(LatencyBucket)),
    },
}
"""Tables of each page, by the names of their markers."""


def filled(page: str, name: str, content: str) -> str:
    """Return the page with `content` between the markers of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    assert found, f"{begin} is missing"
    assert closed, f"{end} is missing"
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m metrics.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(arguments).check
    stale = False
    for name, tables in TABLES.items():
        path = DOCS / name
        page = written = path.read_text(encoding="utf-8")
        for marker, content in tables.items():
            page = filled(page, marker, content())
        if page == written:
            continue
        stale = True
        if not check:
            path.write_text(page, encoding="utf-8")
        verb = "is stale; run python -m metrics.docs" if check else "written"
        sys.stdout.write(f"docs/{name} {verb}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
