"""The readiness report of a fleet, from its files and from a topic that they were delivered to.

    python -m benchmarks.fleet_report --proxies 1000 --events 20000000 --keep DIR

Writes the events of simulated proxies, a file for each, delivers them to a topic of a Kafka that it
starts, and makes the report of both, which must be equal. Then one proxy writes 1,000 events a
second, which a deliverer follows. CPU time is that of the process, all its
threads and children together, without the broker's; memory is the largest of them together.

Needs Java 17 and the extras `report` and `kafka`. 20 million events take 18 GB on disk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.events.fleet import write_fleet
from benchmarks.events.generate import EPOCH, Size
from benchmarks.spark_bench import Figure, measured
from metrics.event_log import EventLog, EventLogSettings
from tests.support.kafka.cluster import KafkaCluster

CONNECTIONS, PRINCIPALS, DAYS, PARTITIONS = 400, 100, 4.0, 6
TOPIC = "session-events"
RATE = 1000
"""Events a second."""
WARM_UP_SECONDS, FOLLOWED_SECONDS = 10, 60


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
    end = datetime.fromtimestamp(EPOCH + DAYS * 86_400, UTC).isoformat()
    options = ["--engine", "duckdb", "--out", str(out), "--as-of", end]
    return measured([sys.executable, "-m", "proxy", "report", "--events", *source, *options])


def facts(out: Path) -> dict[str, Any]:
    """Read the content of a report, without the names of the run and its source."""
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


def follow(source: Path, folder: Path, servers: list[str]) -> float:
    """Return the share of a core that the delivery of `RATE` events a second takes."""
    lines = source.read_text().splitlines()
    shutil.rmtree(folder, ignore_errors=True)
    log = EventLog(EventLogSettings(directory=folder, proxy_id="proxy", worker=0))
    written = 0

    def write_for(process: subprocess.Popen[bytes], seconds: int) -> float:
        """Write, and return the CPU seconds that the deliverer takes meanwhile."""
        nonlocal written
        before, begin = cpu_seconds(process.pid), time.monotonic()
        for second in range(1, seconds + 1):
            chosen = [lines[(written + at) % len(lines)] for at in range(RATE)]
            log.append(chosen, time.monotonic(), time.time())
            written += RATE
            time.sleep(max(0.0, begin + second - time.monotonic()))
        return cpu_seconds(process.pid) - before

    log.append(lines[:1], time.monotonic(), time.time())
    command = [sys.executable, "-m", "proxy", "events", "deliver", "--follow"]
    command += ["--events", str(folder), "--to", f"kafka:{TOPIC}", *servers]
    with subprocess.Popen(command) as process:
        try:
            write_for(process, WARM_UP_SECONDS)
            return write_for(process, FOLLOWED_SECONDS) / FOLLOWED_SECONDS
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        share = follow(next(source.glob("*.jsonl")), folder / "followed", servers)
        print(f"{RATE:,} events a second: {share:.1%} of a core", flush=True)
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
