"""Lines of event files in portions that fit DuckDB's memory, even lines made to exhaust it.

DuckDB normally reads whole files, which is faster. Lines with many elements in a few bytes, or
without an end, exceed its memory limit and make it fail. Files of such lines are read here.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from metrics.readiness.errors import BROKEN_FILE, LARGE_FILE, BrokenFileError, ReportError

MAX_LINE_BYTES: Final = 512 * 1024
"""Maximum size of an event's line in bytes: an event has at most three lists of groups, of 16,384
characters each, and 64 intervals."""
MAX_ELEMENTS: Final = 10_000
"""Maximum number of elements in an event's list, and of commas in its line: the largest events have
about 3,000."""
MAX_EXPANSION: Final = 200
"""Maximum expansion of a compressed file: events of one connection compress to a sixtieth,
a malicious file to a thousandth."""
PORTION_BYTES: Final = 128 * 1024 * 1024
"""Size of a portion in bytes."""
PORTION_COMMAS: Final = 3_000_000
"""Number of commas in a portion, as in about 60,000 events. It bounds the elements of lists: one of
three bytes, `{},`, takes over a hundred in DuckDB."""

_UNREADABLE: Final = b"{}\n"
"""Replacement for a line that cannot be an event; it is counted as unreadable."""


def portions(files: Sequence[Path], place: Path) -> Iterator[int]:
    """Write the lines of files to `place`, one portion at a time; yield each portion's number.

    The next portion overwrites `place`, which is removed at the end. Raises BrokenFileError,
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
    """Write the lines of one portion; return its size in bytes."""
    size = commas = 0
    with place.open("wb") as file:
        for line in lines:
            size += file.write(line)
            commas += line.count(b",")
            if size >= PORTION_BYTES or commas >= PORTION_COMMAS:
                break
    return size


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files, with `_UNREADABLE` in place of those that cannot be events."""
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
            f"{path}: its lines exceed the memory limit; unpack it, so that they are set aside"
        )
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip_line(file: IO[bytes], most: int) -> int:
    """Read to the end of a line, or at least `most` bytes; return the number of bytes read."""
    size = 0
    while size < most and (rest := file.readline(MAX_LINE_BYTES)):
        size += len(rest)
        if rest.endswith(b"\n"):
            break
    return size
