"""Restarts under load: connections refused, messages lost, and the longest latency of a producer.

    python -m benchmarks.restarts
    python -m benchmarks.restarts --times 10 --workers 2
    python -m benchmarks.restarts --times 10 --plain

A hundred restarts take some six minutes. A gateway before librdkafka's mock cluster is replaced by
`serve --take-over` again and again, while one producer sends a hundred numbered messages a second
and one client connects to every port, five hundred times a second. `--plain` ends the proxy by
SIGTERM and starts the next one, as without a take-over. The exit status is 1 if a connection was
refused, or a message was not delivered or is not in the topic.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import machine, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0, or 1 if something was refused or lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, default=100, help="restarts (default 100)")
    parser.add_argument("--workers", type=int, default=1, help="(default 1)")
    parser.add_argument("--plain", action="store_true", help="stop, then start")
    options = parser.parse_args(arguments)
    console = Console(width=100)
    console.print(report.machine(machine.describe(pinned=False)))
    with tempfile.TemporaryDirectory(prefix="restarts-") as name:
        table, kept = _measured(Path(name), options)
    console.print(table)
    return 0 if kept else 1


def _measured(directory: Path, options: argparse.Namespace) -> tuple[Table, bool]:
    from tests.support.restarts import Connecting, Gateway, Producing, messages, mock_cluster

    with mock_cluster() as cluster:
        gateway = Gateway(directory, options.workers, cluster)
        gateway.start()
        try:
            gateway.until_up()
            ports = [gateway.port, *gateway.broker_ports, gateway.http_port]
            with (
                Connecting(ports) as connecting,
                Producing(f"127.0.0.1:{gateway.port}") as producing,
            ):
                restart = gateway.restart if options.plain else gateway.take_over
                took = [restart() for _ in range(options.times)]
            lost = producing.delivered - messages(cluster)
        finally:
            gateway.stop()
    table = Table("restarts", str(options.times))
    table.add_row("seconds until the next one serves, median", f"{median(took):.2f}")
    table.add_row("the longest", f"{max(took):.2f}")
    table.add_row("connections made", f"{connecting.connected}")
    table.add_row("refused", f"{len(connecting.refused)}")
    table.add_row("longest time to connect, s", f"{connecting.worst_seconds:.2f}")
    table.add_row("messages delivered", f"{len(producing.delivered)}")
    table.add_row("not delivered", f"{len(producing.failed)}")
    table.add_row("delivered, and not in the topic", f"{len(lost)}")
    table.add_row("connections of the producer refused", f"{len(producing.refused)}")
    table.add_row("longest time to an acknowledgement, s", f"{producing.worst_seconds:.2f}")
    return table, not (connecting.refused or producing.failed or producing.refused or lost)


if __name__ == "__main__":
    sys.exit(main())
