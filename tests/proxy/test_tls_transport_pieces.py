"""However a stream of TLS is cut by reads, the side hears all of it, and at once."""

import asyncio
import ssl
from contextlib import suppress
from itertools import pairwise

import pytest

from proxy.bulk import ReadBuffer
from proxy.frames import Bytes
from proxy.tls.transport import PIECE, RECORD, ServerTls
from tests.proxy.tls_given import AUTHORITY, OURS, client_context, server_context


class Ear:
    """A side that listens."""

    peer_owes = False

    def __init__(self) -> None:
        self.heard = b""
        self.waits_behind_the_end = False

    def data_received(self, data: Bytes) -> None:
        self.heard += bytes(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def eof_received(self) -> bool:
        return self.waits_behind_the_end

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class Wire(asyncio.Transport):
    """A socket's transport: what is written to it goes to the client."""

    def __init__(self, to_client: ssl.MemoryBIO) -> None:
        super().__init__()
        self._to_client = to_client

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._to_client.write(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


class Conversation:
    """A client and the transport under test, after their handshake."""

    def __init__(self) -> None:
        self.ear = Ear()
        self.tls = ServerTls(self.ear, ReadBuffer(), server_context(OURS), lambda _: None)
        to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(AUTHORITY)
        self._client = context.wrap_bio(to_client, self._from_client, server_hostname="localhost")
        self.tls.connection_made(Wire(to_client))
        for _ in range(2):
            with suppress(ssl.SSLWantReadError):
                self._client.do_handshake()
            self.tls.data_received(self._from_client.read())

    def encrypted(self, plain: bytes) -> bytes:
        """One record for each `RECORD` bytes."""
        for start in range(0, len(plain), RECORD):
            self._client.write(plain[start : start + RECORD])
        return self._from_client.read()

    def farewell(self) -> bytes:
        """A close_notify."""
        with suppress(ssl.SSLWantReadError):
            self._client.unwrap()
        return self._from_client.read()


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
        talk.tls.data_received(stream[:cut])
        talk.tls.data_received(stream[cut:])
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


def test_what_comes_behind_the_end_is_not_kept() -> None:
    """Who says close_notify and waits for answers could send on for as long as there are none."""
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
    met: list[object] = []
    tls = ServerTls(Ear(), ReadBuffer(), server_context(OURS), met.append)
    tls.connection_made(Wire(ssl.MemoryBIO()))
    for piece in (first, bytes(PIECE), bytes(PIECE)):
        tls.data_received(piece)
    assert len(met) == 1, "and it is told once"
    assert tls._incoming.pending <= len(first)
