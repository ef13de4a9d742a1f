"""What TLS adds to the relay: its own ends, its handshake, and clients without TLS."""

import asyncio
import logging
import os
import socket
import ssl
import struct
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Self

import pytest

from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.connection.frames import Bytes
from proxy.net import read_buffer
from proxy.net import relay as module
from proxy.net import tls_transport as tls_module
from proxy.net.read_buffer import BulkReader, ReadBuffer
from proxy.net.tls_input import PIECE, RECORD
from proxy.net.tls_sides import ClientTls
from tests.support import relay as harness
from tests.support.frames import authenticate, bearer, fetch, handshake, produce, response
from tests.support.playbook import OAUTHBEARER
from tests.support.processes import PATIENCE_SECONDS, turns, until
from tests.support.relay import (
    MEGABYTE,
    PLAIN,
    SMALL_BUFFER,
    Relay,
    Secured,
    answer_at_length,
    answer_slowly,
    read_frame,
    relayed,
)
from tests.support.tls import (
    AUTHORITY,
    BOTH,
    FRONT,
    Conversation,
    ReceivingSide,
    Server,
    Turns,
    client_context,
)


class TlsClient:
    """TLS over plain streams: unlike asyncio's it can end its sending and continue to read."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._plain = b""
        self.was_told_of_the_end = False

    @classmethod
    async def connect(cls, relay: Relay, context: ssl.SSLContext, first: bytes = b"") -> Self:
        """`first` is sent together with the last bytes of the handshake."""
        client = cls(*await connect(relay), context)
        while True:
            try:
                client.ssl.do_handshake()
            except ssl.SSLWantReadError:
                client.write(b"")
                await client._receive()
            else:
                client.write(first)
                return client

    async def _receive(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        self._incoming.write(data)

    def write(self, data: bytes) -> None:
        while data:
            data = data[self.ssl.write(data) :]
        self._writer.write(self._outgoing.read())

    def finish_sending(self, *, notify: bool = True) -> None:
        if notify:
            with suppress(ssl.SSLError):
                self.ssl.unwrap()
            self._writer.write(self._outgoing.read())
        self._writer.write_eof()

    async def _some(self) -> bytes:
        while True:
            try:
                data = self.ssl.read(65_536)
            except ssl.SSLWantReadError:
                await self._receive()
                continue
            except ssl.SSLZeroReturnError:
                data = b""
            self.was_told_of_the_end = not data
            return data

    async def read(self) -> bytes:
        """Everything to the end."""
        found, self._plain = self._plain, b""
        try:
            while data := await self._some():
                found += data
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return found

    async def frame(self) -> bytes:
        while (
            len(self._plain) < 4 or len(self._plain) < 4 + struct.unpack(">i", self._plain[:4])[0]
        ):
            data = await self._some()
            if not data:
                raise asyncio.IncompleteReadError(self._plain, None)
            self._plain += data
        end = 4 + int.from_bytes(self._plain[:4], "big")
        frame, self._plain = self._plain[4:end], self._plain[end:]
        return frame

    def close(self) -> None:
        self._writer.close()


async def connect(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*relay.writer.get_extra_info("peername"))


@pytest.fixture(params=[FRONT, BOTH], ids=["clients", "both"])
def front(request: pytest.FixtureRequest) -> Iterator[Secured]:
    harness.present[0] = request.param
    yield request.param
    harness.present[0] = Secured()


async def logged_in(relay: Relay, front: Secured, first: bytes = b"") -> TlsClient:
    """Another client, which can end its sending: that of asyncio cannot."""
    assert front.client is not None
    login = handshake(1, OAUTHBEARER) + authenticate(2, bearer())
    client = await TlsClient.connect(relay, front.client, login + first)
    await client.frame()
    await client.frame()
    return client


@pytest.mark.parametrize("notify", [True, False])
async def test_a_half_closed_client_gets_its_answers(front: Secured, notify: bool) -> None:
    """With a close_notify (RFC 8446 section 6.1), or with a bare FIN as Python's sockets do it."""
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        client = await logged_in(relay, front)
        client.write(fetch(3) + fetch(4))
        client.finish_sending(notify=notify)
        assert await client.frame() == response(3, b"late")[4:]
        assert await client.frame() == response(4, b"late")[4:]
        assert await client.read() == b""
        assert client.was_told_of_the_end
        client.close()
    assert "closed client_closed" in relay.shell.play.take()


async def test_an_acks_0_request_before_a_close_arrives(front: Secured) -> None:
    """Request, close_notify and FIN in one read, and no broker yet: nothing of it is lost."""
    request = produce(3, acks=0, records=os.urandom(MEGABYTE))
    arrived: list[bytes] = []
    there = asyncio.Event()

    async def broker(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        arrived.append(await read_frame(reader))
        there.set()

    async with relayed(broker, offer=PLAIN, receive_buffer=SMALL_BUFFER) as relay:
        client = await logged_in(relay, front)
        client.write(request)
        client.finish_sending()
        await client.read()
        client.close()
        await asyncio.wait_for(there.wait(), PATIENCE_SECONDS)
    assert arrived == [request[4:]]


async def test_bulk_is_read_another_way_and_ends_as_orderly(
    front: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket's protocol is replaced at the first large read; FIN and answers as before."""
    carried: list[object] = []

    class Watched(BulkReader):
        __slots__ = ()

        def buffer_updated(self, nbytes: int) -> None:
            carried.append(nbytes)
            super().buffer_updated(nbytes)

    monkeypatch.setattr(read_buffer, "BulkReader", Watched)
    monkeypatch.setattr(tls_module, "BULK_READ", 2 * RECORD)
    request = produce(3, records=os.urandom(3 * MEGABYTE))
    arrived: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await read_frame(reader))
        writer.write(response(3, b"late"))
        await reader.read()

    async with relayed(broker, offer=PLAIN) as relay:
        client = await logged_in(relay, front)
        client.write(request)
        client.finish_sending()
        assert await client.frame() == response(3, b"late")[4:]
        assert await client.read() == b""
        assert client.was_told_of_the_end
        client.close()
    assert "closed client_closed" in relay.shell.play.take()
    assert arrived == [request[4:]]
    assert carried


async def test_much_behind_the_last_bytes_of_a_handshake(
    front: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the handshake and a long request in one read: the side reads it as bulk, because
    its own path for bulk does not handle encrypted bytes."""
    monkeypatch.setattr(module, "BULK_READ", 2 * RECORD)
    request = produce(3, records=os.urandom(8 * RECORD))
    arrived: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await read_frame(reader))
        writer.write(response(3, b"late"))
        await reader.read()

    async with relayed(broker, offer=PLAIN) as relay:
        client = await logged_in(relay, front, request)
        assert await client.frame() == response(3, b"late")[4:]
        client.close()
    assert arrived == [request[4:]]


@pytest.mark.parametrize(
    ("first", "reported"),
    [
        (handshake(1, OAUTHBEARER), "KAFKA"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x80hello", "UNKNOWN"),
        (b"\x16\x03\x01\x00\x05junk!", None),
    ],
)
@pytest.mark.usefixtures("front")
async def test_what_is_no_tls_is_told_apart_and_closed(first: bytes, reported: str | None) -> None:
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        reader, writer = await connect(relay)
        writer.write(first)
        assert len(await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)) < 10  # an alert at most
        writer.close()
        assert len(relay.shell.unwelcome) == 1
        assert reported is None or relay.shell.unwelcome == [reported]
    assert "closed tls_handshake_failed" in relay.shell.play.take()


async def test_bytes_that_are_not_genuine_end_the_connection(front: Secured) -> None:
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        client = await logged_in(relay, front)
        client._writer.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        client.write(fetch(3))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ssl.SSLError)):
            await client.frame()
        client.close()


async def test_a_broker_that_speaks_no_tls_is_a_broker_that_cannot_be_reached() -> None:
    """It closes when it sees a handshake: only the caller that dials gets the error."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        loop = asyncio.get_running_loop()
        connected = loop.create_future()
        # There is no side: a call of any method fails here.
        nobody: Any = None
        given = nobody, ReadBuffer(), Turns().wait, client_context(AUTHORITY), "localhost"
        address = server.sockets[0].getsockname()
        await loop.create_connection(lambda: ClientTls(*given, connected), *address)
        with pytest.raises(ConnectionResetError, match="does it speak TLS"):
            await asyncio.wait_for(connected, PATIENCE_SECONDS)


async def test_linger_holds_for_what_is_encrypted(
    front: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that says close_notify and does not read may not keep its connection."""
    monkeypatch.setattr(module, "LINGER", 0.1)
    async with relayed(answer_at_length, offer=PLAIN, receive_buffer=SMALL_BUFFER) as relay:
        known = set(relay.shell.clients)
        client = await logged_in(relay, front)
        client._writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.write(fetch(3))
        (side,) = relay.shell.clients - known
        transport = side._transport
        assert transport is not None
        await until(lambda: transport.get_write_buffer_size() > 0)
        client.finish_sending()
        side.call(finishing(CloseReason.DRAINED))
        assert side in relay.shell.clients
        await until(lambda: side not in relay.shell.clients)
        client.close()


@pytest.mark.usefixtures("front")
async def test_nothing_of_a_handshake_is_logged_by_asyncio(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Unauthenticated clients do not fill the log, whatever they send."""
    caplog.set_level(logging.DEBUG)
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        port = relay.writer.get_extra_info("peername")[1]
        for first in (b"\x16\x03\x01", b"", b"\x16\x03\x01\x00\x05junk!"):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(first)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        await turns()
    assert [one for one in caplog.records if one.levelno > logging.DEBUG] == []


def cuts(size: int) -> list[int]:
    """All of a few bytes; of many those that matter to records, heads and portions."""
    edges = [1, 4, 5, 6, RECORD, RECORD + 1, RECORD + 22, PIECE, PIECE + 1, size // 2, size - 1]
    return list(range(1, size)) if size < 500 else [edge for edge in edges if edge < size]


@pytest.mark.parametrize("size", [1, 300, 10_000, RECORD, RECORD + 1, 2 * PIECE, 250_000])
def test_a_stream_cut_in_two(size: int) -> None:
    """Of the second part much less may come than the record that it ends."""
    plain = bytes(range(256)) * (size // 256 + 1)
    talk = Conversation()
    for cut in cuts(len(talk.encrypted(plain[:size]))):
        talk = Conversation()
        stream = talk.encrypted(plain[:size])
        for piece in (stream[:cut], stream[cut:]):
            talk.tls.data_received(piece)
            talk.turns.take_all()
        assert talk.ear.heard == plain[:size], cut


def test_many_records_in_one_read_and_part_of_another() -> None:
    """Eight requests at once, as a client with several in flight sends them."""
    plain = bytes(range(200))
    for cut in range(8 * 200, 9 * 200, 7):
        talk = Conversation()
        stream = b"".join(talk.encrypted(plain) for _ in range(9))
        for start, end in pairwise((0, cut, cut + 1, len(stream))):
            talk.tls.data_received(stream[start:end])
        assert talk.ear.heard == 9 * plain, cut


class AnsweringSide(ReceivingSide):
    """A side that answers everything."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def data_received(self, data: Bytes) -> None:
        super().data_received(data)
        self._server.tls.write(b"answer")


@pytest.mark.parametrize("request_bytes", [b"", b"request"])
def test_session_tickets_go_with_the_first_answer(request_bytes: bytes) -> None:
    """One system call and one packet; they are sent without a request, too."""
    server = Server()
    server.tls._side = AnsweringSide(server)
    from_client = ssl.MemoryBIO()
    client = client_context(AUTHORITY).wrap_bio(
        server.to_client, from_client, server_hostname="localhost"
    )
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    server.tls.data_received(from_client.read())
    client.do_handshake()
    if request_bytes:
        client.write(request_bytes)
    before = server.wire.writes
    server.tls.data_received(from_client.read())
    assert server.wire.writes == before + 1
    if request_bytes:
        assert client.read(100) == b"answer"
    else:
        with pytest.raises(ssl.SSLWantReadError):
            client.read(100)
    assert client.session is not None
    assert client.session.has_ticket


def test_a_closed_connection_keeps_nothing_of_openssls() -> None:
    """Fourteen KiB, which would wait for the cycle collector."""
    talk = Conversation()
    tls = weakref.ref(talk.tls._ssl)
    talk.met.clear()  # it refers to the SSL object
    assert tls() is not None
    talk.tls.connection_lost(None)
    assert tls() is None
    talk.tls.write(b"too late")
    talk.tls.data_received(b"too late")
    talk.tls.close()
    talk.tls.abort()
    assert talk.tls.is_closing()


def test_what_comes_behind_the_end_is_not_kept() -> None:
    """A client that sends close_notify and waits for answers could send more until they arrive."""
    talk = Conversation()
    talk.ear.waits_behind_the_end = True
    talk.tls.data_received(talk.encrypted(b"request") + talk.farewell())
    for _ in range(3):
        talk.tls.data_received(bytes(PIECE))
    assert talk.ear.heard == b"request"
    assert talk.tls._incoming.pending == 0


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1", b"\x16\x03\x01\x00\x05junk!"])
def test_what_comes_behind_a_failed_handshake_is_not_kept(first: bytes) -> None:
    """A connection that is held, because its address has too many, is closed later only."""
    server = Server()
    for piece in (first, bytes(PIECE), bytes(PIECE)):
        server.tls.data_received(piece)
    assert len(server.met) == 1, "and it is told once"
    assert server.tls._incoming.pending <= len(first)
