"""A listener with two places: who keeps one, by what it has shown of itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.frames import api_versions, handshake
from tests.support.processes import until
from tests.support.relay import (
    PLAINTEXT,
    RunningListener,
    listen,
    read_frame,
    room_for,
    ssl_listener,
)
from tests.support.tls import AUTHORITY, client_context

SASL: dict[str, Any] = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
EVICTED, FULL = "closed evicted", "refused too_many_connections"


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("given", [SASL, ssl_listener()], ids=["silent", "half a TLS handshake"])
def test_who_says_nothing_makes_room_first_come_first(
    directory: Path, given: dict[str, Any]
) -> None:
    async def test(running: RunningListener) -> None:
        running.listener.open_connections = room_for(2)
        readers, writers = zip(*[await running.connect() for _ in range(3)], strict=True)
        assert await ends(readers[0])
        assert running.log == [EVICTED]
        assert len(running.listener.clients) == 2
        for writer in writers:
            writer.close()

    listen(directory, given, test)


def test_a_login_that_takes_its_time_makes_room(directory: Path) -> None:
    async def test(running: RunningListener) -> None:
        running.listener.open_connections = room_for(2)
        slow, writer = await running.connect()
        writer.write(handshake(1, "SCRAM-SHA-256"))
        await read_frame(slow)
        others = [await running.connect() for _ in range(2)]
        assert await ends(slow)
        for _, other in [(slow, writer), *others]:
            other.close()

    listen(directory, SASL, test)


def test_a_failed_login_that_waits_for_its_answer_makes_room_at_once(directory: Path) -> None:
    delay = {"connection.failed.authentication.delay.ms": 60_000}

    async def test(running: RunningListener) -> None:
        running.listener.open_connections = room_for(1)
        failed, writer = await running.connect()
        writer.write(handshake(1, "unknown"))
        await until(lambda: "closed authentication_failed" in running.log)
        _, other = await running.connect()
        assert await ends(failed)
        writer.close()
        other.close()

    listen(directory, SASL | delay, test)


@pytest.mark.parametrize("given", [PLAINTEXT, ssl_listener()], ids=["PLAINTEXT", "SSL"])
def test_who_needs_no_login_keeps_its_place(directory: Path, given: dict[str, Any]) -> None:
    tls = None if given is PLAINTEXT else client_context(AUTHORITY)

    async def test(running: RunningListener) -> None:
        running.listener.open_connections = room_for(1)
        reader, writer = await running.connect(tls)
        await until(lambda: "authenticated User:ANONYMOUS" in running.log)
        refused, other = await running.connect()
        assert await ends(refused)
        assert FULL in running.log
        writer.write(api_versions(1))
        await read_frame(reader)
        for one in (writer, other):
            one.close()

    listen(directory, given, test)
