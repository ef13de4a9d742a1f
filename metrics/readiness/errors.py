"""Errors of a report, each explained in one line."""

from pathlib import Path
from typing import Final

from metrics.report.formats import visible

BROKEN_FILE: Final = "it is cut off, or is not what its name says"
"""Reason for which a file is set aside, or a Spark job fails."""
IRREGULAR_FILE: Final = "it is a symbolic link, or not a regular file"
SLOW_FILE: Final = "it takes too long to read"
LARGE_FILE: Final = "it unpacks to more than event files do"

GONE_FILE: Final = "this file is gone since it was listed; run the report again"


class ReportError(Exception):
    """The report cannot be made; the message gives the reason and the remedy."""


class BrokenFileError(ReportError):
    """A file cannot be read; the report continues without it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Interrupted(KeyboardInterrupt):
    """SIGTERM ended the report.

    It is a subclass because Python records a KeyboardInterrupt that leaves an `exec`, as in some
    imports, and then kills itself with SIGINT even if the exception was caught.
    """


def explained(error: Exception) -> str:
    """Return an error in one line, with control characters escaped: file names may contain them."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return visible(f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}")
    lines = str(error).strip().splitlines()
    return visible(lines[0]) if lines else type(error).__name__
