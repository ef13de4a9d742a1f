import pytest

from metrics.readiness.errors import ReportError, explained


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ReportError("events-\x1b[2J.jsonl: cut off\nmore"), "events-\\x1b[2J.jsonl: cut off"),
        (PermissionError(13, "Permission denied", "a\nb\x07"), "a\\nb\\x07: permission denied"),
        (ReportError(""), "ReportError"),
    ],
)
def test_an_error_is_one_printable_line(error: Exception, text: str) -> None:
    """A user with write access to a shared folder chooses the names of its files."""
    assert explained(error) == text
