"""Identity of the store that a running proxy reads, for the command line."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from proxy.store.interface import Begun, StoreError


class StoreInUse(NamedTuple):
    """Store that one proxy began with, and the file that it finds there now."""

    path: str
    """The path as the proxy sees it, which may be in a container."""
    identity: str
    """The identity of the store that it began with."""
    device: int | None
    """The device of the file that is there now; None: there is none."""
    inode: int | None
    """The inode of the file that is there now; None: there is none."""

    @classmethod
    def of(cls, path: Path, begun: Begun) -> Self:
        """Look what is there."""
        return cls(str(path.absolute()), begun.identity, *_device_and_inode(path))

    @classmethod
    def read(cls, sent: Any) -> Self:
        """Parse what a proxy sent. Raises ValueError if it is something else."""
        try:
            return cls(*sent)
        except TypeError:
            raise ValueError("no store was sent") from None

    def refuse_others(self, path: Path) -> None:
        """Raise StoreError if the proxy does not read the store in this file."""
        from proxy.store.sqlite.database import identity_of

        there = _device_and_inode(path)
        if there == (None, None):
            raise StoreError(f"{path}: is gone, and a proxy runs that began with it: put it back")
        if there != (self.device, self.inode):
            raise StoreError(f"{path}: the proxy that runs reads another file, {self.path}")
        if identity_of(path) != self.identity:
            raise StoreError(
                f"{path}: is another store than the one that the running proxy goes by: put that"
                " one back, or restart the proxy"
            )


def _device_and_inode(path: Path) -> tuple[int, int] | tuple[None, None]:
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_dev, found.st_ino
