"""Position of a delivery: the number of delivered bytes of each file in a folder.

It is a file in that folder, replaced atomically. A log file is identified by name and inode: a file
that has replaced another one is delivered from its beginning.
"""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

NAME: Final = "delivery.json"
"""Name of the position's file."""
LOCK_NAME: Final = "delivery.lock"
"""Name of the file on which the deliverer of a folder holds a lock (flock)."""

_NEW_NAME: Final = f"{NAME}.new"
_VERSION: Final = 1
_FILE_MODE: Final = 0o640
_WRITE_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size in bytes of a position file: far more than a million files need."""


class DeliveredElsewhere(Exception):
    """Another process delivers from the folder."""


class Reached(NamedTuple):
    """Delivered part of a file, from its beginning."""

    inode: int
    offset: int
    """Number of delivered bytes; they end with a whole line."""


class Position:
    """Position of the delivery to one target."""

    def __init__(self, to: str, reached: dict[str, Reached] | None = None) -> None:
        self._to = to
        self._reached = reached or {}
        self._saved: dict[str, Reached] | None = None
        """Content of the saved file; None if it is missing, damaged, or for another target."""

    @classmethod
    def load(cls, directory: int, to: str) -> "Position":
        """Return the position in a directory, which is given as a file descriptor.

        A missing or damaged position, or one for another target, counts as nothing delivered.
        """
        saved = _read(directory, to)
        position = cls(to, dict(saved or {}))
        position._saved = saved
        return position

    def offset(self, name: str, inode: int) -> int:
        """Return the number of delivered bytes of a file."""
        reached = self._reached.get(name)
        return reached.offset if reached is not None and reached.inode == inode else 0

    def advance(self, name: str, inode: int, offset: int) -> None:
        """Record that a file was delivered up to `offset`."""
        self._reached[name] = Reached(inode, offset)

    def reached(self, name: str) -> int:
        """Return the number of delivered bytes of the latest file with this name."""
        return self._reached[name].offset if name in self._reached else 0

    def names(self) -> tuple[str, ...]:
        """Return the names of the files that were delivered at least in part."""
        return tuple(self._reached)

    def forget(self, names: Iterable[str]) -> None:
        """Drop files that no longer exist."""
        for name in names:
            self._reached.pop(name, None)

    @property
    def is_saved(self) -> bool:
        """True if the saved file matches the position in memory."""
        return self._reached == self._saved

    def save(self, directory: int) -> None:
        """Replace the position's file. If it raises OSError, the old file is unchanged."""
        files = {name: list(reached) for name, reached in self._reached.items()}
        data = json.dumps({"version": _VERSION, "to": self._to, "files": files}).encode("ascii")
        fd = os.open(_NEW_NAME, _WRITE_FLAGS, _FILE_MODE, dir_fd=directory)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(_NEW_NAME, NAME, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
        self._saved = dict(self._reached)


def _read(directory: int, to: str | None) -> dict[str, Reached] | None:
    """Return the saved position for target `to` (None: for any target); None if it is missing."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(NAME, flags, dir_fd=directory), "rb") as file:
            return _parsed(json.loads(file.read(_MAX_BYTES)), to)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def _parsed(found: Any, to: str | None) -> dict[str, Reached] | None:
    """Parse the content of a position file. Raises a built-in exception if it is malformed."""
    if found["version"] != _VERSION or (to is not None and found["to"] != to):
        return None
    files: dict[str, list[Any]] = found["files"]
    for pair in files.values():
        if not all(isinstance(number, int) and number >= 0 for number in pair):
            raise ValueError("a position is two whole numbers")
    return {name: Reached(*pair) for name, pair in files.items()}


def read_position(directory: str | os.PathLike[str]) -> Position:
    """Return the position in a directory, for any target; an empty one if the file is missing."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Position("")
    try:
        return Position("", _read(fd, None))
    finally:
        os.close(fd)


def lock(directory: int) -> int:
    """Lock a directory; return a file descriptor, which holds the lock until it is closed.

    Raises DeliveredElsewhere if another process holds it, and OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(LOCK_NAME, flags, _FILE_MODE, dir_fd=directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise DeliveredElsewhere from None
        raise
    return fd
