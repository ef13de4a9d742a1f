"""State of the reports of one source: a folder that one run at a time adds to."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metrics.readiness.errors import ReportError


@contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold the folder of a state for this run alone. Raises ReportError and OSError."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ReportError(f"{state}: another run uses this --state; wait for its end") from None
        yield
