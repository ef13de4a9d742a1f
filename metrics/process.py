"""Resource use of a worker process, read from /proc (Linux), and its versions."""

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

from metrics import registry
from metrics.snapshot import Snapshot

_STATM = Path("/proc/self/statm")
_FDS = Path("/proc/self/fd")
_PAGE_BYTES = resource.getpagesize()


def report_process(
    snapshot: Snapshot, *, worker: int, version: str, compiled: bool, started: float
) -> None:
    """Add the resource use of this process.

    `version` is the proxy's version, `compiled` is True if its data path is compiled, and `started`
    is Unix time in seconds.
    """
    label = str(worker)
    times = os.times()
    snapshot.count(registry.WORKER_CPU, times.user + times.system, label)
    with suppress(OSError):  # fails without a free file descriptor, which the next gauge shows
        resident_pages = int(_STATM.read_bytes().split()[1])  # proc(5), statm: size resident …
        snapshot.gauge(registry.WORKER_MEMORY, resident_pages * _PAGE_BYTES, label)
    snapshot.gauge(registry.WORKER_OPEN_FDS, _open_fds(), label)
    snapshot.gauge(
        registry.BUILD_INFO, 1, version, platform.python_version(), str(compiled).lower()
    )
    snapshot.gauge(registry.START_TIME, started)


def _open_fds() -> int:
    """Return the number of open file descriptors.

    That is the directory's size since Linux 6.2; for earlier kernels, which report 0, count the
    entries.
    """
    return _FDS.stat().st_size or sum(1 for _ in _FDS.iterdir())
