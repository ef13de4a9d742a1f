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

TOTALS_SECONDS: Final = 15.0
"""Seconds between two lines of totals without a terminal."""
_COLUMNS: Final = (
    "Client",
    "Principal",
    "Mechanism",
    "Open",
    "Left",
    "Re-auth",
    "Killed",
    "Refused",
    "Read",
)
"""Headings, short enough for a table of 80 characters."""
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
    """Display of plain lines: what each client met first, and totals now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seconds: float | None = None
        """Seconds that the clients work; None: nothing was shown yet."""
        self._totals_at = 0.0
        self._shown: set[tuple[str, str]] = set()

    def __call__(
        self, left: float, log: ObservedEvents, metrics: Metrics, _reports: Mapping[str, Report]
    ) -> None:
        if self._seconds is None:
            self._seconds = left
        elapsed = self._seconds - left
        for client in log.clients.values():
            for what in _milestones(client):
                if (client.client_id, what) not in self._shown:
                    self._shown.add((client.client_id, what))
                    self._line(elapsed, client.client_id, what)
        if elapsed >= self._totals_at:
            self._totals_at = elapsed + TOTALS_SECONDS
            self._line(elapsed, "(all)", _metrics_line(metrics))

    def _line(self, elapsed: float, who: str, what: str) -> None:
        self._console.print(Text(f"{elapsed:4.0f} s  {who:<8}  {what}"), soft_wrap=True)


def _milestones(client: ObservedSessions) -> Iterator[str]:
    """Yield what a client has met at least once."""
    if client.authentications:
        yield f"logged in as {client.principal} with {client.mechanism}"
    if client.reauthentications:
        yield "re-authenticated on its open connection, for the first time"
    if client.kills:
        yield "was cut off: it used a connection past the end of its session"
    if client.refusals:
        yield "was refused: it cannot prove who it is"


def _picture(
    left: float, log: ObservedEvents, metrics: Metrics, reports: Mapping[str, Report]
) -> Group:
    table = Table(box=None, padding=(0, 1, 0, 0), title_justify="left")
    table.title = f"Sessions, {left:.0f} s to go"
    for index, heading in enumerate(_COLUMNS):
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
        f"{metrics.value(observed.REAUTHENTICATIONS):.0f} re-authentications{latency};"
        f" {metrics.value(observed.KILLS):.0f} expired connections killed;"
        f" {metrics.value(observed.REFUSALS):.0f} authentications failed."
    )
