"""Files of the event log in their directory: creation, closing, recovery, retention.

Rules of a file:

- While it is written, its name ends with `.open`; it is renamed after fsync, and never changes
  again. A reader that opens only closed files sees only whole lines.
- Its writer holds a lock (flock) on it while it is open. An `.open` file without a lock is an
  orphan: the next writer that starts in the directory truncates an incomplete last line, and closes
  it.
- Existing files are never overwritten, and symbolic links and pipes are never opened.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

OPEN_SUFFIX = ".open"
FILE_PATTERN = "events-*.jsonl"

_FILE_MODE = 0o640
_READ_BACK_BYTES = 64 * 1024
_MAX_NAME_ATTEMPTS = 1000


def file_stem(proxy_id: str, worker: int, wall: float) -> str:
    """Return the common part of the names of files that begin at `wall` (Unix time):
    `events-<proxy>-<worker>-<utc time>`."""
    safe = re.sub(r"[^A-Za-z0-9._]", "_", proxy_id)[:64]
    opened = datetime.fromtimestamp(wall, UTC)
    return f"events-{safe}-{worker}-{opened:%Y%m%dT%H%M%SZ}"


def make_directory(directory: Path) -> None:
    """Create the directory if it does not exist. Raises OSError if files cannot be created in
    it."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


class EventFile:
    """Open file of the event log. Even after a failed write it contains only whole lines."""

    def __init__(self, directory: Path, stem: str) -> None:
        """Create the file with the first free sequence number. Raises OSError."""
        make_directory(directory)
        self._fd, self._path = _create(directory, stem)
        self.size = 0
        """Size of the file in bytes."""

    @property
    def path(self) -> Path:
        """Current path, which ends with `OPEN_SUFFIX`."""
        return self._path

    def write(self, data: bytes) -> None:
        """Append whole lines. If it raises OSError, the file contains no part of them."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, self.size)
                os.lseek(self._fd, self.size, os.SEEK_SET)
            raise
        self.size += written

    def is_in_place(self) -> bool:
        """Return whether the file is still in the directory under its name.

        Returns False after the file or its directory was removed, moved or replaced: readers of the
        directory can no longer see new lines.
        """
        try:
            return _still_names(self._path, self._fd)
        except OSError:  # the next write or close will raise the error
            return True

    def abandon(self) -> None:
        """Close the file descriptor, and leave the file as it is."""
        os.close(self._fd)

    def close(self) -> None:
        """Close the file, and give it its final name. Raises OSError."""
        try:
            _finish(self._fd, self._path)
        finally:
            os.close(self._fd)


def _create(directory: Path, stem: str) -> tuple[int, Path]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for sequence in range(_MAX_NAME_ATTEMPTS):
        path = directory / f"{stem}-{sequence}.jsonl{OPEN_SUFFIX}"
        if path.with_suffix("").exists():
            continue
        try:
            fd = os.open(path, flags, _FILE_MODE)
        except FileExistsError:
            continue
        if _lock(fd) and _still_names(path, fd):
            return fd, path
        os.close(fd)  # before it was locked, another process recovered it as an orphan
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory / stem))


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_names(path: Path, fd: int) -> bool:
    try:
        named = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _finish(fd: int, path: Path) -> None:
    """Write the content to the disk, then rename the file; remove an empty one."""
    if os.fstat(fd).st_size == 0:
        path.unlink()
        return
    os.fsync(fd)
    path.rename(path.with_suffix(""))
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def recover_orphans(directory: Path) -> list[Path]:
    """Close the files of dead writers of any proxy; return their final names.

    A file that cannot be recovered is left as it is.
    """
    recovered = []
    for path in sorted(directory.glob(FILE_PATTERN + OPEN_SUFFIX)):
        with contextlib.suppress(OSError):
            if _recover(path):
                recovered.append(path.with_suffix(""))
    return recovered


def _recover(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        orphan = stat.S_ISREG(os.fstat(fd).st_mode) and _lock(fd) and _still_names(path, fd)
        if not orphan:
            return False
        whole = _whole_lines_bytes(fd)
        os.ftruncate(fd, whole)
        _finish(fd, path)
        return whole > 0
    finally:
        os.close(fd)


def _whole_lines_bytes(fd: int) -> int:
    """Return the size of the whole lines, found by reading backwards."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - _READ_BACK_BYTES)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def beyond_retention(directory: Path, retention_bytes: int) -> list[Path]:
    """Return the oldest closed files, whose removal brings the rest within `retention_bytes`.

    Raises OSError.
    """
    held = sorted(
        (status.st_mtime_ns, path, status.st_size)
        for path in directory.glob(FILE_PATTERN)
        if stat.S_ISREG((status := path.lstat()).st_mode)
    )
    excess = sum(size for _, _, size in held) - retention_bytes
    beyond = []
    for _, path, size in held:
        if excess <= 0:
            break
        beyond.append(path)
        excess -= size
    return beyond
