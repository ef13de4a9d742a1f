"""Place of a report: a folder, or a prefix in an object store.

Rule: nothing outside of the place is read, whatever links are in it.
"""

import os
import re
import stat
from collections.abc import Iterator
from errno import ENOENT
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from metrics.delivery.target import TargetKind, missing_library, parse_target
from metrics.readiness.folder import is_remote
from metrics.readiness.output import RUN_NAME, TABLES
from metrics.report.write import JSON_NAME, PAGE_NAME
from proxy.errors import ConfigError, ProxyError
from proxy.file_signature import signature_of

MEANT: Final = "must be a folder, file:///FOLDER or s3a://BUCKET/PREFIX; copy it from elsewhere"
MAX_TABLE_FILES: Final = 10_000
"""Largest number of files of tables that are listed; further ones are left out."""
PIECE_BYTES: Final = 1 << 18
"""Bytes that are read, and held for a client that is slow, at once."""

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.=%:+-]{0,200}"
TABLE_FILE: Final = re.compile(rf"(?:{_NAME}/){{1,4}}{_NAME}\.parquet")
"""Pattern of the path of a table's file, below the tables; those that are still written, or are
hidden, have other names."""
_DEPTH: Final = 4


class UnusableReportError(ProxyError):
    """The report cannot be read, or is none; the text says why, for a person."""


class MissingError(UnusableReportError):
    """A file of the report is not there."""


class TableFile(NamedTuple):
    """File of a table as it was listed."""

    size: int
    """Its size in bytes."""
    version: str | None = None
    """ETag of an object; None: a file, whose folder is replaced as a whole."""


class OpenFile(Protocol):
    """File of a table, open; if it is replaced, what is read is of the old one, or an error."""

    size: int

    def read(self, offset: int) -> bytes:
        """Return up to `PIECE_BYTES` from an offset on. Raises OSError."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Place(Protocol):
    """Place of a report. Paths are relative to it. All raise UnusableReportError."""

    def signature(self) -> object:
        """Return a value that changes when another report is there."""
        ...

    def read(self, path: str, most: int) -> bytes:
        """Return a file of at most so many bytes."""
        ...

    def tables(self, folder: str) -> dict[str, TableFile]:
        """Return the files of tables below a folder, by path below it."""
        ...

    def open(self, path: str, listed: TableFile) -> OpenFile:
        """Open a file that was listed."""
        ...


def place_of(text: str) -> Place:
    """Return the place that a text names. Raises ConfigError."""
    if not is_remote(text):
        return Folder(Path(text))
    try:
        target = parse_target(text)
    except ValueError:
        raise ConfigError("--from", MEANT) from None
    if target.kind is TargetKind.FOLDER:
        return Folder(target.folder)
    if target.kind is not TargetKind.OBJECTS:
        raise ConfigError("--from", MEANT)
    if (needed := missing_library(target)) is not None:
        raise ConfigError("--from", needed)
    from proxy.report.objects import ObjectStore

    return ObjectStore(target.place, target.prefix)


class Folder:
    """Folder of this machine; links in it are not followed, but it may be one itself."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def signature(self) -> object:
        """Return what the files' metadata are."""
        names = (JSON_NAME, PAGE_NAME, f"{TABLES}/{RUN_NAME}")
        return [signature_of(self._root / name) for name in names]

    def read(self, path: str, most: int) -> bytes:
        """Return a file of at most so many bytes."""
        with self._open(path) as file:
            try:
                size = os.fstat(file.fileno()).st_size
                content = b"" if size > most else file.read(most + 1)
            except OSError as error:
                raise _unreadable(path, error) from None
        if max(size, len(content)) > most:
            raise too_large(path, most)
        return content

    def tables(self, folder: str) -> dict[str, TableFile]:
        """List files, not links."""
        try:
            return dict(islice(self._tables(folder), MAX_TABLE_FILES))
        except OSError as error:
            raise _unreadable(folder, error) from None

    def _tables(self, folder: str) -> Iterator[tuple[str, TableFile]]:
        for at, folders, names, number in os.fwalk(self._root / folder, follow_symlinks=False):
            below = os.path.relpath(at, self._root / folder)
            if below.count("/") >= _DEPTH:
                folders.clear()
            folders.sort()
            for name in sorted(names):
                path = f"{below}/{name}"
                if TABLE_FILE.fullmatch(path):
                    found = os.stat(name, dir_fd=number, follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield path, TableFile(found.st_size)

    def open(self, path: str, listed: TableFile) -> OpenFile:  # noqa: ARG002 - see `version`
        """Open a file."""
        return _LocalFile(self._open(path))

    def _open(self, path: str) -> FileIO:
        """Open a regular file, and each folder on the way to it, without following a link."""
        *folders, name = path.split("/")
        at = -1
        try:
            at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for folder in folders:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(folder, flags, dir_fd=at)
                os.close(at)
                at = below
            # a pipe would wait for somebody who writes
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = _file_of(os.open(name, flags, dir_fd=at))
        except IsADirectoryError:
            raise UnusableReportError(f"{path} is a folder") from None
        except OSError as error:
            raise _unreadable(path, error) from None
        finally:
            if at >= 0:
                os.close(at)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise UnusableReportError(f"{path} is no file")
        return file


def _file_of(number: int) -> FileIO:
    try:
        return FileIO(number)
    except OSError:  # of a folder
        os.close(number)
        raise


class _LocalFile:
    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, offset: int) -> bytes:
        return os.pread(self._file.fileno(), PIECE_BYTES, offset)

    def close(self) -> None:
        self._file.close()


def too_large(path: str, most: int) -> UnusableReportError:
    """Return the error of a file that is larger than `most` bytes."""
    return UnusableReportError(f"{path} is larger than {most >> 20} MiB")


def _unreadable(path: str, error: OSError) -> UnusableReportError:
    kind = MissingError if error.errno == ENOENT else UnusableReportError
    return kind(f"{path} cannot be read: {error.strerror}")
