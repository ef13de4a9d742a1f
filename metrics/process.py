"""What a worker process costs, read from /proc (Linux), and what it runs."""

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

from metrics.registry import (
    BUILD_INFO,
    START_TIME,
    WORKER_CPU,
    WORKER_MEMORY,
    WORKER_OPEN_FDS,
)
from metrics.snapshot import Snapshot

_STATM = Path("/proc/self/statm")
_FDS = Path("/proc/self/fd")
_PAGE_BYTES = resource.getpagesize()


def report_process(
    snapshot: Snapshot, *, worker: int, version: str, compiled: bool, started: float
) -> None:
    """Add the figures of this process.

    `version`: of the proxy; `compiled`: whether its data path is; `started`: Unix time, seconds.
    """
    label = str(worker)
    times = os.times()
    snapshot.count(WORKER_CPU, times.user + times.system, label)
    with suppress(OSError):  # no file descriptor is left to ask with, as the next figure tells
        resident_pages = int(_STATM.read_bytes().split()[1])  # proc(5), statm: size resident …
        snapshot.gauge(WORKER_MEMORY, resident_pages * _PAGE_BYTES, label)
    snapshot.gauge(WORKER_OPEN_FDS, _open_fds(), label)
    snapshot.gauge(BUILD_INFO, 1, version, platform.python_version(), str(compiled).lower())
    snapshot.gauge(START_TIME, started)


def _open_fds() -> int:
    """Ask Linux 6.2 or later, which keeps count; an earlier one says 0, and has them listed."""
    return _FDS.stat().st_size or sum(1 for _ in _FDS.iterdir())
