"""Spool of a delivery: the event files of a folder, read in batches of whole lines.

Only regular files are read, and symbolic links are not followed. The size of a batch is bounded,
however long a line is. Reading a file from the same offset again gives the same batch, unless the
file is still growing.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from metrics.event_files import OPEN_SUFFIX

_NAME: Final = re.compile(
    r"(?P<name>events-(?:[A-Za-z0-9._]{1,64}-[0-9]{1,9}-"
    r"(?P<begun>[0-9]{8}T[0-9]{6}Z)-(?P<number>[0-9]{1,9})|[A-Za-z0-9._-]{1,128})\.jsonl)"
    r"(?P<open>\.open)?"
)
"""Pattern of event file names: those of `metrics.event_files`, and similar ones."""
_SCAN_BYTES: Final = 1024 * 1024
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SpoolFile(NamedTuple):
    """File of the spool, as it was when the folder was listed."""

    name: str
    """Its final name, without `OPEN_SUFFIX`."""
    inode: int
    size: int
    """Size in bytes."""
    modified: float
    """Time of its last change in Unix seconds."""
    closed: bool
    """True if it no longer changes."""
    begun: float | None
    """Creation time in Unix seconds, from the file name; None if the name has no such part."""
    number: int = 0
    """Number among the files that were created in the same second."""

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key: a worker's files are in the order in which it wrote them."""
        return self.begun or 0.0, self.number, self.name


class Batch(NamedTuple):
    """Consecutive whole lines of one file."""

    file: SpoolFile
    begin: int
    """Offset in bytes of the first line."""
    end: int
    """Offset in bytes of the first byte after the last line, or after the line set aside."""
    lines: list[bytes]
    """The lines without newlines; empty ones are left out."""
    set_aside: int = 0
    """Number of lines that are longer than a batch, or unterminated in a closed file."""


class Spool:
    """Event files of one folder."""

    def __init__(self, directory: Path) -> None:
        """Open the folder. Raises OSError."""
        self._path = directory
        self.fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        """File descriptor of the folder."""

    def close(self) -> None:
        """Close the folder."""
        os.close(self.fd)

    def is_in_place(self) -> bool:
        """Return False if the folder was moved, removed or replaced since it was opened."""
        try:
            named = self._path.stat()
        except OSError:
            return False
        opened = os.fstat(self.fd)
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

    def files(self) -> list[SpoolFile]:
        """Return the files in the order of delivery. Raises OSError."""
        found: dict[str, SpoolFile] = {}
        with os.scandir(self.fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            file = self._look_at(name)
            # a file that is renamed meanwhile may be listed under both names
            if file is not None and (file.closed or file.name not in found):
                found[file.name] = file
        return sorted(found.values(), key=lambda file: file.order)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names without a file, open or closed."""
        return [
            name
            for name in names
            # in this order: a file that is renamed between the two checks then has its final name
            if not self._exists(name + OPEN_SUFFIX) and not self._exists(name)
        ]

    def read(self, file: SpoolFile, offset: int, max_bytes: int) -> Batch | None:
        """Return up to `max_bytes` of lines from `offset` on; None if no line is available.

        A file that is shorter than `offset` was truncated, and is read from its beginning. Raises
        OSError.
        """
        try:
            name = file.name if file.closed else file.name + OPEN_SUFFIX
            fd = os.open(name, _READ_FLAGS, dir_fd=self.fd)
        except FileNotFoundError:  # closed, removed or moved since it was listed
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_ino != file.inode:
                return None
            begin = offset if offset <= status.st_size else 0
            return _batch(fd, file, begin, max_bytes)
        finally:
            os.close(fd)

    def _look_at(self, listed: str) -> SpoolFile | None:
        match = _NAME.fullmatch(listed)
        if match is None:
            return None
        try:
            status = os.stat(listed, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return SpoolFile(
            name=match["name"],
            inode=status.st_ino,
            size=status.st_size,
            modified=status.st_mtime,
            closed=match["open"] is None,
            begun=_time_of(match["begun"]),
            number=int(match["number"] or 0),
        )

    def _exists(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            return True
        return False


@lru_cache(maxsize=65_536)  # each pass sees the same names
def _time_of(text: str | None) -> float | None:
    """Return the time in a file name, such as `20260601T120000Z`, in Unix seconds."""
    try:
        begun = datetime.strptime(text or "", "%Y%m%dT%H%M%SZ")
    except ValueError:
        return None
    return begun.replace(tzinfo=UTC).timestamp()


def _batch(fd: int, file: SpoolFile, begin: int, max_bytes: int) -> Batch | None:
    data = os.pread(fd, max_bytes, begin)
    whole = data.rfind(b"\n") + 1
    if whole:
        lines = [line for line in data[:whole].split(b"\n") if line]
        return Batch(file=file, begin=begin, end=begin + whole, lines=lines)
    if not data:
        return None
    end = _end_of_line(fd, begin + len(data))
    if end is None and not file.closed:
        return None  # the rest of the line may still be written
    if end is None:
        end = os.fstat(fd).st_size
    return Batch(file=file, begin=begin, end=end, lines=[], set_aside=1)


def _end_of_line(fd: int, offset: int) -> int | None:
    """Return the offset after the next newline; None if there is no further newline."""
    while data := os.pread(fd, _SCAN_BYTES, offset):
        newline = data.find(b"\n")
        if newline >= 0:
            return offset + newline + 1
        offset += len(data)
    return None


def count_lines(path: Path, offset: int) -> int:
    """Return the number of lines of a file from `offset` on. Raises OSError."""
    with os.fdopen(os.open(path, _READ_FLAGS), "rb") as file:
        file.seek(offset)
        return sum(data.count(b"\n") for data in iter(lambda: file.read(_SCAN_BYTES), b""))
