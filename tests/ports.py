"""Ports for what the tests start: each is given once, to one of the test processes.

Asking the kernel for a port and closing it again is a race: until the program that it is meant for
has bound it, another test, or an outgoing connection, may take it.
"""

import socket
from functools import cache

FIRST = 10_000
"""All are below the range that the kernel hands to outgoing connections."""
BLOCKS = 32
BLOCK_PORTS = 300


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses and no other caller was given."""
    return _ports().take(count, in_a_row=False)


def free_port_range(count: int) -> int:
    """The first of that many ports in a row."""
    return _ports().take(count, in_a_row=True)[0]


class _Ports:
    """A block of ports that is this process's own for as long as it lives."""

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
    """Claim a block by a name that the kernel frees when this process ends, however it does.

    Such names belong to a network namespace, as ports do.
    """
    for block in range(BLOCKS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0kafka-reauth-proxy-test-ports-{block}")
        except OSError:
            claim.close()
        else:
            return claim, block
    raise RuntimeError(f"{BLOCKS} test processes run already")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
