"""The HTTP port and untrusted peers: other hosts, garbage, held connections."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import ClientSession

from proxy.net.sockets import listen
from proxy.ops.http_process import make_pages, names_no_other_host, start_http
from proxy.ops.http_server import CLOSE_SECONDS, MAX_HEAD_BYTES
from proxy.ops.status.service import StatusPage
from tests.support.status import ABOUT, Workers
from tests.support.tables import table


@asynccontextmanager
async def served(address: str = "127.0.0.1", **settings: Any) -> AsyncIterator[int]:
    """The port of a server as the proxy starts it."""
    workers = Workers()
    status = StatusPage(workers, ABOUT)
    pages = make_pages(workers, workers.hung, lambda: status)
    listening = listen(address, 0)
    port: int = listening.getsockname()[1]
    server = await start_http(pages, listening, **settings)
    try:
        yield port
    finally:
        await server.close()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(("host", "answered"), table(__file__, "hosts"))
def test_only_an_address_or_localhost_is_no_other_host(host: str, answered: bool) -> None:
    assert names_no_other_host(host) is answered


async def answer_to(port: int, sent: bytes) -> bytes:
    """The whole answer to the bytes sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await reader.read()
    await close(writer)
    return answer


TELL_OF_USERS = ("/", "/sessions.json", "/metrics", "/sessions%2Ejson", "/?principal=User:alice")


@pytest.mark.parametrize(
    "sent",
    [
        *(f"GET {path} HTTP/1.1\r\nHost: attacker.example" for path in TELL_OF_USERS),
        "HEAD / HTTP/1.1\r\nHost: attacker.example",
        "GET / HTTP/1.1\r\nHost: attacker.example:9404\r\nX-Forwarded-Host: localhost",
        "GET / HTTP/1.1\r\nhost: a@localhost",
        "GET / HTTP/1.1\r\nHost:",
        "GET / HTTP/1.0",
    ],
)
async def test_a_page_elsewhere_reads_nothing_of_users_on_a_loopback_address(
    sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A browser on this machine would: a site may have its own name resolve to 127.0.0.1."""
    caplog.set_level(logging.INFO)
    async with served() as port:
        answer = await answer_to(port, f"{sent}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 403 " in head.splitlines()[0]
        assert body in (b"", b"only an IP address or localhost is answered here\n")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("address", "path", "host"),
    [
        ("127.0.0.1", "/healthz", "proxy.example"),
        ("127.0.0.1", "/readyz", "proxy.example"),
        *(("127.0.0.1", path, "localhost") for path in TELL_OF_USERS),
        *(("0.0.0.0", path, "proxy.example") for path in TELL_OF_USERS),  # noqa: S104
    ],
)
async def test_others_are_answered_as_ever(address: str, path: str, host: str) -> None:
    """A probe asks by any name; on other addresses the network decides who reaches the port."""
    async with served(address) as port:
        sent = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert b" 200 " in (await answer_to(port, sent.encode())).splitlines()[0]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n",
        b"GET /" + b"a" * 2 * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\xff\xff",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01\x02\x00\r\n\r\n",
        b"\xff" * 100 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n\r\n",
    ],
    ids=["NUL", "long", "upgraded", "pipelined", "garbage", "chunked"],
)
async def test_what_is_not_http_is_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback for each, with the bytes in it, would let any peer fill the disk."""
    caplog.set_level(logging.INFO)
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        assert b" 400 " in await reader.read()
        await close(writer)
    assert caplog.records == []


async def test_who_holds_connections_without_asking_keeps_nobody_out() -> None:
    """The kubelet restarts what does not answer it: the data path, too."""
    async with served(max_connections=4) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in held:
            writer.write(b"GET /hea")
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            assert (await session.get("/healthz")).status == 200
            lost = [reader.read() for reader, _ in held[:16]]
            await asyncio.wait_for(asyncio.gather(*lost, return_exceptions=True), 60)
        for _, writer in held:
            await close(writer)


async def test_fewer_connections_than_may_be_are_kept() -> None:
    async with served(max_connections=4) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, writer in held:
            writer.write(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 OK\r\n" in await reader.readuntil(b"\r\n\r\n")
        for _, writer in held:
            await close(writer)


async def test_who_does_not_read_does_not_hold_up_the_end() -> None:
    """The proxy would be killed for it, half a minute later: the server itself waits a minute."""
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200_000
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.setblocking(False)
        async with asyncio.timeout(40 * CLOSE_SECONDS), served() as port:
            await loop.sock_connect(client, ("127.0.0.1", port))
            with suppress(TimeoutError):  # until there are more answers than buffers take
                await asyncio.wait_for(loop.sock_sendall(client, asked), CLOSE_SECONDS)
