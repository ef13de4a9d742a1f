"""Delivery to a folder, such as a volume that many proxies share.

A file is there under its name when it is whole, and no symbolic link below the folder is followed.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metrics.delivery.deliverer import DeliveryFailed, Part
from proxy.delivery.parts import BATCH_BYTES, content_of, name_of

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderSink:
    """Sink that writes compressed files below `date=…/proxy=…`."""

    batch_bytes = BATCH_BYTES
    closed_files_only = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def deliver(self, part: Part) -> int:
        """Write a file, and return 0. Raises DeliveryFailed."""
        date, proxy, name = name_of(part)
        content = content_of(part)
        try:
            with _opened(self._root, date, proxy) as directory:
                _write(directory, name, content)
        except OSError as error:
            raise DeliveryFailed(str(error.strerror)) from error
        return 0


@contextlib.contextmanager
def _opened(root: Path, *below: str) -> Iterator[int]:
    """Yield the file descriptor of a folder below the root, which is made."""
    with contextlib.ExitStack() as stack:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        for name in below:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o750, dir_fd=fd)
                os.fsync(fd)
            fd = os.open(name, _DIRECTORY, dir_fd=fd)
            stack.callback(os.close, fd)
        yield fd


def _write(directory: int, name: str, content: bytes) -> None:
    partial = f".{name}.partial"
    with os.fdopen(os.open(partial, _FILE, 0o640, dir_fd=directory), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
