"""Position of a delivery: how many bytes of each file of a folder were delivered.

It is a file in that folder, replaced in one step. A file of the log is recognized by its name and
inode: one that was put in place of another is delivered from its begin.
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
"""Name of the file that the deliverer of a folder holds a lock (flock) on."""

_NEW_NAME: Final = f"{NAME}.new"
_VERSION: Final = 1
_FILE_MODE: Final = 0o640
_WRITE_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest position that is read, in bytes: far above that of a million files."""


class DeliveredElsewhere(Exception):
    """Another process delivers from the folder."""


class Reached(NamedTuple):
    """Part of a file that was delivered, from its begin."""

    inode: int
    offset: int
    """Number of bytes that were delivered, which ends with a whole line."""


class Position:
    """Position of the delivery to one target."""

    def __init__(self, to: str, reached: dict[str, Reached] | None = None) -> None:
        self._to = to
        self._reached = reached or {}
        self._saved: dict[str, Reached] | None = None
        """Content of the saved file; None: it is missing or damaged, or of another target."""

    @classmethod
    def load(cls, directory: int, to: str) -> "Position":
        """Return the position in a directory, which is given as file descriptor.

        Nothing was delivered if there is none, if it is of another target, or if it is damaged.
        """
        saved = _read(directory, to)
        position = cls(to, dict(saved or {}))
        position._saved = saved
        return position

    def offset(self, name: str, inode: int) -> int:
        """Return the number of bytes of a file that were delivered."""
        reached = self._reached.get(name)
        return reached.offset if reached is not None and reached.inode == inode else 0

    def advance(self, name: str, inode: int, offset: int) -> None:
        """Note that a file was delivered up to `offset`."""
        self._reached[name] = Reached(inode, offset)

    def reached(self, name: str) -> int:
        """Return the number of bytes that were delivered of the last file of a name."""
        return self._reached[name].offset if name in self._reached else 0

    def names(self) -> tuple[str, ...]:
        """Return the names of the files of which something was delivered."""
        return tuple(self._reached)

    def forget(self, names: Iterable[str]) -> None:
        """Drop files that no longer exist."""
        for name in names:
            self._reached.pop(name, None)

    @property
    def is_saved(self) -> bool:
        """True if the file has everything that is in memory."""
        return self._reached == self._saved

    def save(self, directory: int) -> None:
        """Replace the position's file. Raises OSError; then the old one is still there."""
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
    """Return the position of a target, or of whichever if it is None; None: there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(NAME, flags, dir_fd=directory), "rb") as file:
            return _parsed(json.loads(file.read(_MAX_BYTES)), to)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def _parsed(found: Any, to: str | None) -> dict[str, Reached] | None:
    """Return what a position's file says. Raises an error of Python if it says nothing."""
    if found["version"] != _VERSION or (to is not None and found["to"] != to):
        return None
    files: dict[str, list[Any]] = found["files"]
    for pair in files.values():
        if not all(isinstance(number, int) and number >= 0 for number in pair):
            raise ValueError("a position is two whole numbers")
    return {name: Reached(*pair) for name, pair in files.items()}


def read_position(directory: str | os.PathLike[str]) -> Position:
    """Return the position in a directory, whatever its target; an empty one if there is none."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Position("")
    try:
        return Position("", _read(fd, None))
    finally:
        os.close(fd)


def lock(directory: int) -> int:
    """Return the file descriptor of a lock on a directory, which is held until it is closed.

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
