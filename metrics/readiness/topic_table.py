"""Table of the events of a topic: Parquet files, and the offsets up to which they go.

    FOLDER/topic.json             the number of files that count, and the offsets after them
    FOLDER/events-0000000.parquet …

A file is written before `topic.json` says that it counts: what a crash leaves is written anew, so
that no message is there twice, and none is missing.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import Folder
from metrics.readiness.topic import TopicReader

BATCH_BYTES: Final = 128 * 1024 * 1024
"""Size in bytes of the lines that make a file."""
BATCH_COMMAS: Final = 3_000_000
"""Number of commas of the lines that make a file, of some 60,000 events. It bounds the elements of
lists: one of three bytes, `{},`, takes over a hundred in DuckDB."""
NAME: Final = "topic.json"

_VERSION: Final = 1


class TopicTable:
    """Events of one topic in a folder, to which later runs add."""

    def __init__(self, folder: Path, topic: str) -> None:
        """Open what is there. Raises ReportError and OSError."""
        self._folder = folder
        self._topic = topic
        self._files = 0
        self._offsets: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NAME).exists():
            self._load()

    def add(self, engine: DuckEngine, reader: TopicReader, since_ms: int | None = None) -> None:
        """Add what is new in the topic. Raises ReportError, OSError and DuckDB's errors."""
        half = self._folder / "half.jsonl"
        offsets = dict(self._offsets)
        lines = reader.read(offsets, since_ms)
        try:
            while _write(lines, half):
                path = self._path(self._files)
                engine.pack([half], path)
                _sync(path)
                self._save(self._files + 1, offsets)
        finally:
            half.unlink(missing_ok=True)
        self._save(self._files, offsets)

    def folder(self) -> Folder:
        """Return the files. Raises ReportError if there are none."""
        if not self._files:
            raise ReportError(f"kafka:{self._topic}: there are no events in this topic yet")
        return Folder([self._path(number) for number in range(self._files)], parquet=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"events-{number:07}.parquet"

    def _load(self) -> None:
        path = self._folder / NAME
        try:
            found = json.loads(path.read_bytes())
            known = found["version"] == _VERSION
            topic, files = str(found["topic"]), int(found["files"])
            offsets = {int(name): int(offset) for name, offset in found["offsets"].items()}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            known = False
        if not known:
            raise ReportError(f"{path}: damaged, or of a later version; remove it with its folder")
        if topic != self._topic:
            raise ReportError(f"{path}: is of kafka:{topic}; give each topic a --state of its own")
        self._files, self._offsets = files, offsets

    def _save(self, files: int, offsets: Mapping[int, int]) -> None:
        said: dict[str, Any] = {"version": _VERSION, "topic": self._topic, "files": files}
        said["offsets"] = {str(partition): offset for partition, offset in offsets.items()}
        half = self._folder / f"{NAME}.half"
        half.write_text(json.dumps(said), encoding="ascii")
        _sync(half)
        half.replace(self._folder / NAME)
        _sync(self._folder)
        self._files, self._offsets = files, dict(offsets)


def _write(lines: Iterator[list[bytes]], path: Path) -> int:
    """Write lines up to about a batch; return how many bytes they are."""
    size = commas = 0
    with path.open("wb") as file:
        for some in lines:
            data = b"\n".join(some) + b"\n"
            size += file.write(data)
            commas += data.count(b",")
            if size >= BATCH_BYTES or commas >= BATCH_COMMAS:
                break
    return size


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
