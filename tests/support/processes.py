"""Free ports, waiting, child processes and network namespaces."""

import asyncio
import atexit
import ctypes
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final

import pytest

from proxy.scheduling.steps import Steps, T
from proxy.worker.work_queues import SLICE_SECONDS

# Ports for programs that tests start; each is handed out once, to one test process.
#
# Asking the kernel for a port and closing it again is a race: until the program that it is meant
# for has bound it, another test, or an outgoing connection, may take it

FIRST = 10_000
"""Below the kernel's range for outgoing connections."""
BLOCKS = 32
BLOCK_PORTS = 300


def free_ports(count: int) -> list[int]:
    """Return unused ports that no other caller gets."""
    return _ports().take(count, in_a_row=False)


def free_port_range(count: int) -> int:
    """Return the first of some consecutive ports."""
    return _ports().take(count, in_a_row=True)[0]


class _Ports:
    """A block of ports reserved for this process until it ends."""

    def __init__(self) -> None:
        self._claim, block = _claim_block()
        self._first = FIRST + block * BLOCK_PORTS
        self._next = 0

    def take(self, count: int, *, in_a_row: bool) -> list[int]:
        taken: list[int] = []
        for _ in range(BLOCK_PORTS):
            if in_a_row and self._next + count - len(taken) > BLOCK_PORTS:
                taken, self._next = [], 0
            port = self._first + self._next
            self._next = (self._next + 1) % BLOCK_PORTS
            if _is_free(port):
                taken.append(port)
            elif in_a_row:
                taken = []
            if len(taken) == count:
                return taken
        raise RuntimeError(f"no {count} free ports from {self._first} on")


@cache
def _ports() -> _Ports:
    return _Ports()


def _claim_block() -> tuple[socket.socket, int]:
    """Claim a block with an abstract socket name, which the kernel frees when this process ends.

    Such names belong to a network namespace, as ports do.
    """
    for block in range(BLOCKS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0kafka-reauth-proxy-test-ports-{block}")
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return claim, block
    raise RuntimeError(f"{BLOCKS} test processes run already")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# Stopped processes


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped every thread of a process."""
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return False
    return bool(stats) and all(stat.rsplit(")", 1)[1].split()[0] == "T" for stat in stats)


# Waiting in an event loop, for a condition instead of a time.
#
# The speed of the machine is not under test

PATIENCE_SECONDS: Final = 90.0
"""Timeout for a busy machine; never reached when the code works."""


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until the condition holds; raise TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition sends no notification
            await asyncio.sleep(0.005)


async def turns(count: int = 50) -> None:
    """Run the event loop's ready callbacks."""
    for _ in range(count):
        await asyncio.sleep(0.001)


# Work measured in turns of the event loop


def finish(steps: Steps[T]) -> T:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def slow(steps: int) -> Steps[int]:
    """Steps that each take a whole slice."""
    for _ in range(steps):
        until = perf_counter() + SLICE_SECONDS
        while perf_counter() < until:
            pass
        yield
    return steps


# Connected network namespaces, which need root and netfilter

_CLONE_NEWNET: Final = 0x40000000


@cache
def _missing() -> str | None:
    """Why network namespaces are unavailable; None if they are available."""
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
        """Command prefix that runs a program in the namespace."""
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
        """Call a function in the namespace; sockets it creates stay there."""
        with ThreadPoolExecutor(1, initializer=self.enter) as thread:
            return thread.submit(make).result(PATIENCE_SECONDS)

    def enter(self) -> None:
        """Move this thread into the namespace, with threads and programs it starts later."""
        with Path(f"/run/netns/{self.name}").open("rb") as handle:
            library = ctypes.CDLL(None, use_errno=True)
            assert library.setns(handle.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()


@contextmanager
def wired(here: tuple[str, ...], there: tuple[str, ...]) -> Iterator[tuple[Namespace, Namespace]]:
    """Two connected namespaces with these addresses; skips without permission."""
    mark = uuid.uuid4().hex[:6]
    pair = Namespace(f"here-{mark}"), Namespace(f"there-{mark}")
    with _made(pair):
        ends = f"vh{mark}", f"vt{mark}"
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for namespace, end, addresses in zip(pair, ends, (here, there), strict=True):
            _ip("link", "set", end, "netns", namespace.name)
            for address in addresses:
                nodad = ("nodad",) if ":" in address else ()
                namespace.run("ip", "address", "add", address, "dev", end, *nodad)
            namespace.run("ip", "link", "set", end, "up")
        yield pair


@contextmanager
def _made(namespaces: Sequence[Namespace]) -> Iterator[None]:
    if (reason := _missing()) is not None:
        pytest.skip(reason)
    try:
        for namespace in namespaces:
            _ip("netns", "add", namespace.name)
            namespace.run("ip", "link", "set", "lo", "up")
        yield
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace.name], check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120)
