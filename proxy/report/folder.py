"""Place of a report in a folder of this machine."""

import os
import stat
from collections.abc import Iterator
from errno import ENOENT
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final

from metrics.readiness.output import RUN_NAME, TABLES
from metrics.report.write import JSON_NAME, PAGE_NAME
from proxy.file_signature import signature_of
from proxy.report.place import (
    MAX_TABLE_FILES,
    PIECE_BYTES,
    TABLE_FILE,
    MissingError,
    OpenFile,
    TableFile,
    UnusableReportError,
    too_large,
)

_DEPTH: Final = 4
"""Number of folders that a table's file may be below the tables."""


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


def _unreadable(path: str, error: OSError) -> UnusableReportError:
    kind = MissingError if error.errno == ENOENT else UnusableReportError
    return kind(f"{path} cannot be read: {error.strerror}")
