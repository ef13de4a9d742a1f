"""Control group of a program, and the memory that the kernel charges to it.

It is what a container's limit is compared with: `memory.current` of version 2,
`memory.usage_in_bytes` of version 1. It includes buffers in the kernel, and pages of files that the
program was the first to read. Needs root.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.programs import MeasurementFailed, Unavailable

_ROOT: Final = Path("/sys/fs/cgroup")
_USAGE: Final = ("memory.current", "memory.usage_in_bytes")
_EMPTY_SECONDS: Final = 10.0
"""Seconds within which a group is empty after its programs have ended."""


class ControlGroup:
    """Group of processes: those whose ids are written to `procs`, and their children."""

    def __init__(self, path: Path) -> None:
        self.procs = path / "cgroup.procs"
        self._usage = path / next((name for name in _USAGE if (path / name).exists()), _USAGE[0])

    def mib(self) -> float:
        """Return the memory that is charged to it."""
        return int(self._usage.read_text()) / 2**20


@contextmanager
def control_group() -> Iterator[ControlGroup]:
    """Make a group, and remove it when its processes have ended. Raises Unavailable."""
    version_1 = _ROOT / "memory"
    path = (version_1 if version_1.is_dir() else _ROOT) / f"benchmark-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        raise Unavailable(f"no control group: {error}") from error
    try:
        yield ControlGroup(path)
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    deadline = time.monotonic() + _EMPTY_SECONDS
    while (path / "cgroup.procs").read_text():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{path} still has processes")
        time.sleep(0.05)
    path.rmdir()
