"""A listener with two slots: which client keeps one depends on its state of login."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import Access
from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.worker.slots import Pace
from tests.support.frames import api_versions, handshake, metadata
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import PLAINTEXT, listen, read_frame, room_for, ssl_listener
from tests.support.tls import AUTHORITY, client_context

SASL: dict[str, Any] = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
EVICTED, FULL = "closed evicted", "refused too_many_connections"


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("given", [SASL, ssl_listener()], ids=["silent", "half a TLS handshake"])
async def test_who_says_nothing_makes_room_first_come_first(
    directory: Path, given: dict[str, Any]
) -> None:
    async with listen(directory, given) as running:
        running.listener.open_connections = room_for(2)
        readers, _ = zip(*[await running.connect() for _ in range(3)], strict=True)
        assert await ends(readers[0])
        assert running.log == [EVICTED]
        assert len(running.listener.clients) == 2


async def test_a_login_that_takes_its_time_makes_room(directory: Path) -> None:
    async with listen(directory, SASL) as running:
        running.listener.open_connections = room_for(2)
        slow, writer = await running.connect()
        writer.write(handshake(1, "SCRAM-SHA-256"))
        await read_frame(slow)
        for _ in range(2):
            await running.connect()
        assert await ends(slow)


async def test_a_failed_login_that_waits_for_its_answer_makes_room_at_once(directory: Path) -> None:
    delay = {"connection.failed.authentication.delay.ms": 60_000}
    async with listen(directory, SASL | delay) as running:
        running.listener.open_connections = room_for(1)
        failed, writer = await running.connect()
        writer.write(handshake(1, "unknown"))
        await until(lambda: "closed authentication_failed" in running.log)
        await running.connect()
        assert await ends(failed)


@pytest.mark.parametrize("given", [PLAINTEXT, ssl_listener()], ids=["PLAINTEXT", "SSL"])
async def test_who_needs_no_login_keeps_its_place(directory: Path, given: dict[str, Any]) -> None:
    tls = None if given is PLAINTEXT else client_context(AUTHORITY)
    async with listen(directory, given) as running:
        running.listener.open_connections = room_for(1)
        reader, writer = await running.connect(tls)
        await until(lambda: "authenticated User:ANONYMOUS" in running.log)
        refused, _ = await running.connect()
        assert await ends(refused)
        assert FULL in running.log
        writer.write(api_versions(1))
        await read_frame(reader)


async def test_clients_wait_for_their_turn_to_connect_to_the_broker(directory: Path) -> None:
    access = Access(timeout_s=PATIENCE_SECONDS, max_creation_rate=1)
    async with listen(directory, PLAINTEXT, access=access) as running:
        services = running.listener.services
        pace = Pace(1, 3600, services.loop.call_later)  # one turn in an hour
        services.paces[running.upstream] = pace
        clients = [await running.connect() for _ in range(3)]
        for _, writer in clients:
            writer.write(metadata(1))
        await until(lambda: len(pace._owners) == 3)
        await until(lambda: len(running.broker.requests) == 1)
        for client in list(running.listener.clients):
            client.call(finishing(CloseReason.KILLED))
        await until(lambda: len(pace._owners) == 1)
        assert len(running.broker.requests) == 1
