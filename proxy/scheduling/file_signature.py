"""Change detection of a file by its metadata."""

import os
from pathlib import Path

Signature = tuple[int, ...] | None
"""Value that changes when a file is written or replaced; None if the file cannot be opened."""


def signature_of(path: Path) -> Signature:
    """Return the signature of a file; symbolic links are followed.

    The file is opened, because NFS may answer for a path from a cache that is 30 s old.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
    finally:
        os.close(file)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
