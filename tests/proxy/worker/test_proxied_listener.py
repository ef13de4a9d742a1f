"""A listener behind load balancers: whose address counts, and what a bad header costs."""

import asyncio
import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import pytest

from proxy.brokers.access import Access
from proxy.brokers.service_connection import fetch_metadata
from proxy.net.dialler import Dialler
from proxy.net.proxy_header import MAX_BODY, parse
from proxy.quota.model import address_group
from tests.support.fake_broker import FakeBroker
from tests.support.frames import api_versions, metadata
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import (
    PLAINTEXT,
    RunningListener,
    listen,
    listening,
    read_frame,
    ssl_listener,
)
from tests.support.tls import AUTHORITY, OURS, Spoken, client_context, server_context

TRUSTED = {"proxy.protocol": "required", "proxy.protocol.trusted": "127.0.0.1,127.0.0.2"}
BEHIND: dict[str, Any] = PLAINTEXT | TRUSTED
UNTRUSTED, SECOND = ("127.0.0.9", 0), ("127.0.0.2", 0)
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9094\r\n"
SIX = ip_address("2001:db8::7").packed + ip_address("2001:db8::1").packed + bytes(4)
V2 = SIGNATURE + b"\x21\x21" + len(SIX).to_bytes(2) + SIX
LOCAL = SIGNATURE + b"\x20\0\0\0"
REFUSED = "refused proxy_header"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No header is late on a busy machine."""
    monkeypatch.setattr("proxy.net.proxied_client.HEADER_SECONDS", 600.0)


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def refuses(running: RunningListener, sent: bytes) -> None:
    """Assert that these bytes end the connection, and are recorded once."""
    reader, writer = await running.connect()
    writer.write(sent)
    assert await ends(reader)
    assert running.log == [REFUSED]
    assert running.listener.connection_count == 0
    writer.close()


def hosts(running: RunningListener) -> list[str]:
    return [client.peer_host for client in running.listener.clients]


@pytest.mark.parametrize(
    ("header", "address"), [(V1, "192.0.2.7"), (V2, "2001:db8::7"), (LOCAL, "127.0.0.1")]
)
@pytest.mark.parametrize("pieces", [1, 2, 100])
async def test_the_client_has_the_address_of_the_header(
    directory: Path, header: bytes, address: str, pieces: int
) -> None:
    """The header comes with the first request, or in pieces; LOCAL has the balancer's address."""
    async with listen(directory, BEHIND) as running:
        reader, writer = await running.connect()
        sent = header + api_versions(1)
        step = -(-len(sent) // pieces)
        for start in range(0, len(sent), step):
            writer.write(sent[start : start + step])
            await asyncio.sleep(0)
        await read_frame(reader)
        assert hosts(running) == [address]
        assert running.connection.peer_host == address
        assert running.listener.connection_count == 1


async def test_tls_begins_after_the_header(directory: Path) -> None:
    """Turns in TLS go by the client's address, too: a balancer's clients are not one client."""
    async with listen(directory, ssl_listener() | TRUSTED) as running:
        reader, writer = await running.connect()
        writer.write(V2)
        await writer.start_tls(client_context(AUTHORITY), server_hostname="localhost")
        writer.write(api_versions(1))
        await read_frame(reader)
        assert hosts(running) == ["2001:db8::7"]
        (client,) = running.listener.clients
        assert client._transport._group == address_group("2001:db8::7")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "sent",
    [
        api_versions(1),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PROXY TCP4 " + b"1" * 200,
        SIGNATURE + b"\x21\x11" + (MAX_BODY + 1).to_bytes(2),
        SIGNATURE + b"\x21\x31" + (216).to_bytes(2) + bytes(216),
        SIGNATURE + b"\x21\x11\0\x0e" + bytes(14),
    ],
    ids=["none", "TLS", "long v1", "long v2", "UNIX", "broken TLV"],
)
async def test_a_bad_header_ends_the_connection(
    directory: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with listen(directory, BEHIND) as running:
        await refuses(running, sent=sent + b"\r\nforged\r\n")
    (line,) = caplog.messages
    assert line.startswith("listener clients: 127.0.0.1 is refused: ")
    assert "forged" not in line


async def test_an_untrusted_peer_is_refused_before_it_is_read(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listen(directory, BEHIND) as running:
        for _ in range(3):
            reader, writer = await running.connect(local_addr=UNTRUSTED)
            assert await ends(reader)
            writer.close()
        assert running.log == [REFUSED] * 3
    assert caplog.messages == [
        "listener clients: 127.0.0.9 is refused: its address is not in proxy.protocol.trusted"
    ]


@pytest.mark.parametrize("sent", [b"", LOCAL])
async def test_a_health_check_leaves_no_trace(
    directory: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[None] = []
    async with listen(directory, BEHIND) as running:
        running.listener.ended = lambda: ended.append(None)
        _, writer = await running.connect()
        writer.write(sent)
        await until(lambda: running.listener.connection_count == 1)
        writer.close()
        await until(lambda: running.listener.connection_count == 0)
        assert running.log == []
    assert ended == [None]
    assert caplog.messages == []


async def test_half_a_header_is_refused_when_the_peer_closes(directory: Path) -> None:
    async with listen(directory, BEHIND) as running:
        _, writer = await running.connect()
        writer.write(V2[:20])
        writer.close()
        await until(lambda: running.log == [REFUSED])


@pytest.mark.parametrize("sent", [b"", V2[:20]])
async def test_a_header_that_is_not_complete_in_time_ends_the_connection(
    directory: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.net.proxied_client.HEADER_SECONDS", 0.2)
    async with listen(directory, BEHIND) as running:
        await refuses(running, sent=sent)


async def test_a_health_check_that_stays_connected_is_closed_without_a_trace(
    directory: Path,
) -> None:
    async with listen(directory, BEHIND) as running:
        reader, writer = await running.connect()
        writer.write(LOCAL)
        await until(lambda: running.listener.connection_count == 1)
        headers = running.listener.proxy_headers
        assert headers is not None
        ((check,),) = headers._waiting.values()
        await until(lambda: check._is_local)
        check.give_up("late")
        assert await ends(reader)
        assert running.log == []


async def test_a_peer_with_too_many_unfinished_headers_loses_its_own_oldest(
    directory: Path,
) -> None:
    async with listen(directory, BEHIND) as running:
        assert running.listener.proxy_headers is not None
        running.listener.proxy_headers._most = 2
        other, other_writer = await running.connect(local_addr=SECOND)
        await until(lambda: running.listener.connection_count == 1)
        first, _ = await running.connect()
        await until(lambda: running.listener.connection_count == 2)
        second, second_writer = await running.connect()
        assert await ends(first)
        assert running.log == [REFUSED]
        for reader, writer in ((second, second_writer), (other, other_writer)):
            writer.write(V1 + api_versions(1))
            await read_frame(reader)
            writer.close()
            await until(lambda: running.listener.connection_count < 2)


async def test_a_drain_closes_connections_without_a_header(directory: Path) -> None:
    async with listen(directory, BEHIND) as running:
        reader, _ = await running.connect()
        await until(lambda: running.listener.connection_count == 1)
        assert running.listener.proxy_headers is not None
        running.listener.proxy_headers.close()
        assert await ends(reader)
        assert running.log == []


# Headers on connections to brokers, before TLS and before any request


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


def announcing(*, tls: bool) -> Access:
    trusting = Spoken(client_context(AUTHORITY)) if tls else None
    return Access(timeout_s=PATIENCE_SECONDS, dialler=Dialler(sends_header=True), tls=trusting)


@pytest.mark.parametrize("given", [PLAINTEXT, BEHIND], ids=["direct", "behind a balancer"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_the_broker_s_side_learns_the_client_s_address(
    directory: Path, given: dict[str, Any], tls: bool
) -> None:
    broker = Behind(tls=server_context(OURS) if tls else None)
    access = announcing(tls=tls)
    async with listen(directory, given, behind=broker, access=access) as running:
        running.upstream.host = "localhost"
        reader, writer = await running.connect()
        port = writer.get_extra_info("sockname")[1]
        writer.write((V1 if given is BEHIND else b"") + api_versions(1) + metadata(2))
        for _ in range(2):
            await read_frame(reader)
        assert broker.named == [("192.0.2.7", 0) if given is BEHIND else ("127.0.0.1", port)]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_the_proxy_s_own_requests_are_local(tls: bool) -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Behind(tls=server_context(OURS) if tls else None) as broker,
    ):
        await fetch_metadata("localhost", broker.port, announcing(tls=tls))
        assert broker.named == [(None, 0)]
