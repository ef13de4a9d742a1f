"""Table of the events of a topic: Parquet files, and the offsets up to which they go.

    FOLDER/topic.json             the numbers of the valid files, and the offsets after them
    FOLDER/events-0000000.parquet …

A file is written before `topic.json` lists it, and removed after it is no longer listed. Unlisted
files, such as after a crash, are removed, so no message is lost or duplicated. The small files of
many short runs are merged, so that their number depends only on the number of events.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb

from metrics.readiness.duckdb_engine import PORTION_COMMAS, DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import Folder

BATCH_BYTES: Final = 128 * 1024 * 1024
"""Size in bytes of the lines in a file."""
SMALL_BYTES: Final = 2 * 1024 * 1024
"""Size in bytes below which a file is merged with the next one; a full batch gives a file of about
twice the size."""
NAME: Final = "topic.json"

_VERSION: Final = 1
_FILES: Final = ("events-*.parquet", "events-*.portion.jsonl")
"""Patterns of the names of table files, and of temporary files from packing lines."""


Read = Callable[[dict[int, int]], Iterator[bytes]]
"""Function that yields whole lines; before each yield, it sets the offsets to those after them."""


class TopicTable:
    """Events of one topic in a folder, to which each run adds."""

    def __init__(self, folder: Path, topic: str) -> None:
        """Open or create the table. Raises ReportError and OSError."""
        self._folder = folder
        self._topic = topic
        self._files: list[int] = []
        """Numbers of the files, in the order in which they were written."""
        self._offsets: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NAME).exists():
            self._load()

    def add(self, engine: DuckEngine, read: Read) -> None:
        """Add the lines that `read` yields. Raises ReportError, OSError and DuckDB's errors."""
        self._remove_others()
        half = self._folder / "half.jsonl"
        offsets = dict(self._offsets)
        lines = read(offsets)
        try:
            while _write(lines, half):
                first = self._next()
                made = engine.pack([half], partial(self._path_after, first))
                self._save([*self._files, *range(first, first + len(made))], offsets)
                self._merge(engine)
        finally:
            half.unlink(missing_ok=True)
        self._save(self._files, offsets)

    def folder(self) -> Folder:
        """Return the files. Raises ReportError if the table is empty."""
        if not self._files:
            raise ReportError(f"kafka:{self._topic}: there are no events in this topic yet")
        return Folder([self._path(number) for number in self._files], parquet=True)

    def _next(self) -> int:
        return max(self._files, default=-1) + 1

    def _path_after(self, first: int, number: int) -> Path:
        return self._path(first + number)

    def _path(self, number: int) -> Path:
        return self._folder / f"events-{number:07}.parquet"

    def _merge(self, engine: DuckEngine) -> None:
        """Merge the last two files if the first of them is small.

        Files whose lists together exceed the memory are not merged: a small file may have many
        elements.
        """
        files = [self._path(number) for number in self._files[-2:]]
        target = self._path(self._next())
        if len(files) < 2 or files[0].stat().st_size >= SMALL_BYTES:
            return
        if engine.elements(files) > PORTION_COMMAS:
            return
        try:
            engine.merge(files, target)
        except duckdb.OutOfMemoryException:  # of lines made to exhaust the memory
            target.unlink(missing_ok=True)
            return
        self._save([*self._files[:-2], self._next()], self._offsets)
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove files that `topic.json` does not list."""
        counted = {self._path(number) for number in self._files}
        for pattern in _FILES:
            for path in set(self._folder.glob(pattern)) - counted:
                path.unlink()

    def _load(self) -> None:
        path = self._folder / NAME
        try:
            found = json.loads(path.read_bytes())
            known = found["version"] == _VERSION
            topic, files = str(found["topic"]), [int(number) for number in found["files"]]
            offsets = {int(name): int(offset) for name, offset in found["offsets"].items()}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            known = False
        if not known:
            raise ReportError(f"{path}: damaged, or of another version; remove it with its folder")
        if topic != self._topic:
            raise ReportError(
                f"{path}: belongs to kafka:{topic}; use a separate --state for each topic"
            )
        self._files, self._offsets = files, offsets

    def _save(self, files: list[int], offsets: Mapping[int, int]) -> None:
        for number in set(files) - set(self._files):
            _sync(self._path(number))
        said: dict[str, Any] = {"version": _VERSION, "topic": self._topic, "files": files}
        said["offsets"] = {str(partition): offset for partition, offset in offsets.items()}
        half = self._folder / f"{NAME}.half"
        half.write_text(json.dumps(said), encoding="ascii")
        _sync(half)
        half.replace(self._folder / NAME)
        _sync(self._folder)
        self._files, self._offsets = files, dict(offsets)


def _write(lines: Iterator[bytes], path: Path) -> int:
    """Write about one batch of lines; return its size in bytes."""
    size = 0
    with path.open("wb") as file:
        for some in lines:
            size += file.write(some)
            if size >= BATCH_BYTES:
                break
    return size


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
