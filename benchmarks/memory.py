"""Memory of the whole sidecar, and of a connection.

    python -m benchmarks.memory
    python -m benchmarks.memory --connections 5000 --rows without,authorizer

About two minutes; needs what `benchmarks.bench` needs, without HAProxy and Kafka. Installed
packages matter: kio imports `hypothesis` if it is installed, and a deployed proxy has none of the
tests' packages.

The first table has the PSS of all processes together, which counts what they share once: before any
connection, and with connections that each have logged in and had a Produce answered. *Alone* is
the first of these where no other program maps the same files, which then count in full. The second
table has the growth for each connection:

idle      Each has logged in by OAUTHBEARER; without a forwarded request there is no connection to a
          broker.
live      Each has had one Produce answered, over a connection to the broker.
requests  Each has written 20 topics and read 20, one to a request; with an authorizer, 20 more
          writes were denied.
logins    As many other connections, a tenth at a time, have logged in, had a Produce answered, and
          closed.

It is that of the process tree's PSS since before the first of these connections, for each of them,
without buffers in the kernel, and with memory that the allocator keeps unused.
"""

import argparse
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine, report
from benchmarks.bench import fake_broker, make_lab
from benchmarks.client import Client, request
from benchmarks.programs import compile_all, memory, memory_alone_kib
from benchmarks.targets import USER, Lab, Prepare, Start, Target, featured, proxy
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store import open_store
from proxy.wire.apis import FETCH, PRODUCE

TOPICS = 20
"""Number of topics of each kind in a storm."""
_FIRST_CONNECTIONS = 50
"""Number of first connections, whose one-time costs are not counted."""
_LOGIN_STORMS = 10
"""Number of groups in which other connections log in."""
_PAUSE_SECONDS = 3.0
"""Seconds between the last request and the reading of memory."""


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def produce(topic: str) -> bytes:
    """Return a Produce v9 of 50 bytes to one partition."""
    partition = b"\x02" + struct.pack(">i", 0) + bytes([51]) + bytes(50) + b"\0"
    body = b"\0" + struct.pack(">hi", -1, 30_000) + b"\x02" + _compact(topic) + partition + b"\0\0"
    return request(PRODUCE, 9, body, flexible=True)


def fetch(topic: str) -> bytes:
    """Return a Fetch v12 of one partition, without a session."""
    head = struct.pack(">iiiibii", -1, 0, 1, 1_048_576, 0, 0, -1)
    partition = b"\x02" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1_048_576) + b"\0"
    body = head + b"\x02" + _compact(topic) + partition + b"\0" + b"\x01" + b"\x01\0"
    return request(FETCH, 12, body, flexible=True)


def _storm(client: Client, *, denied: bool) -> None:
    for number in range(TOPICS):
        client.ask(produce(f"bench-{number}"), fetch(f"bench-{number}"))
        if denied:
            client.ask(produce(f"other-{number}"))


def _allow(config: Path) -> None:
    """Allow everything on topics whose names begin with `bench`."""
    store = open_store(f"sqlite:{config.parent / 'state.db'}")
    store.create_acls(
        [
            Acl(
                resource_type=ResourceType.TOPIC,
                pattern_type=PatternType.PREFIXED,
                name="bench",
                principal=f"User:{USER}",
                host="*",
                operation=Operation.ALL,
                permission=Permission.ALLOW,
            )
        ]
    )
    store.close()


ROWS: Mapping[str, tuple[Mapping[str, Any], Prepare | None]] = {
    "without": ({}, None),
    "authorizer": ({"authorizer": {"mode": "enforce"}}, _allow),
}


SIDECARS: Mapping[str, Start] = {
    "1 worker": proxy("one-worker"),
    "2 workers": proxy("two-workers", settings={"workers": 2}),
    "4 workers": proxy("four-workers", settings={"workers": 4}),
    "1 worker, 100,000 ACLs": featured("acls", acls=100_000, compiled=False),
}
"""Proxies whose whole memory is measured."""


def whole(target: Target, lab: Lab, connections: int) -> tuple[float, float, float]:
    """Return the MiB of all processes without a connection, the same alone, and with live ones."""
    assert target.pid is not None
    idle = _pss_kib(target) / 1024
    alone = memory_alone_kib(target.pid) / 1024
    token = lab.credentials.token_file.read_text().strip()
    with _connected(target, token, connections) as clients:
        for client in clients:
            client.ask(produce("bench"))
        return idle, alone, _pss_kib(target) / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Memory of each connection in KiB, by stage."""

    idle: float
    live: float
    requests: float
    logins: float


def measure(target: Target, lab: Lab, connections: int, *, denied: bool) -> Grown:
    """Open connections, use them, and measure the memory of the processes at each stage."""
    token = lab.credentials.token_file.read_text().strip()
    with _connected(target, token, _FIRST_CONNECTIONS) as first:
        for client in first:
            client.ask(produce("bench"))
            _storm(client, denied=denied)
    base = _pss_kib(target)

    def grown() -> float:
        return (_pss_kib(target) - base) / connections

    with _connected(target, token, connections) as clients:
        idle = grown()
        for client in clients:
            client.ask(produce("bench"))
        live = grown()
        for client in clients:
            _storm(client, denied=denied)
        requests = grown()
        for _ in range(_LOGIN_STORMS):
            with _connected(target, token, connections // _LOGIN_STORMS) as others:
                for client in others:
                    client.ask(produce("bench"))
        return Grown(idle=idle, live=live, requests=requests, logins=grown())


@contextmanager
def _connected(target: Target, token: str, count: int) -> Iterator[list[Client]]:
    clients: list[Client] = []
    try:
        clients.extend(Client(target, token) for _ in range(count))
        yield clients
    finally:
        for client in clients:
            client.close()


def _pss_kib(target: Target) -> int:
    assert target.pid is not None
    time.sleep(_PAUSE_SECONDS)
    return sum(one.pss_kib for one in memory(target.pid))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, default=2_000, help="(default 2000)")
    parser.add_argument("--rows", default=",".join(ROWS), metavar="A,B")
    options = parser.parse_args(arguments)
    rows = options.rows.split(",")
    if unknown := set(rows) - ROWS.keys():
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sidecars = Table(title="MiB of the whole sidecar")
    for name in ("proxy", "idle", "alone", f"{options.connections:,} live connections"):
        sidecars.add_column(name, justify="left" if name == "proxy" else "right")
    table = Table(title=f"KiB per connection, of {options.connections:,}")
    for name in ("row", "idle", "live", "requests", "logins"):
        table.add_column(name, justify="left" if name == "row" else "right")
    console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        directory = Path(name)
        with fake_broker(compile_all(directory), make_lab(directory)) as lab:
            console.print(report.machine(machine.describe(pinned=False)))
            for name, start in SIDECARS.items():
                with start(lab) as target:
                    found = whole(target, lab, options.connections)
                sidecars.add_row(name, *(f"{one:.1f}" for one in found))
            console.print(sidecars)
            for row in rows:
                settings, prepare = ROWS[row]
                with proxy(row, settings=settings, prepare=prepare)(lab) as target:
                    grown = measure(target, lab, options.connections, denied=prepare is not None)
                figures = (grown.idle, grown.live, grown.requests, grown.logins)
                table.add_row(row, *(f"{one:.1f}" for one in figures))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
