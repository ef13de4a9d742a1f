import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession

from proxy.net.sockets import listen
from proxy.ops.http_process import make_pages, start_http
from proxy.ops.status.service import StatusPage
from proxy.ops.worker_queries import ControlError
from tests.support.status import ABOUT, Workers


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
