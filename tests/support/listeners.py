"""Listener of a worker on loopback, a broker behind it, and who its clients are."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from proxy.config import from_mapping
from proxy.config.listener import Listener as Settings
from proxy.connection.commands import AnswerFromStore, CloseReason
from proxy.connection.connection import Connection
from proxy.connection.interfaces import NoAuthorizer
from proxy.net.read_buffer import ReadBuffer
from proxy.routing.discovery import DiscoveredBroker
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.scheduling.time_slices import TimeSlices
from proxy.tls.contexts import open_tls
from proxy.upstream.access import Access
from proxy.worker.endpoint import Endpoint
from proxy.worker.listener import Listener
from proxy.worker.work_queues import WorkQueues
from tests.support.certificates import NOW
from tests.support.config import room_for
from tests.support.fake_broker import FakeBroker
from tests.support.frames import api_versions, metadata
from tests.support.playbook import VERSIONS, Recorder
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import listening, read_frame
from tests.support.sasl import FAKE_SECRET, alice


def is_closed(log: list[str]) -> bool:
    return any(line.startswith("closed") for line in log)


@dataclass
class Witness(Recorder):
    """What the observer is told, from a connection's beginning."""

    def opened(self, connection: Connection, now: float) -> None:
        del connection, now

    def refused(self, reason: CloseReason) -> None:
        self.log.append(f"refused {reason}")


@dataclass
class Office:
    """What a worker is to a listener that asks nothing of a store."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    buffer: ReadBuffer = field(default_factory=ReadBuffer)
    access: Access = field(default_factory=lambda: Access(timeout_s=PATIENCE_SECONDS))
    room: MemoryBudget = field(default_factory=MemoryBudget)
    lanes: WorkQueues = field(
        default_factory=lambda: WorkQueues(TimeSlices(asyncio.get_running_loop()))
    )
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def next_connection_id(self) -> str:
        return "c1"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(work))

    async def consult(self, question: AnswerFromStore) -> tuple[bytes, int]:
        raise AssertionError(f"no store is needed for {question}")

    def suspect(self, broker: DiscoveredBroker) -> None:
        raise AssertionError(f"{broker} cannot be reached")


@dataclass
class Front:
    """A listener that accepts, a broker behind it, and what was observed."""

    listener: Listener
    port: int
    broker: FakeBroker
    log: list[str]

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = "localhost" if tls else None
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)

    async def who(self, tls: ssl.SSLContext | None = None) -> str:
        """The principal of a client whose Metadata reached the broker; or what came instead."""
        self.log.clear()
        writer = None
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            reader, writer = await self.connect(tls)
            writer.write(api_versions(1) + metadata(2))
            for _ in range(2):
                await read_frame(reader)
        if writer is not None:
            writer.close()
        await until(lambda: is_closed(self.log))
        return self.log[0]


def settings_of(directory: Path, given: dict[str, Any]) -> tuple[Settings, Any]:
    listener = {"name": "clients", "address": "127.0.0.1:9094", "routing": "sidecar"} | given
    mapping = {"upstream": {"bootstrap.servers": "127.0.0.1:9092"}, "listeners": [listener]}
    config = from_mapping(mapping, base_dir=directory)
    return config.listeners[0], open_tls(config, NOW.timestamp()).listeners.get("clients")


def listen(
    directory: Path, given: dict[str, Any], test: Callable[[Front], Awaitable[None]]
) -> None:
    """Run `test` with a listener of these settings."""

    async def run() -> None:
        settings, tls = settings_of(directory, given)
        office = Office()
        listener = Listener(
            settings,
            office=office,
            credentials=alice(),
            fake_secret=FAKE_SECRET,
            rights=NoAuthorizer(),
            open_connections=room_for(100),
            tls=tls,
        )
        log: list[str] = []
        listener.observer = Witness(log)  # type: ignore[assignment]  # an observer, if not that one
        async with FakeBroker() as broker:
            target = DiscoveredBroker(None, "127.0.0.1", broker.port, versions=VERSIONS)
            door = Endpoint(listener, lambda: target)
            server = await office.loop.create_server(door.client, sock=listening())
            port = server.sockets[0].getsockname()[1]
            try:
                await test(Front(listener, port, broker, log))
            finally:
                server.close()
                for client in list(listener.clients):
                    client.tell(Connection.killed)
                await asyncio.gather(*office.tasks)
                await until(lambda: not listener.clients)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await run()

    uvloop.run(bounded())


def ssl_listener(**more: str) -> dict[str, Any]:
    given = {key.replace("_", "."): value for key, value in more.items()}
    return {
        "security.protocol": "SSL",
        "ssl.keystore.location": "server.pem",
        "ssl.truststore.location": "ca.pem",
    } | given


PLAINTEXT = {"security.protocol": "PLAINTEXT"}
