"""Change detection of a file by its metadata."""

from pathlib import Path

Signature = tuple[int, ...] | None
"""Value that changes when a file is written or replaced; None if the file cannot be found."""


def signature_of(path: Path) -> Signature:
    """Return the signature of a file; symbolic links are followed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
