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
from proxy.ops.worker_queries import ControlError
from tests.support.status import ABOUT, Workers
from tests.support.tables import table


@asynccontextmanager
async def client_of(workers: Workers | None = None) -> AsyncIterator[ClientSession]:
    served = workers or Workers()
    status = StatusPage(served, ABOUT)
    pages = make_pages(served, served.hung, lambda: status)
    listening = listen("127.0.0.1", 0)
    server = await start_http(pages, listening)
    async with ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
        yield client
    await server.close()


@pytest.mark.parametrize("silent", [False, True])
async def test_metrics_of_all_workers(silent: bool) -> None:
    workers = Workers()
    if silent:
        workers.written[1] = None
    async with client_of(workers) as client:
        response = await client.get("/metrics")
        body = await response.text()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "Server" not in response.headers
        written = 5 if silent else 8
        assert f"kafka_reauth_proxy_events_written_total {written}.0" in body
        assert f'kafka_reauth_proxy_worker_up{{worker="1"}} {0 if silent else 1}.0' in body


async def test_openmetrics_is_negotiated() -> None:
    async with client_of() as client:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        response = await client.get("/metrics", headers={"Accept": accept})
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        ({0: [], 1: []}, 200),
        ({0: [], 1: ["the brokers are not known yet"]}, 503),
        ({0: ["worker 0 does not answer"]}, 503),
        ({}, 503),
    ],
)
async def test_ready_only_if_every_worker_is(reasons: dict[int, list[str]], status: int) -> None:
    workers = Workers()
    workers.reasons = reasons
    async with client_of(workers) as client:
        response = await client.get("/readyz")
        body = await response.json()
        assert response.status == status
        assert body["ready"] is (status == 200)
        assert {row["worker"]: row["reasons"] for row in body["workers"]} == reasons


@pytest.mark.parametrize(
    ("hanging", "answer"),
    [([], (200, "ok\n")), (["the parent", "worker 1"], (503, "hangs: the parent, worker 1\n"))],
)
async def test_alive_unless_a_process_hangs(hanging: list[str], answer: tuple[int, str]) -> None:
    """A restart of the pod does not help against a broker that is down."""
    workers = Workers()
    workers.reasons = {0: ["no broker"]}
    workers.hanging = hanging
    async with client_of(workers) as client:
        response = await client.get("/healthz")
        assert (response.status, await response.text()) == answer


async def test_nothing_else_is_served() -> None:
    async with client_of() as client:
        for path in (
            "/index.html",
            "/metrics/",
            "/metrics/../etc/passwd",
            "/sessions",
            "/%2e%2e/x",
        ):
            assert (await client.get(path)).status == 404
        for path in ("/metrics", "/", "/sessions.json"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                answer = await client.request(method, path, data=b"x" * 100_000)
                assert answer.status == 405


async def test_the_status_page() -> None:
    async with client_of() as client:
        answer = await client.get("/")
        page = await answer.text()
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "User:alice" in page
        assert "User:bob" in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", 3),
        ("?principal=User:alice", 2),
        ("?principal=User:alice&client-id=app-2", 1),
        ("?principal=&client-id=app-2", 1),
        ("?connection=00c0ffee00c0ffee-3", 1),
        ("?principal=User:nobody", 0),
        ("?limit=1", 3),
    ],
)
async def test_sessions_as_json(query: str, found: int) -> None:
    async with client_of() as client:
        answer = await client.get(f"/sessions.json{query}")
        body = await answer.json()
        assert answer.status == 200
        assert body["counts"]["sessions"] == found
        assert len(body["sessions"]) + body["sessions_more"] == found
        assert body["listeners"][0]["connections"] == 6, "listeners are never chosen from"


LIMITS = ("0", "1001", "-1", "x", "1e3", "\N{SUPERSCRIPT TWO}", "")


@pytest.mark.parametrize(
    "path",
    [
        *("/?who=x", "/?principal=a&principal=b", "/?limit=3"),
        *(f"/sessions.json?limit={limit}" for limit in LIMITS),
    ],
)
async def test_a_query_that_is_not_understood_is_refused(path: str) -> None:
    """A misspelt key would show everybody."""
    async with client_of() as client:
        answer = await client.get(path)
        assert (answer.status, answer.content_type) == (400, "text/plain")


async def test_a_worker_that_does_not_tell_of_its_sessions_is_not_ready() -> None:
    workers = Workers()
    workers.open[1] = ControlError("worker 1 does not answer")
    async with client_of(workers) as client:
        body = await (await client.get("/sessions.json")).json()
        assert body["ready"] is False
        assert body["workers"][1]["reasons"] == ["worker 1 does not answer"]
        assert body["counts"]["sessions"] == 2


async def test_many_looks_at_once_ask_the_workers_once() -> None:
    """Whatever they look for: the port must be no lever to slow the data path."""
    workers = Workers()
    async with client_of(workers) as client:
        paths = ["/", "/?principal=User:bob", "/sessions.json", "/?client-id=x", "/metrics"] * 5
        answers = await asyncio.gather(*(client.get(path) for path in paths))
        assert {answer.status for answer in answers} == {200}
    assert workers.queries == 1
    assert workers.rounds < 5


# --- untrusted peers: other hosts, garbage, held connections


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
