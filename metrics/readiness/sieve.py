"""Lines of event files in portions that DuckDB has memory for, whatever somebody wrote there.

DuckDB reads files at once, which takes less time, and fails within its memory if it meets lines
made to exhaust it: many elements in a few bytes, or no end. Files of such lines are read here.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from metrics.readiness.errors import BROKEN_FILE, LARGE_FILE, BrokenFileError, ReportError

MAX_LINE_BYTES: Final = 512 * 1024
"""Largest line in bytes that may be an event: one has at most 16,384 characters of groups, thrice,
and 64 intervals."""
MAX_ELEMENTS: Final = 10_000
"""Largest number of elements of a list, and of commas of a line, that may be an event's: the
largest events have some 3,000."""
MAX_EXPANSION: Final = 200
"""Largest number of bytes that a byte of a file unpacks to: events of one connection compress to a
sixtieth, a file made to cost time to a thousandth."""
PORTION_BYTES: Final = 128 * 1024 * 1024
"""Size in bytes of the lines of a portion."""
PORTION_COMMAS: Final = 3_000_000
"""Number of commas of the lines of a portion, of some 60,000 events. It bounds the elements of
lists: one of three bytes, `{},`, takes over a hundred in DuckDB."""

_UNREADABLE: Final = b"{}\n"
"""Line in place of one that cannot be an event; it is counted as unreadable."""


def portions(files: Sequence[Path], place: Path) -> Iterator[int]:
    """Write the lines of files into `place`, portion by portion; yield the number of each.

    `place` is overwritten for the next one, and removed at the end. Raises BrokenFileError,
    ReportError and OSError.
    """
    lines = _lines(files)
    try:
        number = 0
        while _write(lines, place):
            yield number
            number += 1
    finally:
        place.unlink(missing_ok=True)


def _write(lines: Iterator[bytes], place: Path) -> int:
    """Write lines up to a portion; return how many bytes they are."""
    size = commas = 0
    with place.open("wb") as file:
        for line in lines:
            size += file.write(line)
            commas += line.count(b",")
            if size >= PORTION_BYTES or commas >= PORTION_COMMAS:
                break
    return size


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files, and an unreadable one for each that cannot be an event."""
    for path in files:
        try:
            with _opened(path) as file:
                left = MAX_EXPANSION * path.stat().st_size + PORTION_BYTES
                while line := file.readline(MAX_LINE_BYTES):
                    left -= len(line)
                    if left < 0:
                        raise BrokenFileError(path, LARGE_FILE)
                    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                        left -= _skip_line(file, left)
                        yield _UNREADABLE
                    elif line.count(b",") > MAX_ELEMENTS:
                        yield _UNREADABLE
                    else:
                        yield line if line.endswith(b"\n") else line + b"\n"
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BrokenFileError(path, BROKEN_FILE) from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".zst":
        raise ReportError(
            f"{path}: it has lines that take more memory than there is; unpack it, and they are"
            " set aside"
        )
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip_line(file: IO[bytes], most: int) -> int:
    """Read to the end of a line, or at least `most` bytes; return how many were read."""
    size = 0
    while size < most and (rest := file.readline(MAX_LINE_BYTES)):
        size += len(rest)
        if rest.endswith(b"\n"):
            break
    return size
