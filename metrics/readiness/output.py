"""Folder of a report: what a run writes is put in its place when it is whole.

A history, if one is kept, is a folder below which each run adds its files, and changes none.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from metrics.readiness import published

TABLES = "tables"
RUN_NAME = "_RUN"
"""The file among the tables with the run's name; readers of tables pass over such names."""

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
        return self.folder / "scratch"

    @property
    def tables(self) -> Path:
        """The folder of the new tables."""
        return self.folder / TABLES


@contextmanager
def staging(out: Path, run_id: str) -> Iterator[Staging]:
    """Give a place to write to; it goes at the end, and what a killed run left goes, too."""
    out.mkdir(parents=True, exist_ok=True)
    for left in (*out.glob(f"{_HALF}*"), *out.glob(f"{_OLD}*")):
        shutil.rmtree(left, ignore_errors=True)
    made = Staging((out / f"{_HALF}{run_id}").absolute(), run_id)
    made.tables.mkdir(parents=True)
    made.scratch.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)


def publish(made: Staging, out: Path) -> None:
    """Put the tables and files of a whole report in the place of the last one's."""
    old = out / f"{_OLD}{made.folder.name}"
    if (out / TABLES).exists():
        (out / TABLES).rename(old)
    made.tables.rename(out / TABLES)
    for file in made.folder.iterdir():
        if file.is_file():
            file.replace(out / file.name)
    shutil.rmtree(old, ignore_errors=True)


def add_to_history(out: Path, history: Path, run_id: str, as_of_ms: int) -> None:
    """Add a report's tables to those of earlier runs, in a folder by table and day of the run.

    A file is there whole or not at all. Tables that grow with connections are left out: the events
    themselves are kept by whoever wants them.
    """
    day = f"run_day={datetime.fromtimestamp(as_of_ms / 1000, UTC):%Y-%m-%d}"
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
