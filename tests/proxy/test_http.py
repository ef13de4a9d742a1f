import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from metrics.registry import EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from proxy.http import MAX_HEADER_BYTES, make_app, start_http
from proxy.sockets import listen


class Workers:
    """Answers that a test can change."""

    def __init__(self) -> None:
        self.written: dict[int, int | None] = {0: 5, 1: 3}
        self.reasons: dict[int, list[str]] = {0: [], 1: []}
        self.rounds = 0

    async def snapshots(self) -> Mapping[int, Snapshot | None]:
        self.rounds += 1
        return {worker: self._snapshot(count) for worker, count in self.written.items()}

    async def readiness(self) -> Mapping[int, list[str]]:
        return self.reasons

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
        app = make_app(served.snapshots, served.readiness)
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
        for path in ("/", "/metrics/", "/metrics/../etc/passwd", "/sessions", "/%2e%2e/x"):
            assert (await client.get(path)).status == 404
        assert (await client.post("/metrics", data=b"x" * 100_000)).status == 405

    with_client(test)


def test_oversize_headers_are_refused() -> None:
    async def test(client: Client) -> None:
        response = await client.get("/healthz", headers={"X": "y" * (2 * MAX_HEADER_BYTES)})
        assert response.status == 400

    async def run() -> None:
        workers = Workers()
        app = make_app(workers.snapshots, workers.readiness)
        runner = await start_http(app, listen("127.0.0.1", 0))
        port = runner.addresses[0][1]
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            await test(session)  # type: ignore[arg-type]
            response = await session.get("/healthz")
            assert response.status == 200
            assert "Server" not in response.headers
        await runner.cleanup()

    asyncio.run(run())
