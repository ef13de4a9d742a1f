"""Two network namespaces with a wire between them: what needs root, and a kernel with netfilter."""

import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

_CLONE_NEWNET: Final = 0x40000000
T = TypeVar("T")


def missing() -> str | None:
    """Why there are no namespaces here; None: there are."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    absent = [tool for tool in ("ip", "iptables", "nft", "setpriv") if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return None if done.returncode == 0 else "the kernel refuses network namespaces"


@dataclass(frozen=True)
class Namespace:
    name: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command."""
        return ("ip", "netns", "exec", self.name)

    def run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            [*self.prefix, *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def inside(self, make: Callable[[], T]) -> T:
        """Call it in the namespace; a socket made there stays there."""
        with ThreadPoolExecutor(1, initializer=self.enter) as thread:
            return thread.submit(make).result(30)

    def enter(self) -> None:
        """Bring this thread into the namespace, with the threads and programs it will start."""
        with Path(f"/run/netns/{self.name}").open("rb") as handle:
            library = ctypes.CDLL(None, use_errno=True)
            assert library.setns(handle.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()


@contextmanager
def wired(here: tuple[str, ...], there: tuple[str, ...]) -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces with these addresses (with their prefix lengths)."""
    mark = uuid.uuid4().hex[:6]
    pair = Namespace(f"here-{mark}"), Namespace(f"there-{mark}")
    try:
        for namespace in pair:
            _ip("netns", "add", namespace.name)
            namespace.run("ip", "link", "set", "lo", "up")
        ends = f"vh{mark}", f"vt{mark}"
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for namespace, end, addresses in zip(pair, ends, (here, there), strict=True):
            _ip("link", "set", end, "netns", namespace.name)
            for address in addresses:
                nodad = ("nodad",) if ":" in address else ()
                namespace.run("ip", "address", "add", address, "dev", end, *nodad)
            namespace.run("ip", "link", "set", end, "up")
        yield pair
    finally:
        for namespace in pair:
            subprocess.run(["ip", "netns", "delete", namespace.name], check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120)
