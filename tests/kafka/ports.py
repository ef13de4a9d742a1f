"""Ports for what the tests start."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports below the range that the kernel hands to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(15_000, 31_000)  # noqa: S311 - not a secret
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port_range(count: int) -> int:
    """The first of that many ports in a row."""
    while True:
        first = free_ports(1)[0]
        if all(_is_free(port) for port in range(first + 1, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
