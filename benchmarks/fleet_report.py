"""The readiness report of a fleet, from its files and from a topic that they were delivered to.

    python -m benchmarks.fleet_report --proxies 1000 --events 20000000 --keep DIR

Writes the events of simulated proxies, a file for each, delivers them to a topic of a Kafka that it
starts, and makes the report of both, which must be equal. CPU time is that of the process, all its
threads and children together, without the broker's; memory is the largest of them together.

Needs Java 17 and the extras `report` and `kafka`. 20 million events take 18 GB on disk.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.events.fleet import write_fleet
from benchmarks.events.generate import EPOCH, Size
from benchmarks.spark_bench import Figure, measured
from tests.support.kafka.cluster import KafkaCluster

CONNECTIONS, PRINCIPALS, DAYS, PARTITIONS = 400, 100, 4.0, 6
TOPIC = "session-events"


def generate(proxies: int, events: int, out: Path) -> int:
    """Write the events, unless an earlier run has left them; return their number."""
    counted = out.with_suffix(".count")
    if not counted.exists():
        size = Size(
            connections=CONNECTIONS,
            principals=PRINCIPALS,
            clients=CONNECTIONS,
            days=DAYS,
            seed=1,
            events=events // proxies,
        )
        counted.write_text(str(write_fleet(proxies, size, out)))
    return int(counted.read_text())


def report(out: Path, *source: str) -> Figure:
    """Make the report of a source."""
    end_ms = round((EPOCH + DAYS * 86_400) * 1000)
    options = ["--engine", "duckdb", "--out", str(out), "--as-of-ms", str(end_ms)]
    return measured([sys.executable, "-m", "metrics.readiness.job", "--events", *source, *options])


def facts(out: Path) -> dict[str, Any]:
    """Read what a report says, without what names the run and its source."""
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    del found["run_id"], found["source"]
    return found


def show(name: str, figure: Figure, events: int) -> None:
    """Print a line of the table."""
    print(
        f"{name:24} {figure.wall_seconds:8.1f} {figure.cpu_seconds:8.1f} "
        f"{figure.cpu_seconds / events * 1e6:9.2f} {figure.peak_mib:9.0f} "
        f"{os.getloadavg()[0]:5.1f}",
        flush=True,
    )


def run(proxies: int, events: int, folder: Path) -> None:
    """Print one row for the delivery and one for each report."""
    source, places = folder / "events", (folder / "of-files", folder / "of-topic")
    count = generate(proxies, events, source)
    print(f"{count:,} events of {proxies:,} proxies; {os.cpu_count()} CPUs", flush=True)
    print("                           wall s    CPU s  µs/event  peak MiB  load")
    with KafkaCluster(nodes=1, properties={"log.retention.ms": "-1"}) as kafka:
        kafka.create_topic(TOPIC, partitions=PARTITIONS)
        servers = ["--bootstrap-server", kafka.bootstrap()]
        deliver = ["-m", "proxy", "events", "deliver", "--events", str(source)]
        to = ["--to", f"kafka:{TOPIC}", *servers]
        (source / "delivery.json").unlink(missing_ok=True)
        show("delivery", measured([sys.executable, *deliver, *to]), count)
        of_files = report(places[0], str(source))
        show("report of the files", of_files, count)
        of_topic = report(places[1], f"kafka:{TOPIC}", *servers)
        show("report of the topic", of_topic, count)
    if facts(places[0]) != facts(places[1]):
        raise SystemExit("the two reports differ")
    ratio = of_topic.cpu_seconds / of_files.cpu_seconds
    print(f"the reports are equal; the topic took {ratio:.2f} times the CPU time of the files")


def main() -> None:
    """Measure as the options say."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--proxies", type=int, default=1000)
    parser.add_argument("--events", type=int, default=20_000_000, help="about so many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave events and reports there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-report-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        run(options.proxies, options.events, folder)


if __name__ == "__main__":
    main()
