"""Place of a report: what is read from it, and how much at most.

Rule: nothing outside of the place is read, whatever links are in it.
"""

import re
from typing import Final, NamedTuple, Protocol

from proxy.errors import ProxyError

MAX_TABLE_FILES: Final = 10_000
"""Largest number of files of tables that are listed; further ones are left out."""
PIECE_BYTES: Final = 1 << 18
"""Bytes that are read, and held for a client that is slow, at once."""

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.=%:+-]{0,200}"
TABLE_FILE: Final = re.compile(rf"(?:{_NAME}/){{1,4}}{_NAME}\.parquet")
"""Pattern of the path of a table's file, below the tables; those that are still written, or are
hidden, have other names."""


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


def too_large(path: str, most: int) -> UnusableReportError:
    """Return the error of a file that is larger than `most` bytes."""
    return UnusableReportError(f"{path} is larger than {most >> 20} MiB")
