"""However a stream of TLS is cut by reads, the side hears all of it, and at once."""

import ssl
import weakref
from contextlib import suppress
from itertools import pairwise

import pytest

from proxy.connection.frames import Bytes
from proxy.net.read_buffer import ReadBuffer
from proxy.net.tls_pace import PIECE, RECORD
from proxy.net.tls_sides import ServerTls
from tests.support.relay import handshake_slots
from tests.support.tls import (
    AUTHORITY,
    OURS,
    Conversation,
    ReceivingSide,
    Server,
    Turns,
    Wire,
    client_context,
    server_context,
)


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
    assert tls() is not None
    talk.tls.connection_lost(None)
    assert tls() is None
    talk.tls.write(b"too late")
    talk.tls.data_received(b"too late")
    talk.tls.close()
    talk.tls.abort()
    assert talk.tls.is_closing()


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
    tls = ServerTls(
        ReceivingSide(),
        ReadBuffer(),
        Turns().wait,
        server_context(OURS),
        handshake_slots(),
        lambda _, it: met.append(it),
    )
    tls.connection_made(Wire(ssl.MemoryBIO()))
    for piece in (first, bytes(PIECE), bytes(PIECE)):
        tls.data_received(piece)
    assert len(met) == 1, "and it is told once"
    assert tls._incoming.pending <= len(first)
