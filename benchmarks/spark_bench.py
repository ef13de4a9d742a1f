"""The readiness report at 1, 5 and 20 million events, with DuckDB, through Spark and with both.

    python -m benchmarks.spark_bench --events 1000000 5000000 20000000
    python -m benchmarks.spark_bench --events 5000000 --formats parquet --beside ../earlier

Generates events (50,000 connections, 500 principals, 2,000 client ids, 4 days) and makes the whole
report of them, in a process of its own: wall time from its start to its end, CPU time of the JVM
and Python together, and the largest memory of the process tree. Of the tools, `duckdb` reads the
folder, `fetched` has Spark fetch the files of an address first, and `cluster` has Spark look at the
events, with two workers on this machine. `--beside` names a checkout of an earlier version, whose
command runs with Spark in turn with them on the same events, as `earlier` within one JVM,
and as `earlier-cluster` with two such workers. The format `summaries` is the summary rows of the
same events alone.

Needs Java 17, `pip install pyspark duckdb`. JSON lines of 20 million events take 17 GB on disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.events.generate import EPOCH

CONNECTIONS, PRINCIPALS, CLIENTS, DAYS = 50_000, 500, 2_000, 4.0
TIMEOUT_SECONDS = 3_600
"""Limit of a run in seconds."""
LOOK_SECONDS = 0.2
"""Seconds between two readings of memory and CPU time."""
_MIB = 1024 * 1024
TOOLS = ("duckdb", "fetched", "cluster")
EARLIER_TOOLS = ("earlier", "earlier-cluster")
CLUSTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Cost of one run."""

    wall_seconds: float
    cpu_seconds: float
    peak_mib: float


def measured(command: Sequence[str], checkout: Path | None = None) -> Figure:
    """Run a command, in a checkout if one is given.

    Raises RuntimeError with the end of its output if it fails.
    """
    begin = time.monotonic()
    peak = 0
    cpu: dict[int, float] = {}
    with tempfile.TemporaryFile() as said:
        environment = os.environ | ({"PYTHONPATH": str(checkout)} if checkout else {})
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=checkout, env=environment)
        while process.poll() is None:
            tree = list(_tree(process.pid))
            peak = max(peak, sum(each.resident_bytes for each in tree))
            cpu.update((each.pid, each.cpu_seconds) for each in tree)
            if time.monotonic() - begin > TIMEOUT_SECONDS:
                process.kill()
            time.sleep(LOOK_SECONDS)
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(said.read()[-2000:].decode(errors="replace"))
    return Figure(
        wall_seconds=time.monotonic() - begin,
        cpu_seconds=sum(cpu.values()),
        peak_mib=peak / _MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    pid: int
    resident_bytes: int
    cpu_seconds: float


def _tree(pid: int) -> Iterator[_Process]:
    """Yield a process and its descendants, with the CPU time of each: nobody waits for the JVM."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        # a thread's children are its own: the JVM of a cluster's worker starts executors in others
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [child for each in tasks for child in _children(each)]
    except OSError:  # the process has just ended
        return
    yield _Process(
        pid=pid,
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )
    for child in children:
        yield from _tree(int(child))


def _children(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except OSError:  # the thread has just ended
        return []


def generate(events: int, kind: str, out: Path) -> int:
    """Make the events, unless an earlier run has left them; return their number."""
    counted = out.with_suffix(".count")
    if counted.exists():
        return int(counted.read_text())
    if kind == "summaries":
        raw = out.with_name(f"parquet-{events}")
        generate(events, "parquet", raw)
        counted.write_text(str(pick_summaries(raw, out)))
        return int(counted.read_text())
    command = [sys.executable, "-m", "benchmarks.events.generate", "--events", str(events)]
    sizes = {"connections": CONNECTIONS, "principals": PRINCIPALS, "clients": CLIENTS, "days": DAYS}
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [*command, *options, "--format", kind, "--out", str(out)],
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    counted.write_text(done.stdout.split()[0])
    return int(counted.read_text())


def pick_summaries(raw: Path, out: Path) -> int:
    """Write the summary rows of Parquet files to another folder; return their number."""
    import duckdb

    database = duckdb.connect()
    database.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet('{raw}/*.parquet')")
    database.execute(
        f"COPY (SELECT * FROM events WHERE kind = 'summary') TO '{out}'"
        " (FORMAT parquet, FILE_SIZE_BYTES '16MB')"
    )
    (count,) = database.execute(f"SELECT count(*) FROM read_parquet('{out}/*.parquet')").fetchall()[
        0
    ]
    return int(count)


def command(tool: str, events: Path, out: Path) -> list[str]:
    """Make the whole report."""
    end = datetime.fromtimestamp(EPOCH + DAYS * 86_400, UTC).isoformat()
    options = ["--out", str(out), "--as-of", end]
    job = [sys.executable, "-m", "proxy", "report", *options, "--events"]
    match tool:
        case "duckdb":
            return [*job, str(events)]
        case "fetched":
            return [*job, events.as_uri()]
        case "cluster":
            return [*job, str(events), "--master", CLUSTER]
    return [
        *job,
        str(events),
        "--engine",
        "spark",
        "--master",
        CLUSTER if tool == "earlier-cluster" else "local[*]",
    ]


def run(sizes: Sequence[int], kinds: Sequence[str], folder: Path, beside: Path | None) -> None:
    """Print one row per size, format and tool."""
    tools: dict[str, Path | None] = {name: beside for name in EARLIER_TOOLS if beside is not None}
    tools |= dict.fromkeys(TOOLS)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load before: {load:.2f}", flush=True)
    print("format   events       tool            wall s   CPU s  CPU s/M  peak MiB  load")
    for size in sizes:
        for kind in kinds:
            events = folder / f"{kind}-{size}"
            count = generate(size, kind, events)
            for name, checkout in tools.items():
                out = folder / f"report-{name}-{kind}-{size}"
                figure = measured(command(name, events, out), checkout)
                print(
                    f"{kind:8} {count:<12,} {name:15} {figure.wall_seconds:6.1f} "
                    f"{figure.cpu_seconds:7.1f} {figure.cpu_seconds / count * 1e6:8.2f} "
                    f"{figure.peak_mib:9.0f} {os.getloadavg()[0]:5.1f}",
                    flush=True,
                )


def main() -> None:
    """Measure as the options say."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--formats", nargs="+", default=["parquet", "jsonl"])
    parser.add_argument("--beside", type=Path, metavar="DIR", help="a checkout to compare with")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="leave events and reports there, and use them again",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        run(options.events, options.formats, folder, options.beside)


if __name__ == "__main__":
    main()
