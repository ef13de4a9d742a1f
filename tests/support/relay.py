"""A relay on loopback: real sockets, the data path's event loop, everything in one process."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import uvloop

from proxy.connection.commands import AnswerFromStore, DeriveKeys, GetIdentity
from proxy.connection.connection import Connection
from proxy.connection.interfaces import ConnectionRights
from proxy.net.handshake_errors import Met, WrongProtocol, handshake_error
from proxy.net.read_buffer import ReadBuffer
from proxy.net.relay import BrokerSide, ClientSide
from proxy.net.tls_sides import ClientTls, ServerTls
from proxy.scheduling.steps import LongTask
from proxy.scheduling.time_slices import TimeSlices
from tests.support.frames import (
    authenticate,
    bearer,
    handshake,
    response,
)
from tests.support.playbook import OAUTHBEARER, Offer, Play, everything
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.sasl import cache_of, ed_key

SMALL_BUFFER: Final = 4_096
"""Bytes of a socket whose owner reads slowly: every write to it is a partial one."""


@dataclass(frozen=True)
class Secured:
    """Who speaks TLS with which context; None: nobody."""

    client: ssl.SSLContext | None = None
    """What the client meets the relay with, and `clients` the other way round."""
    clients: ssl.SSLContext | None = None
    brokers: ssl.SSLContext | None = None
    """What the relay meets the broker with, and `broker` the other way round."""
    broker: ssl.SSLContext | None = None


present = [Secured()]
"""What holds where a test says nothing; a fixture may change it, to run tests with TLS as well."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Shell:
    """What a worker is to the relay, for one broker's address."""

    play: Play
    broker_port: int
    offer: Offer
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    buffer: ReadBuffer = field(default_factory=ReadBuffer)
    clients: set[ClientSide] = field(default_factory=set)
    tasks: list["asyncio.Task[object]"] = field(default_factory=list)
    secured: Secured = field(default_factory=Secured)
    met: list[str] = field(default_factory=list)
    """Hosts of clients that began with TLS where there is none."""
    unwelcome: list[str] = field(default_factory=list)
    """What came instead of a TLS handshake."""

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

    def met_tls(self, client: ClientSide) -> None:
        self.met.append(client.peer_host)

    def authenticated(self, client: ClientSide) -> None:
        assert client in self.clients

    def closed(self, client: ClientSide) -> None:
        self.clients.discard(client)

    def accept(self) -> ClientSide | ServerTls:
        side = ClientSide(self)
        context = self.secured.clients
        if context is None:
            return side
        return ServerTls(side, self.buffer, self.wait, context, lambda what: self._meet(side, what))

    def _meet(self, side: ClientSide, what: Met) -> None:
        if isinstance(what, ssl.SSLObject):
            return
        self.unwelcome.append(
            what.name if isinstance(what, WrongProtocol) else handshake_error(what)
        )
        side.handshake_failed()

    def connect(self, client: ClientSide) -> None:
        self.tasks.append(self.loop.create_task(self._connect(client)))

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

    def seek_keys(self, client: ClientSide) -> None:
        raise AssertionError(f"no key is missing for {client}")

    def log_in(self, client: ClientSide, step: GetIdentity | DeriveKeys) -> None:
        raise AssertionError(f"no login is needed for {step} of {client}")

    def consult(self, client: ClientSide, question: AnswerFromStore) -> None:
        raise AssertionError(f"no store is needed for {question} of {client}")

    def await_turn(self, client: ClientSide) -> None:
        assert client.connection is not None
        client.connection.long_work.await_turn(self.wait, client.tell)

    def wait(self, _who: str, go_on: Callable[[], None]) -> None:
        self.loop.call_soon(go_on)

    def deliberate(self, client: ClientSide, long_task: LongTask) -> None:
        self.tasks.append(self.loop.create_task(self._deliberate(client, long_task)))

    async def _deliberate(self, client: ClientSide, long_task: LongTask) -> None:
        result = await TimeSlices(self.loop).run(long_task.steps)
        client.tell(lambda connection, now: connection.long_work.done(long_task, result, now))


@dataclass
class Relay:
    """A running relay and a client of it that is logged in."""

    shell: Shell
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> bytes:
        """The content of the next frame that the client receives."""
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


def relayed(
    broker: Serve,
    test: Callable[[Relay], Awaitable[None]],
    *,
    offer: Offer,
    receive_buffer: int | None = None,
    secured: Secured | None = None,
    rights: ConnectionRights | None = None,
) -> Play:
    """Run `test` with a client of a relay in front of `broker`; return what was observed."""
    # by the relay's own clock: a machine that has been up for a day would find the keys too old
    play = Play(rights=rights, keys=cache_of(ed_key(), now=monotonic()))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await broker(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tls = secured or present[0]
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
            await test(relay)
        finally:
            writer.close()
            front.close()
            behind.close()
            await asyncio.gather(*shell.tasks, return_exceptions=True)
            await until(lambda: not shell.clients)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await run()

    uvloop.run(bounded())
    return play


PLAIN = everything(rewritten=frozenset())


MEGABYTE = 1_000_000


async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Each request is answered with its own correlation id, a little later."""
    while True:
        content = await read_frame(reader)
        await asyncio.sleep(0.02)
        writer.write(response(struct.unpack_from(">i", content, 4)[0], b"late"))
