"""TCP keepalive of sockets in this process or network namespace."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def options(sock: Any) -> tuple[int, ...]:
    """SO_KEEPALIVE, its idle time, interval and count, and TCP_USER_TIMEOUT in ms."""
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    enabled = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return enabled, *(sock.getsockopt(socket.IPPROTO_TCP, one) for one in tcp)


def options_of_connections_to(port: int) -> Iterator[tuple[int, ...]]:
    """Options of this process's connections to a port."""
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as sock:
            if sock.getpeername()[1:2] == (port,):
                yield options(sock)


def seconds_to_probe(*, local_port: int | None = None, port: int | None = None) -> list[float]:
    """Seconds until the kernel probes each connection from `local_port`, or to `port`.

    Infinite if keepalive is off, and while a segment is not acknowledged.
    """
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()  # proc_net_tcp: number, local, remote, state, queues, timer:ticks
        ports = [int(address.split(":")[1], 16) for address in row[1:3]]
        if row[3] == "01" and (ports[0] == local_port or ports[1] == port):
            timer, ticks = row[5].split(":")
            found.append(int(ticks, 16) / CLOCK_TICKS if timer == "02" else float("inf"))
    return found
