"""Measure the readiness report: wall time, CPU time and memory, beside DuckDB on the same events.

    python -m benchmarks.spark_bench                       # 1 and 5 million events, Parquet
    python -m benchmarks.spark_bench --millions 1,5,20 --formats parquet,jsonl
    python -m benchmarks.spark_bench --keep /var/tmp/events --json spark.json

Events are generated from a seed (kept with --keep and used again). A row is one fresh process from
its start to its exit; CPU and memory are those of its whole process tree. DuckDB (`pip install
duckdb`) answers the questions that scan all events: sessions, clients, and the lifetimes that
would have killed; not the walk through active minutes, the page, or the tables.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import machine

_CONNECTIONS_A_MILLION, _PRINCIPALS, _CLIENTS = 2_500, 500, 2_000
_TICKS_PER_SECOND = 100
_PAGE_BYTES = 4096
_TIMEOUT_SECONDS = 1800.0

_DUCKDB = """
import duckdb, sys
path, form = sys.argv[1:]
read = f"read_parquet('{path}/**/*.parquet')" if form == "parquet" else (
    f"read_json('{path}/*.json*', format='newline_delimited', columns={COLUMNS})")
duckdb.sql(f'''create table sessions as select connection_id,
  max_by(principal, sequence) principal, max_by(client_id, sequence) client_id,
  max_by(client_software_name, sequence) software, max_by(mechanism, sequence) mechanism,
  max_by(authenticate_version, sequence) version, max(authentications) authentications,
  count(distinct sequence) events, count_if(kind in ('expired-killed', 'would-be-killed')) kills,
  max(case when kind = 'reauthenticated' then last_request_ms - (timestamp_ms - since_auth_ms)
      else last_request_ms - authenticated_ms end) used_ms
  from {read} where kind <> 'summary' group by connection_id''')
duckdb.sql('''select principal, client_id, software, mechanism, count(*), sum(kills), min(version)
  from sessions group by all''').fetchall()
for minutes in (5, 15, 30, 60, 240):
    duckdb.sql(f'''select count(*), count(distinct principal) from sessions
      where used_ms > {minutes * 60_000}
      and (version is null or version < 1 or kills > 0)''').fetchall()
for kind in ('minute', 'bucket'):
    by = "timestamp_ms // 60000" if kind == "minute" else "ceil(ln(auth_latency_us) / ln(1.02))"
    duckdb.sql(f'''select mechanism, {by}, count(*) from {read}
      where kind in ('authenticated', 'reauthenticated') group by all''').fetchall()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a program."""

    events: int
    format: str
    program: str
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    """Largest resident memory of the process tree, seen five times a second."""


def measured(command: list[str], *, events: int, form: str, program: str) -> Measured:
    """Run a program to its end; raises CalledProcessError or TimeoutExpired."""
    begin = time.monotonic()
    cpu = peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        ticks: dict[int, int] = {}
        while process.poll() is None:
            resident = 0
            for pid, used, pages in _tree(process.pid):
                ticks[pid] = max(used, ticks.get(pid, 0))
                resident += pages
            peak = max(peak, resident * _PAGE_BYTES / 2**20)
            if time.monotonic() - begin > _TIMEOUT_SECONDS:
                process.terminate()
                raise subprocess.TimeoutExpired(command, _TIMEOUT_SECONDS)
            time.sleep(0.2)
        cpu = sum(ticks.values()) / _TICKS_PER_SECOND
        if process.returncode:
            assert process.stderr is not None
            raise subprocess.CalledProcessError(
                process.returncode, command, stderr=process.stderr.read().decode()
            )
    return Measured(
        events=events,
        format=form,
        program=program,
        wall_seconds=time.monotonic() - begin,
        cpu_seconds=cpu,
        peak_mib=peak,
    )


def _tree(root: int) -> list[tuple[int, int, int]]:
    """Give (pid, CPU ticks, resident pages) of a process and its descendants."""
    found, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        found[pid] = (pid, int(fields[11]) + int(fields[12]), int(fields[21]))
    family = {root}
    for _ in range(5):
        family |= {pid for pid, parent in parents.items() if parent in family}
    return [found[pid] for pid in family if pid in found]


def events_of(millions: float, form: str, folder: Path) -> Path:
    """Generate the events, unless they are there."""
    out = folder / f"{millions:g}m-{form}"
    if not (out / "truth.json").exists():
        connections = round(_CONNECTIONS_A_MILLION * millions)
        size = ["--events", str(round(millions * 1e6)), "--connections", str(connections)]
        who = ["--principals", str(_PRINCIPALS), "--clients", str(_CLIENTS), "--days", "4"]
        command = [sys.executable, "-m", "metrics.spark.generate", "--format", form]
        subprocess.run([*command, *size, *who, "--out", str(out)], check=True)
    return out


def duckdb_program() -> str:
    """Give the DuckDB program, with the columns that it needs of JSON lines."""
    columns = dict.fromkeys(
        ("timestamp_ms", "sequence", "authentications", "authenticated_ms", "since_auth_ms"),
        "BIGINT",
    )
    columns |= dict.fromkeys(
        ("last_request_ms", "auth_latency_us", "authenticate_version"), "BIGINT"
    )
    columns |= dict.fromkeys(
        ("connection_id", "kind", "principal", "client_id", "client_software_name", "mechanism"),
        "VARCHAR",
    )
    # doubled: it will stand in an f-string
    return _DUCKDB.replace("{COLUMNS}", "{{" + str(columns)[1:-1] + "}}")


def run(millions: list[float], formats: list[str], folder: Path) -> list[Measured]:
    """Measure every size and format."""
    results = []
    for size in millions:
        for form in formats:
            path = events_of(size, form, folder)
            events = round(size * 1e6)
            with tempfile.TemporaryDirectory() as out:
                job = [sys.executable, "-m", "metrics.spark.job", "--master", "local[2]"]
                command = [*job, "--events", str(path), "--out", out]
                results.append(measured(command, events=events, form=form, program="report"))
            if importlib.util.find_spec("duckdb") is not None:
                program = [sys.executable, "-c", duckdb_program(), str(path), form]
                results.append(measured(program, events=events, form=form, program="duckdb"))
    return results


def table_of(results: list[Measured]) -> Table:
    table = Table(title="The readiness report")
    for name in ("events", "format", "program"):
        table.add_column(name)
    for name in ("wall s", "CPU s", "CPU µs an event", "peak MiB"):
        table.add_column(name, justify="right")
    for each in results:
        table.add_row(
            f"{each.events:,}",
            each.format,
            each.program,
            f"{each.wall_seconds:.1f}",
            f"{each.cpu_seconds:.1f}",
            f"{each.cpu_seconds / each.events * 1e6:.1f}",
            f"{each.peak_mib:,.0f}",
        )
    return table


def arg_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--millions", default="1,5", help="sizes (default: 1,5)")
    parser.add_argument("--formats", default="parquet", help="some of parquet,jsonl")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where events are kept")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(argv: list[str] | None = None) -> int:
    options = arg_parser().parse_args(argv)
    millions = [float(text) for text in options.millions.split(",")]
    formats = options.formats.split(",")
    console = Console()
    for name, value in machine.describe(pinned=False).items():
        console.print(f"{name}: {value}", style="dim")
    with tempfile.TemporaryDirectory() as temporary:
        results = run(millions, formats, options.keep or Path(temporary))
    console.print(table_of(results))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
