"""Headers of the PROXY protocol on connections to brokers, before TLS and before any request."""

import asyncio
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from proxy.brokers.access import Access
from proxy.brokers.service_connection import fetch_metadata
from proxy.net.dialler import Dialler
from proxy.net.proxy_header import parse
from tests.support.fake_broker import FakeBroker
from tests.support.frames import api_versions, metadata
from tests.support.processes import PATIENCE_SECONDS
from tests.support.relay import PLAINTEXT, listen, listening, read_frame
from tests.support.tls import AUTHORITY, OURS, client_context, server_context

V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9094\r\n"
BEHIND: dict[str, Any] = PLAINTEXT | {
    "proxy.protocol": "required",
    "proxy.protocol.trusted": "127.0.0.1",
}
FIXED = 16


@dataclass(eq=False)
class Behind(FakeBroker):
    """A broker that is reached through something that reads a header."""

    named: list[tuple[str | None, int]] = field(default_factory=list)
    """Address and port in each header."""
    _accepting: "asyncio.Task[None] | None" = None

    async def __aenter__(self) -> Self:
        sock = listening()
        sock.listen()
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(sock))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._accepting is not None
        self._accepting.cancel()
        self.drop_connections()
        await asyncio.gather(*(task for task in self._tasks if task))

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with sock:
            while True:
                connection, _ = await loop.sock_accept(sock)
                fixed = await loop.sock_recv(connection, FIXED)
                size = int.from_bytes(fixed[14:])
                rest = await loop.sock_recv(connection, size) if size else b""
                header = parse(fixed + rest)
                assert header is not None
                self.named.append((header.address, int.from_bytes(rest[8:10])))
                await loop.connect_accepted_socket(self._protocol, connection, ssl=self.tls)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)


def announcing(**more: Any) -> Access:
    return Access(timeout_s=PATIENCE_SECONDS, dialler=Dialler(sends_header=True), **more)


@dataclass
class Source:
    """Source of one context."""

    expires_at: float | None = None

    context = client_context(AUTHORITY)


@pytest.mark.parametrize("given", [PLAINTEXT, BEHIND], ids=["direct", "behind a balancer"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_the_broker_s_side_learns_the_client_s_address(
    directory: Path, given: dict[str, Any], tls: bool
) -> None:
    broker = Behind(tls=server_context(OURS) if tls else None)
    access = announcing(tls=Source()) if tls else announcing()
    async with listen(directory, given, behind=broker, access=access) as running:
        running.upstream.host = "localhost"
        reader, writer = await running.connect()
        port = writer.get_extra_info("sockname")[1]
        writer.write((V1 if given is BEHIND else b"") + api_versions(1) + metadata(2))
        for _ in range(2):
            await read_frame(reader)
        assert broker.named == [("192.0.2.7", 0) if given is BEHIND else ("127.0.0.1", port)]
        writer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_the_proxy_s_own_requests_are_local(tls: bool) -> None:
    access = announcing(tls=Source()) if tls else announcing()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Behind(tls=server_context(OURS) if tls else None) as broker,
    ):
        await fetch_metadata("localhost", broker.port, access)
        assert broker.named == [(None, 0)]
