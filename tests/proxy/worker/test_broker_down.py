"""Clients of a broker that is down, over real sockets: one probe, and pacing when it is back."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import Access
from proxy.connection.life import PauseReason
from proxy.worker import endpoint, slots
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.playbook import HOUR_MS
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import RunningListener
from tests.support.relayed_listener import RELAYS, connected, opened, play, slots_taken

TERMINATIONS: dict[str, dict[str, Any]] = {
    "broker": RELAYS,
    "proxy": {
        "sasl.termination": "proxy",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "connections.max.reauth.ms": HOUR_MS,
    },
}
Play = AbstractAsyncContextManager[tuple[RunningListener, Authenticator]]


@pytest.fixture(params=TERMINATIONS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Play]:
    """Run a listener of either termination."""
    relays = request.param == "broker"

    def run(*, timeout_s: float = PATIENCE_SECONDS) -> Play:
        broker = Authenticator() if relays else Authenticator(passwords=None)
        access = Access(timeout_s=timeout_s)
        return play(tmp_path, broker=broker, access=access, **TERMINATIONS[request.param])

    return run


async def stop(broker: Authenticator) -> None:
    assert broker._server is not None
    broker._server.close()
    await broker._server.wait_closed()


async def start(broker: Authenticator) -> None:
    await broker.__aenter__()


async def use(client: Client) -> None:
    """Log in, and have a request answered."""
    await client.log_in()
    await client.metadata()


def held(running: RunningListener) -> int:
    """The number of clients that wait for the broker."""
    outages = running.listener.services.outages.values()
    return sum(len(waiting) for one in outages for waiting in one._waiting.values())


async def hold(running: RunningListener, count: int) -> list["asyncio.Task[None]"]:
    """Clients that are held, the first of which found the broker down."""
    users = []
    for number in range(count):
        users.append(asyncio.create_task(use(await connected(running))))
        await until(lambda wanted=number + 1: held(running) == wanted)  # type: ignore[misc]
    return users


async def test_clients_wait_for_the_broker_and_one_probe_dials(run: Callable[..., Play]) -> None:
    async with run() as (running, broker):
        await stop(broker)
        users = await hold(running, 20)
        assert slots_taken(running) == (0, 0)
        await start(broker)
        await asyncio.gather(*users)
        assert broker.connections == 20 + 1
        await until(lambda: not running.listener.services.outages)


async def test_one_that_disconnects_frees_its_place(run: Callable[..., Play]) -> None:
    async with run() as (running, broker):
        await stop(broker)
        (user,) = await hold(running, 1)
        client = next(iter(running.listener.clients))
        user.cancel()
        opened[-1].writer.close()
        await until(lambda: client not in running.listener.clients)
        assert held(running) == 0
        await start(broker)


async def test_beyond_the_limit_they_are_closed_at_once(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_HELD_PER_ADDRESS", 1)
    async with run() as (running, broker):
        await stop(broker)
        (user,) = await hold(running, 1)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await use(await connected(running))
        assert running.log[-1] == "closed broker_unreachable"
        await start(broker)
        await user


async def test_one_that_has_to_wait_for_anything_else_lets_others_go_on(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RESUMED_AT_ONCE", 1)
    async with run() as (running, broker):
        await stop(broker)
        users = await hold(running, 1)
        (first,) = running.listener.clients
        users += [asyncio.create_task(use(await connected(running)))]
        await until(lambda: held(running) == 2)
        # As for a quota; a relayed login has no other reason, and continues
        first.call(lambda connection, _: connection.hold(PauseReason.THROTTLED))
        await start(broker)
        await users[1]
        first.call(lambda connection, now: connection.release(PauseReason.THROTTLED, now))
        await users[0]
        await until(lambda: not running.listener.services.outages)


@contextmanager
def silent(broker: Authenticator) -> Iterator[None]:
    """A host that answers no SYN in place of a broker that was stopped."""
    with socket.socket() as listening, socket.socket() as queued:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((broker.host, broker.port))
        listening.listen(0)
        queued.connect(listening.getsockname())  # the kernel answers no further SYN
        yield


async def test_a_silent_host_is_down_too(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "SUSPECT_SECONDS", 0.05)
    async with run() as (running, broker):
        await stop(broker)
        with silent(broker):
            users = await hold(running, 3)
            assert slots_taken(running) == (0, 0)
        await start(broker)
        await asyncio.gather(*users)
        assert broker.connections == 3 + 1


async def test_a_broker_that_accepts_others_is_slow_and_not_down(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when all of its clients log in at once, and each handshake takes its time."""
    monkeypatch.setattr(endpoint, "SUSPECT_SECONDS", 0.05)
    async with run() as (running, broker):
        await use(await connected(running))
        await stop(broker)
        with silent(broker):
            running.upstream.connected_at = inf  # others are connected all the time
            user = asyncio.create_task(use(await connected(running)))
            await asyncio.sleep(0.1)  # twice that
        await start(broker)
        await user
        assert broker.connections == 2, "no probe"
