"""Memory of a connection: logged in, in use, and after storms of requests and of logins.

    python -m benchmarks.memory
    python -m benchmarks.memory --connections 5000 --rows without,authorizer

About a minute; needs what `benchmarks.bench` needs, without HAProxy and Kafka.

idle      Logged in by OAUTHBEARER; no request was forwarded, so there is no connection to a broker.
live      Has had one Produce answered: there is a connection to the broker, and a decision.
requests  Each has had 20 topics written and 20 read, one to a request, and with an authorizer 20
          writes denied.
logins    As many other connections again, a tenth at a time, have logged in, had a Produce answered
          and are gone.

Figures are the growth of the process tree's PSS since before the first of these connections, for
each of them; buffers in the kernel are not in it. What the allocator keeps of a storm without
using it is in it.
"""

import argparse
import resource
import socket
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
from benchmarks.programs import MeasurementFailed, compile_all, memory
from benchmarks.targets import OAUTHBEARER, USER, Lab, Prepare, Target, proxy
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store import open_store
from proxy.wire.apis import API_VERSIONS, FETCH, PRODUCE
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE

TOPICS = 20
"""Number of topics of each kind in a storm."""
_FIRST_CONNECTIONS = 50
"""Number of first connections, whose one-time costs are not counted."""
_LOGIN_STORMS = 10
_PAUSE_SECONDS = 3.0
_CLIENT_ID = b"bench"


class Client:
    """A connection of a client, spoken on by one request, or one batch of them, at a time."""

    def __init__(self, target: Target, token: str) -> None:
        address = (target.address.host, target.address.port)
        self._socket = socket.create_connection(address, timeout=60)
        self._asked = 0
        self._read = b""
        self.ask(_request(API_VERSIONS, 3, b"\x06bench\x021\0", flexible=True))
        self.ask(_request(SASL_HANDSHAKE, 1, _string(OAUTHBEARER)))
        said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer = self.ask(_request(SASL_AUTHENTICATE, 1, struct.pack(">i", len(said)) + said))
        if answer[4:6] != b"\0\0":
            raise MeasurementFailed(f"login refused: {answer!r}")

    def ask(self, *requests: bytes) -> bytes:
        """Send requests and return the last answer, when all have come."""
        self._socket.sendall(b"".join(requests))
        answer = b""
        for _ in requests:
            (size,) = struct.unpack(">i", self._take(4))
            answer = self._take(size)
        return answer

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            piece = self._socket.recv(65_536)
            if not piece:
                raise MeasurementFailed("a connection was closed")
            self._read += piece
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def close(self) -> None:
        """End it."""
        self._socket.close()


def _request(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    head = struct.pack(">hhih", api_key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID
    content = head + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(content)) + content


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def produce(topic: str) -> bytes:
    """A Produce v9 of 50 bytes to one partition."""
    partition = b"\x02" + struct.pack(">i", 0) + bytes([51]) + bytes(50) + b"\0"
    body = b"\0" + struct.pack(">hi", -1, 30_000) + b"\x02" + _compact(topic) + partition + b"\0\0"
    return _request(PRODUCE, 9, body, flexible=True)


def fetch(topic: str) -> bytes:
    """A Fetch v12 of one partition, without a session."""
    head = struct.pack(">iiiibii", -1, 0, 1, 1_048_576, 0, 0, -1)
    partition = b"\x02" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1_048_576) + b"\0"
    body = head + b"\x02" + _compact(topic) + partition + b"\0" + b"\x01" + b"\x01\0"
    return _request(FETCH, 12, body, flexible=True)


def _storm(client: Client, *, denied: bool) -> None:
    for number in range(TOPICS):
        client.ask(produce(f"bench-{number}"), fetch(f"bench-{number}"))
        if denied:
            client.ask(produce(f"other-{number}"))


def _allow(config: Path) -> None:
    """Everything on topics whose names begin with `bench`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """KiB for each connection."""

    idle: float
    live: float
    requests: float
    logins: float


def measure(target: Target, lab: Lab, connections: int, *, denied: bool) -> Grown:
    """Open connections, use them, and see what the processes hold."""
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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    table = Table(title=f"KiB per connection, of {options.connections:,}")
    for name in ("row", "idle", "live", "requests", "logins"):
        table.add_column(name, justify="left" if name == "row" else "right")
    console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        directory = Path(name)
        with fake_broker(compile_all(directory), make_lab(directory)) as lab:
            console.print(report.machine(machine.describe(pinned=False)))
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
