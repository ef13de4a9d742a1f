"""Display of the demo: a live table, or plain lines without a terminal."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.demo import observed
from proxy.demo.observed import Metrics, ObservedEvents, ObservedSessions
from proxy.demo.report import Report

PLAIN_SECONDS: Final = 5.0
"""Seconds between two reports without a terminal."""
_COLUMNS: Final = (
    ("Client", ""),
    ("Principal", "principal"),
    ("Mechanism", "mechanism"),
    ("Open", "sessions open"),
    ("Left", "lifetime left"),
    ("Re-auth", "re-authenticated"),
    ("Killed", "killed"),
    ("Refused", "refused"),
    ("Read", "messages read"),
)
"""Short heading of each column, which keeps the table within 80 characters, and its full name."""
_TEXT_COLUMNS: Final = 3
"""Number of columns that are aligned to the left."""

Show = Callable[[float, ObservedEvents, Metrics, Mapping[str, Report]], None]
"""Function `show(left, events, metrics, reports)` that shows the demo `left` seconds before its
end."""


@contextmanager
def screen(console: Console) -> Iterator[Show]:
    """Yield the function that shows the demo until the block ends."""
    if not console.is_terminal:
        yield _Plain(console)
        return
    with Live(console=console, auto_refresh=False) as live:

        def show(
            left: float, log: ObservedEvents, metrics: Metrics, reports: Mapping[str, Report]
        ) -> None:
            live.update(_picture(left, log, metrics, reports), refresh=True)

        yield show


class _Plain:
    """Display of plain lines every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0

    def __call__(
        self, left: float, log: ObservedEvents, metrics: Metrics, reports: Mapping[str, Report]
    ) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        self._console.print(f"{left:.0f} s to go. {_metrics_line(metrics)}", soft_wrap=True)
        for client in log.clients.values():
            row = zip(_COLUMNS[1:], _cells(client, reports)[1:], strict=True)
            facts = ", ".join(f"{name} {value}" for (_, name), value in row if value != "-")
            self._console.print(f"  {client.client_id}: {facts}", soft_wrap=True, markup=False)


def _picture(
    left: float, log: ObservedEvents, metrics: Metrics, reports: Mapping[str, Report]
) -> Group:
    table = Table(box=None, padding=(0, 1, 0, 0), title_justify="left")
    table.title = f"Sessions, {left:.0f} s to go"
    for index, (heading, _) in enumerate(_COLUMNS):
        table.add_column(heading, justify="left" if index < _TEXT_COLUMNS else "right")
    for client in log.clients.values():
        table.add_row(*map(Text, _cells(client, reports)))
    return Group(table, Text(_metrics_line(metrics)), Text("\n".join(log.newest), style="dim"))


def _cells(client: ObservedSessions, reports: Mapping[str, Report]) -> list[str]:
    left = client.lifetime_left(time.time() * 1000)
    report = reports.get(client.client_id)
    return [
        client.client_id,
        client.principal or "-",
        client.mechanism or "-",
        str(len(client.ends_ms)),
        "-" if left is None else f"{left:.1f} s",
        str(client.reauthentications),
        str(client.kills),
        str(client.refusals),
        str(report.received) if report else "-",
    ]


def _metrics_line(metrics: Metrics) -> str:
    count = metrics.value(observed.LATENCY_COUNT)
    latency = f", {metrics.value(observed.LATENCY_SUM) / count * 1000:.1f} ms each" if count else ""
    return (
        f"/metrics: {metrics.value(observed.REAUTHENTICATIONS):.0f} re-authentications{latency};"
        f" {metrics.value(observed.KILLS):.0f} expired connections killed;"
        f" {metrics.value(observed.REFUSALS):.0f} authentications failed."
    )
