"""Memory of the whole sidecar, and of a connection.

    python -m benchmarks.memory
    python -m benchmarks.memory --connections 5000 --rows without,authorizer
    python -m benchmarks.memory --tables groups

About five minutes; needs what `benchmarks.bench` needs, without HAProxy and Kafka.

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

The third table has what a container is charged for (`benchmarks.control_group`): with idle
connections, and, when these are gone, the most while 16 connections produce 16 KiB at a time, for
three seconds. It needs root.

The fourth table has the growth by clients that stop in the middle of their login, and how many of
them the proxy has not closed; the fake broker refuses raw tokens.

The growth in the second table is that of the process tree's PSS since before the first of these
connections, for each of them, without buffers in the kernel, and with memory that the allocator
keeps unused.
"""

import argparse
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine, report, unauthenticated
from benchmarks.bench import fake_broker, make_lab
from benchmarks.client import Client, request
from benchmarks.control_group import ControlGroup, control_group
from benchmarks.load import Generator
from benchmarks.programs import Unavailable, compile_all, memory, memory_alone_kib
from benchmarks.targets import OAUTHBEARER, USER, Lab, Prepare, Start, Target, featured, proxy
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store import open_store
from proxy.wire.apis import FETCH, PRODUCE

TOPICS = 20
"""Number of topics of each kind in a storm."""
_FIRST_CONNECTIONS = 50
"""Number of first connections, whose one-time costs are not counted."""
_LOGIN_STORMS = 10
"""Number of groups in which other connections log in."""
_LOAD_CONNECTIONS, _LOAD_SECONDS = 16, 3.0
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


@contextmanager
def _keys_by_http(lab: Lab) -> Iterator[Target]:
    """Start a proxy that fetches its signing keys from a web server."""
    keys = lab.credentials.jwks_file

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Handler, directory=keys.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/{keys.name}"
        listener = {"sasl.oauthbearer.jwks.endpoint.url": url}
        try:
            with proxy("keys-by-http", listener=listener)(lab) as target:
                yield target
        finally:
            server.shutdown()


OTHER_SIDECARS: Mapping[str, Start] = {
    "1 worker, keys by HTTP": _keys_by_http,
    "1 worker, brokers authenticate": proxy("relaying", mechanism=OAUTHBEARER, relays_logins=True),
}
"""Further proxies with a row in the first table."""


CHARGED_CONNECTIONS = (0, 1_000, 10_000)
"""Numbers of idle connections with which control groups are measured."""


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


def charged(target: Target, group: ControlGroup, generator: Generator) -> list[float]:
    """Return the MiB that a group is charged for, by connections, and under load."""
    found = []
    for count in CHARGED_CONNECTIONS:
        with generator.idle(target, count, OAUTHBEARER) if count else nullcontext():
            time.sleep(_PAUSE_SECONDS)
            found.append(group.mib())
    with ThreadPoolExecutor() as beside:
        load = beside.submit(
            generator.measure,
            target,
            "relay",
            connections=_LOAD_CONNECTIONS,
            seconds=_LOAD_SECONDS,
            options=("--payload", "16384"),
        )
        most = group.mib()
        while not load.done():
            most = max(most, group.mib())
            time.sleep(0.05)
    load.result()
    return [*found, most]


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
    parser.add_argument("--tables", default=",".join(TABLES), metavar="A,B")
    options = parser.parse_args(arguments)
    for name, known in (("rows", ROWS), ("tables", TABLES)):
        if unknown := set(getattr(options, name).split(",")) - known.keys():
            parser.error(f"no such {name}: {', '.join(sorted(unknown))}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        directory = Path(name)
        options.programs = compile_all(directory)
        with fake_broker(options.programs, make_lab(directory)) as lab:
            console.print(report.machine(machine.describe(pinned=False)))
            for table in options.tables.split(","):
                try:
                    console.print(TABLES[table](lab, options))
                except Unavailable as reason:
                    console.print(f"{table} left out: {reason}", markup=False)
    return 0


def _sidecars(lab: Lab, options: argparse.Namespace) -> Table:
    table = _table("MiB of the whole sidecar", "proxy", "idle", "alone")
    table.add_column(f"{options.connections:,} live connections", justify="right")
    for name, start in {**SIDECARS, **OTHER_SIDECARS}.items():
        with start(lab) as target:
            found = whole(target, lab, options.connections)
        table.add_row(name, *(f"{one:.1f}" for one in found))
    return table


def _connections(lab: Lab, options: argparse.Namespace) -> Table:
    title = f"KiB per connection, of {options.connections:,}"
    table = _table(title, "row", "idle", "live", "requests", "logins")
    for row in options.rows.split(","):
        settings, prepare = ROWS[row]
        with proxy(row, settings=settings, prepare=prepare)(lab) as target:
            grown = measure(target, lab, options.connections, denied=prepare is not None)
        figures = (grown.idle, grown.live, grown.requests, grown.logins)
        table.add_row(row, *(f"{one:.1f}" for one in figures))
    return table


def _groups(lab: Lab, options: argparse.Namespace) -> Table:
    counts = (f"{count:,} idle connections" for count in CHARGED_CONNECTIONS)
    table = _table("MiB charged to a control group", "proxy", *counts, "under load")
    generator = Generator(program=options.programs["load"], credentials=lab.credentials)
    for name, start in SIDECARS.items():
        with control_group() as group, start(replace(lab, group=group.procs)) as target:
            found = charged(target, group, generator)
        table.add_row(name, *(f"{one:.0f}" for one in found))
    return table


def _unauthenticated(lab: Lab, options: argparse.Namespace) -> Table:
    title = f"MiB that {options.connections:,} clients cost that stop in a phase (still open)"
    table = _table(title, "phase", "sasl.termination: proxy", "broker")
    for phase in unauthenticated.PHASES:
        found = []
        for relays in (False, True):
            name = f"unauthenticated-{'broker' if relays else 'proxy'}"
            start = proxy(
                name, listener=unauthenticated.listener(lab), tls=True, relays_logins=relays
            )
            with start(lab) as target:
                base = _pss_kib(target)
                with unauthenticated.stopped(target, lab, phase, options.connections) as count:
                    grown = (_pss_kib(target) - base) / 1024
                found.append(f"{grown:.1f} ({count:,})")
        table.add_row(phase, *found)
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right")
    return table


TABLES: Mapping[str, Callable[[Lab, argparse.Namespace], Table]] = {
    "sidecars": _sidecars,
    "connections": _connections,
    "groups": _groups,
    "unauthenticated": _unauthenticated,
}


if __name__ == "__main__":
    sys.exit(main())
