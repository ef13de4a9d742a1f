"""Errors of a report, in one line each."""

from pathlib import Path
from typing import Final

from metrics.report.formats import visible

BROKEN_FILE: Final = "it is cut off, or is not what its name says"
"""Reason why a file is set aside, or a Spark job fails."""
IRREGULAR_FILE: Final = "it is a symbolic link, or not a regular file"
SLOW_FILE: Final = "it takes too long to read"
LARGE_FILE: Final = "it unpacks to more than event files do"

GONE_FILE: Final = "this file is gone since it was listed; run the report again"


class ReportError(Exception):
    """The report cannot be made; the text says why, and what to do."""


class BrokenFileError(ReportError):
    """A file cannot be read; the report goes on without it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Interrupted(KeyboardInterrupt):
    """The report is to end, as SIGTERM asks.

    A class of its own, because Python remembers a KeyboardInterrupt that leaves an `exec`, as in
    some imports, and ends itself by SIGINT although it was caught.
    """


def explained(error: Exception) -> str:
    """Say in one line what went wrong; whoever named a file does not command a terminal."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return visible(f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}")
    lines = str(error).strip().splitlines()
    return visible(lines[0]) if lines else type(error).__name__
