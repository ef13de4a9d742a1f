import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metrics.registry import EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from proxy.errors import ProxyError
from proxy.ops import worker_queries
from proxy.ops.status.session_facts import Selector
from proxy.ops.worker_queries import Answer, ControlError, WorkerLink, WorkerPool, serve_control
from tests.support.processes import PATIENCE_SECONDS
from tests.support.status import session


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a busy machine; a test that needs a timeout sets it."""
    for seconds in ("ANSWER_SECONDS", "PARTS_SECONDS"):
        monkeypatch.setattr(worker_queries, seconds, PATIENCE_SECONDS)
    for ask in (WorkerLink.ask, WorkerLink.ask_for_parts):
        assert ask.__kwdefaults__ is not None
        monkeypatch.setitem(ask.__kwdefaults__, "within", PATIENCE_SECONDS)


def snapshot() -> dict[str, Any]:
    values = Snapshot(run="a")
    values.count(EVENTS_WRITTEN, 5)
    return values.to_json()


def answers(kind: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | Iterator[Any]:
    if kind == "snapshot":
        return iter([None, None, snapshot()])  # it goes through the sessions first
    if kind == "ready":
        return {"reasons": ["no broker"]}
    if kind == "echo":
        return dict(arguments)
    if kind == "endless":
        return itertools.count()
    if kind == "count":
        return iter(range(arguments["to"]))
    if kind == "sessions":
        return iter([[session(1)], [], [session(2)]])
    if kind == "stumble":
        return stumbling()
    if kind == "broken":
        raise KeyError(kind)
    raise ProxyError(f"unknown question {kind}")


def stumbling() -> Iterator[Any]:
    yield 1
    raise ProxyError("no more")


@asynccontextmanager
async def linked(answer: Answer = answers) -> AsyncIterator[WorkerLink]:
    """A link whose other end answers."""
    ours, theirs = socket.socketpair()
    served = await serve_control(theirs, answer)
    link = await WorkerLink.open(0, ours)
    try:
        yield link
    finally:
        link.close()
        served.close()
        await asyncio.sleep(0)


async def test_questions_and_answers() -> None:
    """Also one of many reads: the sessions of 5,000 connections are some megabytes."""
    asked = [{"number": number} for number in range(50)] + [{"text": "x" * 3_000_000}]
    async with linked() as link:
        assert await asyncio.gather(*(link.ask("echo", **one) for one in asked)) == asked


async def test_parts_come_in_order_and_others_are_answered_meanwhile() -> None:
    """A worker must answer others, and its clients must not wait, while it lists 5,000 sessions."""
    async with linked() as link:
        with_throttle_time = asyncio.ensure_future(link.ask_for_parts("count", to=100))
        other = asyncio.ensure_future(link.ask_for_parts("count", to=3))
        assert await link.ask("ready") == {"reasons": ["no broker"]}
        assert not with_throttle_time.done()
        assert await other == [0, 1, 2]
        assert not with_throttle_time.done()
        assert await with_throttle_time == list(range(100))
        assert await link.ask_for_parts("count", to=0) == []


async def test_parts_that_end_in_a_refusal() -> None:
    async with linked() as link:
        with pytest.raises(ControlError, match="no more"):
            await link.ask_for_parts("stumble")
        assert await link.ask_for_parts("count", to=1) == [0]


async def test_parts_that_nobody_waits_for_any_more() -> None:
    async with linked() as link:
        with pytest.raises(ControlError, match="does not answer"):
            await link.ask_for_parts("endless", within=0.01)
        assert await link.ask_for_parts("count", to=60) == list(range(60))


@pytest.mark.parametrize(
    ("kind", "problem"), [("broken", "internal error"), ("dance", "unknown question dance")]
)
async def test_a_mistake_is_an_error_and_the_link_lives_on(kind: str, problem: str) -> None:
    async with linked() as link:
        with pytest.raises(ControlError, match=problem):
            await link.ask(kind)
        assert await link.ask("echo", again=True) == {"again": True}


async def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    """A worker that was busy answers both questions at last."""
    ours, theirs = socket.socketpair()
    link = await WorkerLink.open(0, ours)
    with pytest.raises(ControlError, match="worker 0 does not answer"):
        await link.ask("echo", within=0.01, number=1)
    asking = asyncio.ensure_future(link.ask("echo", number=2))
    served = await serve_control(theirs, answers)
    assert await asking == {"number": 2}
    link.close()
    served.close()


async def test_a_worker_that_dies_is_known_at_once() -> None:
    ours, theirs = socket.socketpair()
    link = await WorkerLink.open(3, ours)
    asking = asyncio.ensure_future(link.ask("echo", within=60))
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(ControlError, match="worker 3 is gone"):
        await asking
    with pytest.raises(ControlError, match="worker 3 is gone"):
        await link.ask("echo")


def test_a_line_without_end_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_queries, "MAX_MESSAGE_BYTES", 10)
    messages = worker_queries._Messages()
    assert list(messages.feed(b"x" * 11)) == []
    assert not messages._data


async def test_the_fleet_reports_who_does_not_answer() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    fleet = WorkerPool([await WorkerLink.open(n, ours) for n, (ours, _) in enumerate(pairs)])
    served = await serve_control(pairs[0][1], answers)
    pairs[1][1].close()
    snapshots = await fleet.snapshots()
    assert snapshots == {0: Snapshot.from_json(snapshot()), 1: None}
    assert await fleet.readiness() == {0: ["no broker"], 1: ["worker 1 is gone"]}
    sessions = await fleet.sessions(Selector(principal="User:alice"))
    assert sessions[0] == [session(1), session(2)]
    assert isinstance(sessions[1], ControlError)
    for link in fleet.links:
        link.close()
    served.close()


async def test_a_scrape_waits_for_a_busy_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of connections that end at once take it longer than a question may."""
    monkeypatch.setattr(worker_queries, "ANSWER_SECONDS", 0.001)
    ours, theirs = socket.socketpair()
    fleet = WorkerPool([await WorkerLink.open(0, ours)])
    asking = asyncio.ensure_future(fleet.snapshots())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.05)
    served = await serve_control(theirs, answers)
    assert await asking == {0: Snapshot.from_json(snapshot())}
    fleet.links[0].close()
    served.close()


def test_a_killed_writer_spoils_one_line() -> None:
    """The pair of sockets outlives both processes, so the next one writes behind half a line."""
    messages = worker_queries._Messages()
    assert list(messages.feed(b'{"id": 1, "answer": {"reas')) == []
    assert list(messages.feed(b'{"id": 1, "kind": "ready"}\n[7]\n')) == []
    assert list(messages.feed(b'{"id": 2, ')) == []
    assert list(messages.feed(b'"kind": "ready"}\n')) == [{"id": 2, "kind": "ready"}]
