"""Folder of a report: a run publishes its files once they are complete.

    OUT/report.json                          of the last complete run; replaced last
    OUT/index.html, OUT/tables/…, OUT/csv/…  of the same run, at fixed paths
    OUT/runs/RUN/index.html, report.json     of each run; appears atomically
    OUT/runs/RUN/tables/…, OUT/runs/RUN/csv/…

Several files cannot be replaced atomically: the files beside `runs` may belong to two runs while a
run replaces them, and for longer if it is killed meanwhile. The folder `runs/RUN` of the run that
`report.json` names is always consistent. The run before it is kept for readers that still use it.
Files that exist twice are hard links if the file system supports them.

A history is an optional folder to which each run adds files; existing files do not change. Days
beyond the retention are removed as a whole.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metrics.readiness import published
from metrics.report.write import JSON_NAME

if TYPE_CHECKING:
    from metrics.readiness.duckdb_engine import DuckEngine

TABLES = "tables"
CSV = "csv"
"""The folder with a CSV file per table."""
RUN_NAME = "_RUN"
"""The file among the tables with the run's id; readers of tables skip such names."""

RUNS: Final = "runs"
"""The folder that contains a folder for each run."""
RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
"""Pattern of run ids; anything else in the folder does not belong to the report."""

_SCRATCH = "scratch"
_HALF = ".half-"
_OLD = ".old-"


@dataclass(frozen=True, slots=True)
class Staging:
    """A hidden folder beside a report, for its next version and temporary files."""

    folder: Path
    run_id: str

    @property
    def scratch(self) -> Path:
        """The folder for temporary files."""
        return self.folder / _SCRATCH

    @property
    def tables(self) -> Path:
        """The folder of the new tables."""
        return self.folder / TABLES

    def begin_tables(self) -> None:
        """Create empty folders for the new tables, and delete any earlier attempt."""
        for folder in (self.tables, self.folder / CSV):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)


@contextmanager
def staging(out: Path, run_id: str) -> Iterator[Staging]:
    """Yield a folder to write to and delete it at the end; delete leftovers of killed runs too."""
    out.mkdir(parents=True, exist_ok=True)
    for left in (*out.glob(f"{_HALF}*"), *out.glob(f"{_OLD}*")):
        shutil.rmtree(left, ignore_errors=True)
    made = Staging((out / f"{_HALF}{run_id}").absolute(), run_id)
    made.begin_tables()
    made.scratch.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)


def write_tables(engine: "DuckEngine", made: Staging, as_of_ms: int) -> None:
    """Write the published tables of an analysis as Parquet and CSV."""
    for name in published.TABLES:
        query = published.published(name, made.run_id, as_of_ms)
        engine.write(query, made.tables / name, published.comments(name))
        engine.write_csv(published.as_text(name, query), made.folder / CSV / f"{name}.csv")


def publish(made: Staging, out: Path) -> None:
    """Replace the last report with a complete new one."""
    runs = out / RUNS
    before = run_of((out / JSON_NAME).read_bytes()) if (out / JSON_NAME).exists() else None
    whole = made.scratch / RUNS
    shutil.copytree(
        made.folder, whole, copy_function=_link, ignore=shutil.ignore_patterns(_SCRATCH)
    )
    runs.mkdir(exist_ok=True)
    whole.rename(runs / made.run_id)
    old = out / f"{_OLD}{made.folder.name}"
    old.mkdir()
    for name in (TABLES, CSV):
        if (out / name).exists():
            (out / name).rename(old / name)
        (made.folder / name).rename(out / name)
    for file in sorted(made.folder.iterdir(), key=lambda file: file.name == JSON_NAME):
        if file.is_file():
            file.replace(out / file.name)
    shutil.rmtree(old, ignore_errors=True)
    for run in runs.iterdir():
        if run.name not in {made.run_id, before} and RUN_ID.fullmatch(run.name):
            shutil.rmtree(run, ignore_errors=True)


def run_of(report: str | bytes) -> str | None:
    """Return the run id in a report.json; None if it is not from a report."""
    try:
        return str(json.loads(report)["run_id"])
    except (ValueError, LookupError, TypeError):
        return None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system supports links
        shutil.copyfile(source, target)


def add_to_history(out: Path, history: Path, run_id: str, as_of_ms: int) -> None:
    """Add a report's tables to those of earlier runs, in a folder per table and day of the run.

    Files appear atomically. Tables that grow with connections are left out: keep the events
    themselves instead.
    """
    day = _run_day(as_of_ms)
    for name, table in published.TABLES.items():
        if table.grows_with_connections:
            continue
        for number, file in enumerate(sorted((out / TABLES / name).glob("*.parquet"))):
            target = history / name / day / f"{run_id}-{number:05}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            half = target.with_name(f".{target.name}")
            try:
                shutil.copyfile(file, half)
                half.replace(target)
            finally:
                half.unlink(missing_ok=True)


def prune_history(history: Path, days: int, as_of_ms: int) -> None:
    """Remove the files of all but the last `days` days, which include today."""
    first = _run_day(as_of_ms, days - 1)
    for folder in history.glob("*/run_day=????-??-??"):
        if folder.name < first:
            shutil.rmtree(folder)


def _run_day(as_of_ms: int, days_before: int = 0) -> str:
    """Return the folder name of a day; names sort chronologically."""
    day = datetime.fromtimestamp(as_of_ms / 1000, UTC).date() - timedelta(days=days_before)
    return f"run_day={day:%Y-%m-%d}"
