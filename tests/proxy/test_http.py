import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from metrics.registry import EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from proxy.control import ControlError
from proxy.http import MAX_HEADER_BYTES, make_app, names_no_other_host, start_http
from proxy.sockets import listen
from proxy.status.facts import Selector, SessionFacts
from proxy.status.service import StatusPage
from tests.proxy.status_given import ABOUT, listener, session


class Workers:
    """Answers that a test can change."""

    def __init__(self) -> None:
        self.written: dict[int, int | None] = {0: 5, 1: 3}
        self.reasons: dict[int, list[str]] = {0: [], 1: []}
        self.rounds = 0
        self.pictures = 0
        self.open: dict[int, list[SessionFacts] | ControlError] = {
            0: [session(1), session(2, client_id="app-2")],
            1: [session(3, principal="User:bob")],
        }

    async def snapshots(self) -> Mapping[int, Snapshot | None]:
        self.rounds += 1
        return {worker: self._snapshot(count) for worker, count in self.written.items()}

    async def readiness(self) -> Mapping[int, list[str]]:
        return self.reasons

    async def status(self) -> Mapping[int, Mapping[str, Any] | ControlError]:
        self.pictures += 1
        return {
            worker: {
                "reasons": self.reasons[worker],
                "listeners": [listener()],
                "incidents": [],
                "principals": {},
            }
            for worker in self.open
        }

    async def sessions(self, selector: Selector) -> Mapping[int, list[SessionFacts] | ControlError]:
        assert selector == Selector()
        return self.open

    def _snapshot(self, written: int | None) -> Snapshot | None:
        if written is None:
            return None
        snapshot = Snapshot(run="a")
        snapshot.count(EVENTS_WRITTEN, written)
        return snapshot


Client = TestClient[object, object]  # type: ignore[type-var]


def with_client(test: Callable[[Client], Awaitable[None]], workers: Workers | None = None) -> None:
    async def run() -> None:
        served = workers or Workers()
        app = make_app(served.snapshots, served.readiness, StatusPage(served, ABOUT))
        async with TestClient(TestServer(app)) as client:
            await test(client)  # type: ignore[arg-type]

    asyncio.run(run())


def test_metrics_of_all_workers() -> None:
    async def test(client: Client) -> None:
        response = await client.get("/metrics")
        body = await response.text()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "kafka_reauth_proxy_events_written_total 8.0" in body
        assert 'kafka_reauth_proxy_worker_up{worker="1"} 1.0' in body

    with_client(test)


def test_openmetrics_is_negotiated() -> None:
    async def test(client: Client) -> None:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        response = await client.get("/metrics", headers={"Accept": accept})
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")

    with_client(test)


def test_a_silent_worker_shows() -> None:
    workers = Workers()
    workers.written[1] = None

    async def test(client: Client) -> None:
        body = await (await client.get("/metrics")).text()
        assert 'kafka_reauth_proxy_worker_up{worker="1"} 0.0' in body
        assert "kafka_reauth_proxy_events_written_total 5.0" in body

    with_client(test, workers)


def test_many_scrapes_at_once_ask_the_workers_once() -> None:
    """The scrape port must be no lever to slow the data path."""
    workers = Workers()

    async def test(client: Client) -> None:
        responses = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
        assert {response.status for response in responses} == {200}

    with_client(test, workers)
    assert workers.rounds < 20


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        ({0: [], 1: []}, 200),
        ({0: [], 1: ["the brokers are not known yet"]}, 503),
        ({0: ["worker 0 does not answer"]}, 503),
        ({}, 503),
    ],
)
def test_ready_only_if_every_worker_is(reasons: dict[int, list[str]], status: int) -> None:
    workers = Workers()
    workers.reasons = reasons

    async def test(client: Client) -> None:
        response = await client.get("/readyz")
        body = await response.json()
        assert response.status == status
        assert body["ready"] is (status == 200)
        assert {row["worker"]: row["reasons"] for row in body["workers"]} == reasons

    with_client(test, workers)


def test_alive_whatever_the_workers_do() -> None:
    """A restart of the pod does not help against a broker that is down."""
    workers = Workers()
    workers.reasons = {0: ["no broker"]}

    async def test(client: Client) -> None:
        response = await client.get("/healthz")
        assert (response.status, await response.text()) == (200, "ok\n")

    with_client(test, workers)


def test_nothing_else_is_served() -> None:
    async def test(client: Client) -> None:
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

    with_client(test)


def test_the_status_page() -> None:
    async def test(client: Client) -> None:
        answer = await client.get("/")
        page = await answer.text()
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "User:alice" in page
        assert "User:bob" in page

    with_client(test)


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
def test_sessions_as_json(query: str, found: int) -> None:
    async def test(client: Client) -> None:
        answer = await client.get(f"/sessions.json{query}")
        body = await answer.json()
        assert answer.status == 200
        assert body["counts"]["sessions"] == found
        assert len(body["sessions"]) + body["sessions_more"] == found
        assert body["listeners"][0]["connections"] == 6, "listeners are never chosen from"

    with_client(test)


@pytest.mark.parametrize("path", ["/?who=x", "/?principal=a&principal=b", "/?limit=3"])
def test_a_query_that_is_not_understood_is_refused(path: str) -> None:
    """A misspelt key would show everybody."""

    async def test(client: Client) -> None:
        answer = await client.get(path)
        assert (answer.status, answer.content_type) == (400, "text/plain")

    with_client(test)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "1e3", "\N{SUPERSCRIPT TWO}", ""])
def test_a_limit_is_a_number_within_bounds(limit: str) -> None:
    async def test(client: Client) -> None:
        assert (await client.get("/sessions.json", params={"limit": limit})).status == 400

    with_client(test)


def test_a_worker_that_does_not_tell_of_its_sessions_is_not_ready() -> None:
    workers = Workers()
    workers.open[1] = ControlError("worker 1 does not answer")

    async def test(client: Client) -> None:
        body = await (await client.get("/sessions.json")).json()
        assert body["ready"] is False
        assert body["workers"][1]["reasons"] == ["worker 1 does not answer"]
        assert body["counts"]["sessions"] == 2

    with_client(test, workers)


def test_many_looks_at_once_ask_the_workers_once() -> None:
    """Whatever they look for."""
    workers = Workers()

    async def test(client: Client) -> None:
        paths = ["/", "/?principal=User:bob", "/sessions.json", "/?client-id=x"] * 5
        answers = await asyncio.gather(*(client.get(path) for path in paths))
        assert {answer.status for answer in answers} == {200}

    with_client(test, workers)
    assert workers.pictures == 1


@asynccontextmanager
async def served(address: str = "127.0.0.1", **settings: int) -> AsyncIterator[int]:
    """The port of a server as the proxy starts it."""
    workers = Workers()
    app = make_app(workers.snapshots, workers.readiness, StatusPage(workers, ABOUT))
    listening = listen(address, 0)
    port: int = listening.getsockname()[1]
    server = await start_http(app, listening, **settings)
    try:
        yield port
    finally:
        await server.close()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:9404", True),
        ("127.0.0.1:", True),
        ("192.0.2.7:9404", True),
        ("[::1]:9404", True),
        ("[::1]", True),
        ("localhost", True),
        ("LocalHost:9404", True),
        ("localhost.:9404", True),
        ("attacker.example", False),
        ("attacker.example:9404", False),
        ("localhost.attacker.example", False),
        ("127.0.0.1.attacker.example:9404", False),
        ("attacker.localhost", False),
        ("127.0.0.1@attacker.example", False),
        ("attacker.example@127.0.0.1", False),
        ("localhost, attacker.example", False),
        ("[attacker.example]", False),
        ("[::1]attacker.example", False),
        ("[::1%25attacker]", False),
        ("[127.0.0.1]", False),
        ("[::1", False),
        ("::1", False),
        ("127.1", False),
        ("127.0.0.01", False),
        ("localhost..", False),
        ("localhost:94:04", False),
        ("localhost:http", False),
        ("localho\u017ft", False),  # a long s, which is an s in capitals
        ("\u0661.0.0.1", False),
        ("", False),
    ],
)
def test_only_an_address_or_localhost_is_no_other_host(host: str, answered: bool) -> None:
    assert names_no_other_host(host) is answered


async def answer_to(port: int, sent: bytes) -> bytes:
    """The whole answer to what is sent."""
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
def test_a_page_elsewhere_reads_nothing_of_users_on_a_loopback_address(
    sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A browser on this machine would: a site may have its own name resolve to 127.0.0.1."""

    async def run() -> None:
        async with served() as port:
            answer = await answer_to(port, f"{sent}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b" 403 " in head.splitlines()[0]
            assert body in (b"", b"only an IP address or localhost is answered here\n")

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.records == []


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: attacker.example\r\n"])
def test_no_host_and_two_hosts_are_no_request(hosts: str) -> None:
    async def run() -> None:
        async with served() as port:
            sent = f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"
            assert b" 400 " in (await answer_to(port, sent.encode())).splitlines()[0]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "path", "host"),
    [
        ("127.0.0.1", "/healthz", "proxy.example"),
        ("127.0.0.1", "/readyz", "proxy.example"),
        *(("127.0.0.1", path, "localhost") for path in TELL_OF_USERS),
        *(("0.0.0.0", path, "proxy.example") for path in TELL_OF_USERS),  # noqa: S104
    ],
)
def test_others_are_answered_as_ever(address: str, path: str, host: str) -> None:
    """A probe asks by any name; on other addresses the network decides who reaches the port."""

    async def run() -> None:
        async with served(address) as port:
            sent = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            assert b" 200 " in (await answer_to(port, sent.encode())).splitlines()[0]

    asyncio.run(run())


def test_oversize_headers_are_refused() -> None:
    async def run() -> None:
        async with served() as port, ClientSession(f"http://127.0.0.1:{port}") as session:
            response = await session.get("/healthz", headers={"X": "y" * (2 * MAX_HEADER_BYTES)})
            assert response.status == 400
            response = await session.get("/healthz")
            assert response.status == 200
            assert "Server" not in response.headers

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n",
        b"GET /" + b"a" * 2 * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\xff\xff",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01\x02\x00\r\n\r\n",
        b"\xff" * 100 + b"\r\n\r\n",
    ],
    ids=["NUL", "long", "upgraded", "pipelined", "garbage"],
)
def test_what_is_not_http_is_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A traceback for each, with the bytes in it, would fill the disk for whoever asks for it."""

    async def run() -> None:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert b" 400 " in await reader.read()
            await close(writer)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.records == []


def test_who_holds_connections_without_asking_keeps_nobody_out() -> None:
    """The kubelet restarts what does not answer it: the data path, too."""

    async def run() -> None:
        async with served(most_connections=4) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in held:
                writer.write(b"GET /hea")
            async with ClientSession(f"http://127.0.0.1:{port}") as session:
                assert (await session.get("/healthz")).status == 200
                lost = [reader.read() for reader, _ in held[:16]]
                await asyncio.wait_for(asyncio.gather(*lost, return_exceptions=True), 60)
            for _, writer in held:
                await close(writer)

    asyncio.run(run())
