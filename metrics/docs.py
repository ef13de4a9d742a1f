"""Writes docs/metrics.md and docs/events.md from what the code declares.

python -m metrics.docs            write both
python -m metrics.docs --check    say whether they are as they would be written; exit status 1
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from metrics import events
from metrics.docs_text import EVENTS_TEXT, METRICS_TEXT
from metrics.events import EVENT_SCHEMA, AuthInterval, EventField, LatencyBucket, event_fields
from metrics.metric import Metric, MetricType
from metrics.period import LATENCY_GAMMA
from metrics.registry import METRICS
from metrics.strangers import BURST_BYTES, BYTES_PER_SECOND

DOCS = Path(__file__).resolve().parent.parent / "docs"


def metrics_page() -> str:
    """Write docs/metrics.md."""
    kip_rows = [
        (f"`{kip.name}`", f"`{metric.name}`", f"`{kip.query}`")
        for metric in METRICS
        for kip in metric.kip
    ]
    return METRICS_TEXT.format(
        kip_table=table(("KIP-368", "Prometheus", "query"), kip_rows),
        table=table(
            ("metric", "type", "labels", "of several workers", "meaning"),
            [_metric_row(metric) for metric in METRICS],
        ),
        buckets=table(
            ("histogram", "upper bounds of its buckets"),
            [
                (f"`{metric.name}`", ", ".join(f"{bound:g}" for bound in metric.buckets))
                for metric in METRICS
                if metric.buckets
            ],
        ),
    )


def events_page() -> str:
    """Write docs/events.md."""
    return EVENTS_TEXT.format(
        version=events.SCHEMA_VERSION,
        kinds=table(("kind", "meaning"), members(events.EventKind)),
        ends=table(("ended_by", "meaning"), members(events.IntervalEnd)),
        fields=_field_table(EVENT_SCHEMA),
        intervals=_field_table(event_fields(AuthInterval)),
        latencies=_field_table(event_fields(LatencyBucket)),
        gamma=LATENCY_GAMMA,
        max_text=events.MAX_TEXT_CHARS,
        max_intervals=events.MAX_INTERVALS,
        strangers_per_second=f"{BYTES_PER_SECOND:,}",
        strangers_burst=f"{BURST_BYTES // 1_048_576} MiB",
    )


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
    """Read the members of an enumeration with the string that stands under each."""
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
    """Write a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(_line(cells) for cells in lines)


def _line(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


PAGES = {"metrics.md": metrics_page, "events.md": events_page}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m metrics.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(arguments).check
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        written = path.read_text(encoding="utf-8") if path.exists() else None
        if written == page():
            continue
        stale.append(name)
        if not check:
            path.write_text(page(), encoding="utf-8")
    for name in stale:
        verb = "is stale; run python -m metrics.docs" if check else "written"
        sys.stdout.write(f"docs/{name} {verb}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
