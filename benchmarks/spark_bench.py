"""Benchmark of the readiness report at 1, 5 and 20 million events, beside DuckDB.

    python -m benchmarks.spark_bench --events 1000000 5000000 20000000
    python -m benchmarks.spark_bench --events 20000000 --formats parquet summaries --keep DIR

Generates events (50,000 connections, 500 principals, 2,000 client ids, 4 days) and makes the whole
report of them with `python -m metrics.spark.job`, in a process of its own: wall time from its start
to its end, CPU time of the JVM and Python together, and the largest memory of the process tree.
DuckDB answers the queries that make most of the cost: sessions, clients, what a lifetime kills,
storms, latencies. It rejects no invalid events, finds no duplicates and writes no tables. The
format `summaries` has only the summary rows of the same events, which DuckDB selects from the
Parquet.

Needs Java 17, `pip install pyspark`, and for its rows `pip install duckdb`. JSON lines of 20
million events take 8 GB on disk.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CONNECTIONS, PRINCIPALS, CLIENTS, DAYS = 50_000, 500, 2_000, 4.0
TIMEOUT_SECONDS = 1_800
"""Limit of a run in seconds."""
LOOK_SECONDS = 0.2
"""Seconds between two readings of memory and CPU time."""
_MIB = 1024 * 1024

LIFETIMES_MS = tuple(minutes * 60_000 for minutes in (5, 15, 30, 60, 240))

DUCKDB_QUERIES = """
CREATE TABLE sessions AS
SELECT connection_id,
    max_by(principal, sequence) AS principal, max_by(client_id, sequence) AS client_id,
    max_by(client_software_name, sequence) AS software, max_by(mechanism, sequence) AS mechanism,
    max_by(authenticate_version, sequence) AS authenticate_version,
    min(connected_ms) AS connected_ms, max(timestamp_ms) AS last_event_ms,
    max(authentications) AS authentications, max(announced_lifetime_ms) AS told_ms,
    max(last_request_ms - authenticated_ms) AS used_ms, sum(requests) AS requests,
    count(*) FILTER (kind = 'would-be-killed') AS would_be_kills,
    count(*) FILTER (kind = 'expired-killed') AS killed,
    count(*) FILTER (kind = 'failed') AS failed
FROM events WHERE kind <> 'summary' GROUP BY connection_id;
CREATE TABLE clients AS
SELECT principal, client_id, software, mechanism, count(*) AS connections,
    sum(would_be_kills + killed) AS kills, max(authentications) AS authentications,
    max(used_ms) AS used_ms, min(authenticate_version) AS authenticate_version
FROM sessions GROUP BY ALL;
CREATE TABLE what_if AS
SELECT lifetime_ms, count(*) FILTER (used_ms > lifetime_ms) AS killed,
    count(DISTINCT principal) FILTER (used_ms > lifetime_ms) AS principals
FROM sessions, (SELECT unnest($lifetimes) AS lifetime_ms) GROUP BY lifetime_ms;
CREATE TABLE storms AS
SELECT timestamp_ms // 60000 AS minute, mechanism, count(*) AS authentications,
    sum(auth_latency_us) AS busy_us
FROM events WHERE kind IN ('authenticated', 'reauthenticated') GROUP BY ALL;
CREATE TABLE latencies AS
SELECT mechanism, kind, quantile_disc(auth_latency_us, [0.5, 0.95, 0.99]) AS quantiles
FROM events WHERE kind IN ('authenticated', 'reauthenticated') GROUP BY ALL;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Cost of one run."""

    wall_seconds: float
    cpu_seconds: float
    peak_mib: float


def measured(command: Sequence[str]) -> Figure:
    """Run a command; raise RuntimeError with the end of its output if it fails."""
    begin = time.monotonic()
    peak = 0
    cpu: dict[int, float] = {}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
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
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # the process has just ended
        return
    yield _Process(
        pid=pid,
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )
    for child in children:
        yield from _tree(int(child))


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


def by_spark(events: Path, kind: str, out: Path) -> Figure:
    """Make the whole report."""
    del kind
    command = [sys.executable, "-m", "metrics.spark.job", "--master", "local[*]"]
    return measured([*command, "--events", str(events), "--out", str(out)])


def by_duckdb(events: Path, kind: str, out: Path) -> Figure:
    """Run the same queries in DuckDB."""
    del out
    return measured([sys.executable, "-m", "benchmarks.spark_bench", "--duckdb", kind, str(events)])


def query_duckdb(kind: str, events: Path) -> None:
    """Run the queries, in this process."""
    import duckdb

    from metrics.events import EVENT_SCHEMA

    database = duckdb.connect()
    if kind == "parquet":
        source = f"read_parquet('{events}/*.parquet')"
    else:
        wanted = {"long": "BIGINT", "string": "VARCHAR", "boolean": "BOOLEAN"}
        columns = ", ".join(
            f"{each.name}: '{wanted[each.type]}'" for each in EVENT_SCHEMA if each.type in wanted
        )
        options = f"format='newline_delimited', columns={{{columns}}}"
        source = f"read_json('{events}/part-*.json', {options})"
    database.execute(f"CREATE VIEW events AS SELECT * FROM {source}")
    database.execute(DUCKDB_QUERIES.replace("$lifetimes", str(list(LIFETIMES_MS))))


TOOLS: dict[str, Callable[[Path, str, Path], Figure]] = {"spark": by_spark, "duckdb": by_duckdb}


def run(sizes: Sequence[int], kinds: Sequence[str], folder: Path) -> None:
    """Print one row per size, format and tool."""
    tools = dict(TOOLS)
    if importlib.util.find_spec("duckdb") is None:
        print("duckdb is not installed (pip install duckdb): its rows are left out")
        del tools["duckdb"]
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load before: {load:.2f}", flush=True)
    print("format   events       tool    wall s   CPU s  CPU s/M  peak MiB  load")
    for size in sizes:
        for kind in kinds:
            events = folder / f"{kind}-{size}"
            count = generate(size, kind, events)
            for name, tool in tools.items():
                if kind == "summaries" and name == "duckdb":  # its questions are of events
                    continue
                figure = tool(events, kind, folder / f"report-{kind}-{size}")
                print(
                    f"{kind:8} {count:<12,} {name:6} {figure.wall_seconds:7.1f} "
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
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="leave events and reports there, and use them again",
    )
    parser.add_argument("--duckdb", nargs=2, metavar=("FORMAT", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.duckdb:
        query_duckdb(options.duckdb[0], Path(options.duckdb[1]))
        return
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(options.events, options.formats, folder)


if __name__ == "__main__":
    main()
