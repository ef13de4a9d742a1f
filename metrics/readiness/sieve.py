"""Lines of event files in portions that DuckDB has memory for, whatever somebody wrote there.

DuckDB reads files at once, which takes less time, and fails within its memory if it meets lines
made to exhaust it: many elements in a few bytes, or no end. Files of such lines are read here.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from metrics.readiness.errors import BROKEN_FILE, ReportError

MAX_LINE_BYTES: Final = 512 * 1024
"""Largest line in bytes that may be an event: one has at most 16,384 characters of groups, thrice,
and 64 intervals."""
MAX_ELEMENTS: Final = 10_000
"""Largest number of elements of a list, and of commas of a line, that may be an event's: the
largest events have some 3,000."""
PORTION_BYTES: Final = 128 * 1024 * 1024
"""Size in bytes of the lines of a portion."""
PORTION_COMMAS: Final = 3_000_000
"""Number of commas of the lines of a portion, of some 60,000 events. It bounds the elements of
lists: one of three bytes, `{},`, takes over a hundred in DuckDB."""

_UNREADABLE: Final = b"{}\n"
"""Line in place of one that cannot be an event; it is counted as unreadable."""


def portions(files: Sequence[Path], place: Path) -> Iterator[int]:
    """Write the lines of files into `place`, portion by portion; yield the number of each.

    `place` is written anew for the next one, and removed at the end. Raises ReportError and
    OSError.
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
                while line := file.readline(MAX_LINE_BYTES):
                    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                        _skip_line(file)
                        yield _UNREADABLE
                    elif line.count(b",") > MAX_ELEMENTS:
                        yield _UNREADABLE
                    else:
                        yield line if line.endswith(b"\n") else line + b"\n"
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ReportError(f"{path}: {BROKEN_FILE}") from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".zst":
        raise ReportError(
            f"{path}: it has lines that take more memory than there is; unpack it, and they are"
            " set aside"
        )
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass
