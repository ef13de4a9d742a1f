"""Relay and listener with real sockets on loopback, in one process."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final, cast

from proxy.brokers.access import Access
from proxy.brokers.discovery import DiscoveredBroker
from proxy.config.listener import Listener as Settings
from proxy.config.values import MAX_INT32
from proxy.connection.blocks import BlockList
from proxy.connection.commands import (
    AnswerFromStore,
    AwaitTurn,
    CloseReason,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    RunLongTask,
)
from proxy.connection.connection import Connection, finishing
from proxy.connection.interfaces import ConnectionRights, NoAuthorizer
from proxy.net.handshake_errors import HandshakeResult, WrongProtocol, handshake_error
from proxy.net.read_buffer import BufferedSide, ReadBuffer
from proxy.net.relay import BrokerSide, ClientSide
from proxy.net.tls_contexts import Tls, open_tls
from proxy.net.tls_sides import MAX_HANDSHAKES, ClientTls, ServerTls
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.scheduling.steps import LongTask
from proxy.worker.connection_limits import ConnectionLimits, Evictable, OpenConnections, Shared
from proxy.worker.endpoint import Endpoint
from proxy.worker.listener import Listener
from proxy.worker.slots import LOOK_SECONDS, LoginSlots, Outage, Pace
from proxy.worker.work_queues import TimeSlices, WorkQueues
from tests.support.certificates import NOW
from tests.support.fake_broker import FakeBroker
from tests.support.frames import api_versions, authenticate, bearer, handshake, metadata, response
from tests.support.playbook import (
    HOUR_MS,
    OAUTHBEARER,
    VERSIONS,
    Offer,
    Playbook,
    Recorder,
    everything,
)
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.sasl import FAKE_SECRET, alice, cache_of, ed_key
from tests.support.settings import configured

SMALL_BUFFER: Final = 4_096
"""Buffer size of a slow reader's socket, which makes every write partial."""


@dataclass(frozen=True)
class Secured:
    """TLS contexts by connection; None without TLS."""

    client: ssl.SSLContext | None = None
    """The client's context; `clients` is the relay's."""
    clients: ssl.SSLContext | None = None
    brokers: ssl.SSLContext | None = None
    """The relay's context; `broker` is the broker's."""
    broker: ssl.SSLContext | None = None


present = [Secured()]
"""Defaults of tests; a fixture may change them to run tests with TLS as well."""


def handshake_slots(limit: int = MAX_HANDSHAKES) -> LoginSlots[ServerTls]:
    """Slots of a worker, whose holders are checked when a client connects."""
    return LoginSlots(
        limit,
        silence=lambda client: client.age,
        displace=ServerTls.displaced,
        call_later=lambda delay, call: call() if delay < LOOK_SECONDS else None,
    )


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Shell:
    """A worker as seen by the relay, for one broker's address."""

    play: Playbook
    broker_port: int
    offer: Offer
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    buffer: ReadBuffer = field(default_factory=ReadBuffer)
    clients: set[ClientSide] = field(default_factory=set)
    tasks: list["asyncio.Task[object]"] = field(default_factory=list)
    secured: Secured = field(default_factory=Secured)
    unwelcome: list[str] = field(default_factory=list)
    """First bytes received instead of a TLS handshake."""

    def opened(self, client: ClientSide) -> Connection:
        self.clients.add(client)
        return Connection(
            connection_id="c1",
            peer_host=client.peer_host,
            rules=self.play.rules,
            target=self.offer,
            observer=self.play.recorder,
            to_client=client.write,
            now=self.loop.time(),
        )

    def wrong_protocol(self, client: ClientSide, _protocol: WrongProtocol) -> None:
        assert client in self.clients

    def closed(self, client: ClientSide) -> None:
        self.clients.discard(client)

    def accept(self) -> ClientSide | ServerTls:
        side = ClientSide(self)
        context = self.secured.clients
        if context is None:
            return side
        return ServerTls(
            side, self.buffer, self.wait, context, handshake_slots(), self._handshake_ended
        )

    def _handshake_ended(self, side: BufferedSide, what: HandshakeResult) -> None:
        assert isinstance(side, ClientSide)
        if isinstance(what, ssl.SSLObject):
            return
        self.unwelcome.append(
            what.name if isinstance(what, WrongProtocol) else handshake_error(what)
        )
        side.handshake_failed()

    def carry_out(self, client: ClientSide, command: Command) -> None:
        match command:
            case CountAuthenticated():
                assert client in self.clients
                client.authenticated()
            case AwaitTurn(principal):
                self.wait(principal, lambda: client.call(Connection.turn_came))
            case ConnectToBroker():
                self.tasks.append(self.loop.create_task(self._connect(client)))
            case RunLongTask(long_task):
                self.tasks.append(self.loop.create_task(self._run_long_task(client, long_task)))
            case _:
                raise AssertionError(f"{command} of {client} is not needed here")

    async def _connect(self, client: ClientSide) -> None:
        address = ("127.0.0.1", self.broker_port)
        context = self.secured.brokers
        if context is None:
            await self.loop.create_connection(lambda: BrokerSide(client, self), *address)
            return
        connected = self.loop.create_future()
        await self.loop.create_connection(
            lambda: ClientTls(
                BrokerSide(client, self), self.buffer, self.wait, context, "localhost", connected
            ),
            *address,
        )
        await connected

    def wait(self, _who: str, go_on: Callable[[], None]) -> None:
        self.loop.call_soon(go_on)

    async def _run_long_task(self, client: ClientSide, long_task: LongTask) -> None:
        result = await TimeSlices(self.loop).run(long_task.steps)
        client.call(lambda connection, now: connection.long_work.done(long_task, result, now))


@dataclass
class Relay:
    """A running relay and a logged-in client."""

    shell: Shell
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> bytes:
        """Return the content of the client's next frame."""
        return await read_frame(self.reader)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def listening(receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.bind(("127.0.0.1", 0))
    return sock


@asynccontextmanager
async def relayed(
    broker: Serve,
    *,
    offer: Offer,
    receive_buffer: int | None = None,
    secured: Secured | None = None,
    rights: ConnectionRights | None = None,
    max_reauth_ms: int = HOUR_MS,
) -> AsyncIterator[Relay]:
    """A logged-in client of a relay in front of `broker`."""
    # on the relay's clock, or keys would be too old on machines with a long uptime
    keys = cache_of(ed_key(), now=monotonic())
    play = Playbook(rights=rights, keys=keys, max_reauth_ms=max_reauth_ms)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await broker(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    loop = asyncio.get_running_loop()
    tls = secured or present[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        behind = await asyncio.start_server(serve, sock=listening(receive_buffer), ssl=tls.broker)
        shell = Shell(play, behind.sockets[0].getsockname()[1], offer, secured=tls)
        front = await loop.create_server(shell.accept, sock=listening())
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await loop.sock_connect(sock, front.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=tls.client, server_hostname="localhost" if tls.client else None
        )
        relay = Relay(shell, reader, writer)
        try:
            writer.write(handshake(1, OAUTHBEARER) + authenticate(2, bearer()))
            await relay.frame()
            await relay.frame()
            yield relay
        finally:
            writer.close()
            front.close()
            behind.close()
            await asyncio.gather(*shell.tasks, return_exceptions=True)
            await until(lambda: not shell.clients)


PLAIN = everything(rewritten=frozenset())


MEGABYTE = 1_000_000


async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its correlation id after a short delay."""
    while True:
        content = await read_frame(reader)
        await asyncio.sleep(0.02)
        writer.write(response(struct.unpack_from(">i", content, 4)[0], b"late"))


async def answer_at_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first request with more than buffers hold; keep the connection open."""
    await read_frame(reader)
    writer.write(response(3, b"r" * 20 * MEGABYTE))
    await asyncio.Event().wait()


# A worker's listener on loopback, its broker and clients


def is_closed(log: list[str]) -> bool:
    return any(line.startswith("closed") for line in log)


@dataclass
class ListenerRecorder(Recorder):
    """A recorder that serves as a listener's observer."""

    def opened(self, connection: Connection, now: float) -> None:
        del connection, now

    def connected(self, seconds: float) -> None:
        assert seconds >= 0

    def responded(self, _api_key: int, broker: float, proxy: float) -> None:
        assert broker >= 0
        assert proxy >= 0

    def unreachable(self, broker: DiscoveredBroker, problem: str) -> None:
        del broker, problem

    def refused(self, reason: CloseReason) -> None:
        self.log.append(f"refused {reason}")


@dataclass
class Services:
    """A worker as seen by a listener that needs no store."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    buffer: ReadBuffer = field(default_factory=ReadBuffer)
    access: Access = field(default_factory=lambda: Access(timeout_s=PATIENCE_SECONDS))
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)
    work_queues: WorkQueues = field(
        default_factory=lambda: WorkQueues(TimeSlices(asyncio.get_running_loop()))
    )
    handshakes: LoginSlots[ServerTls] = field(default_factory=handshake_slots)
    outages: dict[DiscoveredBroker, Outage[ClientSide]] = field(default_factory=dict)
    paces: dict[DiscoveredBroker, Pace] = field(default_factory=dict)
    blocks: BlockList = field(default_factory=BlockList)
    connection_ids: Iterator[str] = field(default_factory=lambda: (f"c{n}" for n in count(1)))
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(work))

    async def consult(self, question: AnswerFromStore) -> tuple[bytes, int]:
        raise AssertionError(f"no store is needed for {question}")

    def query_soon(self, broker: DiscoveredBroker) -> None:
        del broker


@dataclass
class RunningListener:
    """A running listener, its broker, and the recorder."""

    listener: Listener
    port: int
    broker: FakeBroker
    log: list[str]
    upstream: DiscoveredBroker
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Connections of all clients; they are closed with the listener."""

    @property
    def connection(self) -> Connection:
        """That of the only client."""
        (client,) = self.listener.clients
        assert client.connection is not None
        return client.connection

    async def connect(
        self, tls: ssl.SSLContext | None = None, local_addr: tuple[str, int] | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname=name, local_addr=local_addr
        )
        self.writers.append(writer)
        return reader, writer

    async def principal(self, tls: ssl.SSLContext | None = None) -> str:
        """Principal of a client whose Metadata reached the broker, or the failure."""
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
    relays = given.get("sasl.termination") == "broker"
    config = configured(directory, given, {"security.protocol": "SASL_PLAINTEXT"} if relays else {})
    return config.listeners[0], open_tls(config, NOW.timestamp()).listeners.get("clients")


def listener_of(
    settings: Settings,
    services: Services,
    *,
    rights: ConnectionRights | None = None,
    tls: Tls | None = None,
) -> Listener:
    """Return a listener whose only user is alice."""
    return Listener(
        settings,
        services=cast(Any, services),
        credentials=alice(),
        fake_secret=FAKE_SECRET,
        rights=rights or NoAuthorizer(),
        open_connections=room_for(100),
        tls=tls,
    )


@asynccontextmanager
async def listen(
    directory: Path,
    given: dict[str, Any],
    *,
    behind: FakeBroker | None = None,
    access: Access | None = None,
    sock: socket.socket | None = None,
    rights: ConnectionRights | None = None,
) -> AsyncIterator[RunningListener]:
    """Run a listener on `sock` in front of the broker `behind`."""
    settings, tls = settings_of(directory, given)
    services = Services(access=access or Access(timeout_s=PATIENCE_SECONDS))
    listener = listener_of(settings, services, rights=rights, tls=tls)
    log: list[str] = []
    listener.observer = ListenerRecorder(log)  # type: ignore[assignment]  # an observer, if not that one
    async with asyncio.timeout(PATIENCE_SECONDS), behind or FakeBroker() as broker:
        upstream = DiscoveredBroker(None, "127.0.0.1", broker.port, versions=VERSIONS)
        endpoint = Endpoint(listener, lambda: upstream)
        server = await services.loop.create_server(endpoint.client, sock=sock or listening())
        port = server.sockets[0].getsockname()[1]
        running = RunningListener(listener, port, broker, log, upstream)
        try:
            yield running
        finally:
            for writer in running.writers:
                writer.close()
            server.close()
            for client in list(listener.clients):
                client.call(finishing(CloseReason.KILLED))
            await asyncio.gather(*services.tasks)
            await until(lambda: not listener.clients)


def ssl_listener(**more: str) -> dict[str, Any]:
    given = {key.replace("_", "."): value for key, value in more.items()}
    return {
        "security.protocol": "SSL",
        "ssl.keystore.location": "server.pem",
        "ssl.truststore.location": "ca.pem",
    } | given


PLAINTEXT = {"security.protocol": "PLAINTEXT"}


def room_for(most: int) -> OpenConnections[Evictable]:
    """The connection counter of a single worker's listener."""
    limits = ConnectionLimits(Shared(1, [most]), 0)
    limits.apply(MAX_INT32, {})
    return OpenConnections(limits, 0)
