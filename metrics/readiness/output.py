"""Folder of a report: what a run writes is put in its place when it is whole."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TABLES = "tables"
RUN_NAME = "_RUN"
"""The file among the tables with the run's name; readers of tables pass over such names."""

_HALF = ".half-"
_OLD = ".old-"


@dataclass(frozen=True, slots=True)
class Staging:
    """A hidden folder beside a report, for its next version and what is kept in between."""

    folder: Path

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
    made = Staging((out / f"{_HALF}{run_id}").absolute())
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
