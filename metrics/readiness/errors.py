"""Errors of a report, in one line each."""

from typing import Final

BROKEN_FILE: Final = (
    "this file cannot be read: it is cut off, or not what its name says; move it away, or write it"
    " anew"
)


class ReportError(Exception):
    """The report cannot be made; the text says why, and what to do."""


def explained(error: Exception) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
