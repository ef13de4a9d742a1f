"""Folder of a report: what a run writes is put in its place when it is whole.

    OUT/report.json                          of the last whole run, which it names; replaced last
    OUT/index.html, OUT/tables/…             the same run's, for whoever reads them by path
    OUT/runs/RUN/index.html, report.json     each run's, whole from the moment that it is there
    OUT/runs/RUN/tables/…

Files cannot be replaced all at once: those beside `runs` may be of two runs while one is replacing
them, and for longer if it is killed there. `runs/RUN` of the run that `report.json` names is always
of one. The run before is kept, for whoever still reads it. Files that are there twice are hard
links if the file system has them.

A history, if one is kept, is a folder below which each run adds its files, and changes none. Days
that are older than wanted are removed as a whole.
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
from typing import Final

from metrics.readiness import published
from metrics.report.write import JSON_NAME

TABLES = "tables"
RUN_NAME = "_RUN"
"""The file among the tables with the run's name; readers of tables pass over such names."""

RUNS: Final = "runs"
"""The folder with one for each run."""
RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
"""Names of runs; what else is there is not of the report's."""

_SCRATCH = "scratch"
_HALF = ".half-"
_OLD = ".old-"


@dataclass(frozen=True, slots=True)
class Staging:
    """A hidden folder beside a report, for its next version and what is kept in between."""

    folder: Path
    run_id: str

    @property
    def scratch(self) -> Path:
        """The folder for what is kept in between."""
        return self.folder / _SCRATCH

    @property
    def tables(self) -> Path:
        """The folder of the new tables."""
        return self.folder / TABLES

    def begin_tables(self) -> None:
        """Make the folder of the new tables, in place of one that was begun before."""
        shutil.rmtree(self.tables, ignore_errors=True)
        self.tables.mkdir(parents=True)


@contextmanager
def staging(out: Path, run_id: str) -> Iterator[Staging]:
    """Give a place to write to; it goes at the end, and what a killed run left goes, too."""
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


def publish(made: Staging, out: Path) -> None:
    """Put a whole report in the place of the last one's."""
    runs = out / RUNS
    before = run_of((out / JSON_NAME).read_bytes()) if (out / JSON_NAME).exists() else None
    whole = made.scratch / RUNS
    shutil.copytree(
        made.folder, whole, copy_function=_link, ignore=shutil.ignore_patterns(_SCRATCH)
    )
    runs.mkdir(exist_ok=True)
    whole.rename(runs / made.run_id)
    old = out / f"{_OLD}{made.folder.name}"
    if (out / TABLES).exists():
        (out / TABLES).rename(old)
    made.tables.rename(out / TABLES)
    for file in sorted(made.folder.iterdir(), key=lambda file: file.name == JSON_NAME):
        if file.is_file():
            file.replace(out / file.name)
    shutil.rmtree(old, ignore_errors=True)
    for run in runs.iterdir():
        if run.name not in {made.run_id, before} and RUN_ID.fullmatch(run.name):
            shutil.rmtree(run, ignore_errors=True)


def run_of(report: str | bytes) -> str | None:
    """Return the run that a report.json names; None: it is no report's."""
    try:
        return str(json.loads(report)["run_id"])
    except (ValueError, LookupError, TypeError):
        return None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has links
        shutil.copyfile(source, target)


def add_to_history(out: Path, history: Path, run_id: str, as_of_ms: int) -> None:
    """Add a report's tables to those of earlier runs, in a folder by table and day of the run.

    A file is there whole or not at all. Tables that grow with connections are left out: the events
    themselves are kept by whoever wants them.
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
    """Remove what runs added on days before the last `days`; the day of the present time is one."""
    first = _run_day(as_of_ms, days - 1)
    for folder in history.glob("*/run_day=????-??-??"):
        if folder.name < first:
            shutil.rmtree(folder)


def _run_day(as_of_ms: int, days_before: int = 0) -> str:
    """Name the folder of a day; the names sort as the days do."""
    day = datetime.fromtimestamp(as_of_ms / 1000, UTC).date() - timedelta(days=days_before)
    return f"run_day={day:%Y-%m-%d}"
