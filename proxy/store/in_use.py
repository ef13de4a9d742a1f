"""Identity of the store that a running proxy reads, as the command line queries it."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from proxy.store.interface import StoreError, StoreStart


class StoreInUse(NamedTuple):
    """Store that a proxy started with, and the file that it finds at the store's path now."""

    path: str
    """Path as the proxy sees it, which may be inside a container."""
    identity: str
    """Identity of the store that the proxy started with."""
    device: int | None
    """Device of the file at the path; None if there is no file."""
    inode: int | None
    """Inode of the file at the path; None if there is no file."""

    @classmethod
    def of(cls, path: Path, start: StoreStart) -> Self:
        """Return the store of this start, with the file that is at `path` now."""
        return cls(str(path.absolute()), start.identity, *_device_and_inode(path))

    @classmethod
    def read(cls, sent: Any) -> Self:
        """Return the store in the answer of a proxy. Raises ValueError if it has none."""
        try:
            return cls(*sent)
        except TypeError:
            raise ValueError("the answer has no store") from None

    def refuse_others(self, path: Path) -> None:
        """Raise StoreError unless the proxy reads the store in this file."""
        from proxy.store.sqlite.database import identity_of

        there = _device_and_inode(path)
        if there == (None, None):
            raise StoreError(f"{path}: was removed while a proxy runs with it: restore it")
        if there != (self.device, self.inode):
            raise StoreError(f"{path}: the running proxy reads another file, {self.path}")
        if identity_of(path) != self.identity:
            raise StoreError(
                f"{path}: is another store than the one that the running proxy started with:"
                " restore that one, or restart the proxy"
            )


def _device_and_inode(path: Path) -> tuple[int, int] | tuple[None, None]:
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_dev, found.st_ino
