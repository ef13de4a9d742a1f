"""Errors of a report, in one line each."""

from typing import Final

from metrics.report.formats import visible

BROKEN_FILE: Final = (
    "this file cannot be read: it is cut off, or not what its name says; move it away, or write it"
    " anew"
)

GONE_FILE: Final = "this file is gone since it was listed; run the report again"


class ReportError(Exception):
    """The report cannot be made; the text says why, and what to do."""


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
