"""Who makes much work of little, inside TLS, waits for turns like anybody else."""

import _ssl
import ctypes
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

import pytest

from proxy.net import tls_transport
from proxy.net.tls_input import (
    MAX_HANDSHAKE,
    MAX_RECORD,
    MAX_RECORDS,
    MAX_UNREAD_ANSWERS,
    MAX_WITHOUT_DATA,
    MIN_PIECE,
    PIECE,
    RECORD,
    HandshakeMessages,
    Pace,
)
from proxy.net.tls_transport import MAX_WAITING
from tests.support.tls import AUTHORITY, Conversation, Server, client_context

_POINTER: Final = ctypes.c_void_p


_TYPES: Final = {
    "TLS_client_method": (_POINTER, ()),
    "SSL_CTX_new": (_POINTER, (_POINTER,)),
    "SSL_new": (_POINTER, (_POINTER,)),
    "SSL_free": (None, (_POINTER,)),
    "SSL_CTX_free": (None, (_POINTER,)),
    "SSL_set_bio": (None, (_POINTER, _POINTER, _POINTER)),
    "SSL_connect": (ctypes.c_int, (_POINTER,)),
    "SSL_do_handshake": (ctypes.c_int, (_POINTER,)),
    "SSL_key_update": (ctypes.c_int, (_POINTER, ctypes.c_int)),
    "SSL_write": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
    "BIO_new": (_POINTER, (_POINTER,)),
    "BIO_s_mem": (_POINTER, ()),
    "BIO_read": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
    "BIO_write": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
}


def _openssl() -> ctypes.CDLL:
    """The OpenSSL that Python itself has."""
    library = ctypes.CDLL(_ssl.__file__)
    for name, (result, arguments) in _TYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class KeyUpdater:
    """A client that verifies nobody, in memory."""

    def __init__(self) -> None:
        self._openssl = openssl = _openssl()
        self._context = openssl.SSL_CTX_new(openssl.TLS_client_method())
        self._ssl = openssl.SSL_new(self._context)
        self._incoming, self._outgoing = (openssl.BIO_new(openssl.BIO_s_mem()) for _ in range(2))
        openssl.SSL_set_bio(self._ssl, self._incoming, self._outgoing)

    def shakes_hands(self, received: bytes) -> bool:
        """Take what the server said; whether the handshake is done."""
        self._openssl.BIO_write(self._incoming, received, len(received))
        return bool(self._openssl.SSL_connect(self._ssl) == 1)

    def update_keys(self, count: int = 1, *, answer: bool) -> bytes:
        """What updates its own key so often, and wants the other's updated."""
        for _ in range(count):
            assert self._openssl.SSL_key_update(self._ssl, int(answer)) == 1
            assert self._openssl.SSL_do_handshake(self._ssl) == 1
        return self.sent()

    def encrypted(self, plain: bytes) -> bytes:
        """One record of data."""
        assert self._openssl.SSL_write(self._ssl, plain, len(plain)) == len(plain)
        return self.sent()

    def sent(self) -> bytes:
        """All that it has to say."""
        said = b""
        buffer = ctypes.create_string_buffer(65_536)
        while (count := self._openssl.BIO_read(self._outgoing, buffer, 65_536)) > 0:
            said += buffer.raw[:count]
        return said

    def close(self) -> None:
        """Give the memory back."""
        self._openssl.SSL_free(self._ssl)
        self._openssl.SSL_CTX_free(self._context)


class Updating(Server):
    """A client that can update its key, and the transport under test, after their handshake."""

    def __init__(self, client: KeyUpdater) -> None:
        super().__init__()
        self.client = client
        client.shakes_hands(b"")
        self.tls.data_received(client.sent())
        assert client.shakes_hands(self.to_client.read())
        self.tls.data_received(client.sent())
        self.to_client.read()


@pytest.fixture
def updating() -> Iterator[Updating]:
    client = KeyUpdater()
    yield Updating(client)
    client.close()


@pytest.mark.parametrize("answer", [False, True])
def test_key_updates_take_a_turn_for_each_thousand_bytes(updating: Updating, answer: bool) -> None:
    """Read at once, 64 KiB of them would hold a worker for a tenth of a second."""
    stream = updating.client.update_keys(2_000, answer=answer)
    updating.tls.data_received(stream)
    kept = [len(stream), len(updating.tls._rest)]
    while updating.tls._rest:
        assert not updating.wire.reads, "and no more is read"
        assert updating.turns.take()
        kept.append(len(updating.tls._rest))
    assert max(before - after for before, after in pairwise(kept)) <= 5 * MIN_PIECE
    assert len(kept) > 40


def test_nothing_but_key_updates_is_an_end(updating: Updating) -> None:
    for _ in range(MAX_WITHOUT_DATA // 20_000 + 2):
        if updating.wire.aborted:
            break
        updating.tls.data_received(updating.client.update_keys(1_000, answer=False))
        updating.turns.take_all()
    assert updating.wire.aborted
    updating.tls.connection_lost(None)
    assert tls_transport._Waiting.total_bytes == 0


def test_a_key_update_among_data_goes_unnoticed(updating: Updating) -> None:
    """As Java's client sends one after 128 GiB."""
    stream = b""
    for _ in range(20):
        stream += updating.client.update_keys(answer=True) + updating.client.encrypted(b"d" * 5_000)
    updating.tls.data_received(stream)
    assert updating.ear.heard == b"d" * 100_000
    assert not updating.turns.waiting
    assert updating.to_client.pending, "it is answered"


def test_answers_that_nobody_reads_are_an_end(updating: Updating) -> None:
    """The proxy still reads a client that does not read: nothing else would bound the buffer."""
    updating.tls.pause_writing()
    for count in range(MAX_UNREAD_ANSWERS + 2):  # the first answer leaves with the second
        assert not updating.wire.aborted, count
        updating.tls.data_received(
            updating.client.update_keys(answer=True) + updating.client.encrypted(b"d" * 500)
        )
    assert updating.wire.aborted


def test_answers_that_are_read_are_none(updating: Updating) -> None:
    for _ in range(3 * MAX_UNREAD_ANSWERS):
        updating.tls.pause_writing()
        updating.tls.data_received(
            updating.client.update_keys(answer=True) + updating.client.encrypted(b"d" * 500)
        )
        updating.tls.resume_writing()
    assert not updating.wire.aborted


@pytest.mark.parametrize("of_each", [1, 20, 100])
def test_data_cut_finely_are_heard_in_many_turns(of_each: int) -> None:
    talk = Conversation()
    talk.tls.data_received(b"".join(talk.encrypted(b"x" * of_each) for _ in range(2_000)))
    turns = 0
    while talk.turns.take():
        turns += 1
    assert talk.ear.heard == b"x" * of_each * 2_000
    assert turns >= 2_000 // MAX_RECORDS - 1
    assert talk.wire.reads


def test_who_waits_for_a_turn_and_is_left_is_not_read() -> None:
    """The side pauses while there is a rest, and reads again while it still waits."""
    talk = Conversation()
    talk.tls.data_received(b"".join(talk.encrypted(b"x") for _ in range(200)))
    talk.tls.pause_reading()
    while talk.turns.take():
        assert not talk.wire.reads
    assert talk.ear.heard == b"x" * 200
    talk.tls.data_received(b"".join(talk.encrypted(b"x") for _ in range(200)))
    talk.tls.resume_reading()
    assert not talk.wire.reads
    talk.turns.take_all()
    assert talk.wire.reads


def test_all_that_wait_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport._Waiting, "total_bytes", MAX_WAITING - 10_000)
    talks = [Conversation() for _ in range(3)]
    for talk in talks:
        talk.tls.data_received(b"".join(talk.encrypted(b"x") for _ in range(300)))
    assert [talk.wire.aborted for talk in talks] == [False, True, True]
    for talk in talks:
        talk.tls.connection_lost(None)
    assert tls_transport._Waiting.total_bytes == MAX_WAITING - 10_000


@pytest.mark.parametrize("is_authenticated", [False, True])
def test_unauthenticated_clients_wait_with_half_of_it(
    monkeypatch: pytest.MonkeyPatch, is_authenticated: bool
) -> None:
    monkeypatch.setattr(tls_transport._Waiting, "total_bytes", MAX_WAITING // 2)
    talk = Conversation(is_authenticated=is_authenticated)
    talk.tls.data_received(b"".join(talk.encrypted(b"x") for _ in range(300)))
    assert talk.wire.aborted is not is_authenticated
    talk.tls.connection_lost(None)


def test_a_long_greeting_is_refused_before_it_is_whole() -> None:
    context = client_context(AUTHORITY)
    context.set_alpn_protocols([f"{number:0200}" for number in range(250)])
    from_client = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), from_client, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = from_client.read()
    assert len(hello) > MAX_HANDSHAKE
    server = Server()
    for start in range(0, len(hello) - 1, 1_000):
        server.tls.data_received(hello[start : min(start + 1_000, len(hello) - 1)])
    assert server.refusal == "EXCESSIVE_MESSAGE_SIZE"


class TestPace:
    def test_it_grows_while_data_come(self) -> None:
        pace = Pace()
        pieces = []
        for _ in range(8):
            pieces.append(pace.piece)
            assert pace.may_continue(pace.piece, pace.piece - 22)
        assert pieces == [MIN_PIECE << n for n in range(5)] + 3 * [PIECE]

    def test_a_record_may_come_in_parts(self) -> None:
        pace = Pace()
        pace.piece = PIECE
        while pace.without_data < RECORD:
            assert pace.may_continue(1_000, 0)
        assert pace.may_continue(1_000, RECORD)
        assert pace.without_data == 0

    @pytest.mark.parametrize(("taken", "gained"), [(1_000, 499), (MAX_RECORD + 1, 0)])
    def test_what_was_not_worth_it(self, taken: int, gained: int) -> None:
        pace = Pace()
        pace.piece = PIECE
        assert not pace.may_continue(taken, gained)
        assert pace.piece == MIN_PIECE


HANDSHAKE, CHANGE_CIPHER_SPEC, ALERT, DATA = 22, 20, 21, 23


def record(content: bytes, content_type: int = HANDSHAKE) -> bytes:
    return bytes([content_type, 3, 3]) + len(content).to_bytes(2) + content


def message(size: int, *, kind: int = 1) -> bytes:
    return bytes([kind]) + size.to_bytes(3) + bytes(size)


def given(*reads: bytes, encrypted: bool = False) -> list[bytes] | None:
    """What is given to OpenSSL, in pieces; None: it is refused."""
    messages, kept, pieces = HandshakeMessages(), b"", []
    for read in reads:
        kept += read
        while size := messages.complete(kept, encrypted=encrypted):
            pieces.append(kept[:size])
            kept = kept[size:]
        if size is None:
            return None
    return pieces


HELLO = record(message(300))
TINY = b"".join(record(bytes([one])) for one in message(60))
SEVERAL = record(message(10, kind=11) + message(0, kind=16) + message(70, kind=15)[:20])
REST = record(message(70, kind=15)[20:])
CCS = record(b"\x01", CHANGE_CIPHER_SPEC)


@pytest.mark.parametrize(
    ("stream", "pieces"),
    [
        (HELLO, [HELLO]),
        (HELLO[:-1], []),
        (record(message(300)[:3]), []),
        (TINY, [TINY]),
        (TINY[:-1], []),
        (SEVERAL, []),
        (SEVERAL + REST, [SEVERAL + REST]),
        (HELLO + CCS + HELLO, [HELLO + CCS, HELLO]),
        (HELLO + record(b"\x02\x28", ALERT), [HELLO + record(b"\x02\x28", ALERT)]),
        (record(message(MAX_HANDSHAKE)[:9_000]), []),
        (record(message(MAX_HANDSHAKE + 1)[:4]), None),
        (record(message(0) + message(131_000)[:4]), None),
        (record(message(9)[:5]) + CCS, None),
        (record(message(9)[:5]) + record(b"data", DATA), None),
        (record(message(9)[:2]) + record(b"data", DATA), None),
        (bytes([HANDSHAKE, 3, 3]) + (MAX_RECORD + 1).to_bytes(2), None),
    ],
)
def test_complete_messages_are_given(stream: bytes, pieces: list[bytes] | None) -> None:
    """In one read, cut in two anywhere, and byte by byte."""
    whole = None if pieces is None else b"".join(pieces)
    assert given(stream) == pieces
    for cut in range(1, min(len(stream), 500)):
        found = given(stream[:cut], stream[cut:])
        assert (None if found is None else b"".join(found)) == whole
    found = given(*(bytes([one]) for one in stream))
    assert (None if found is None else b"".join(found)) == whole


def test_encrypted_records_are_given_whole() -> None:
    """The Finished of TLS 1.2 has the content type of a handshake, and looks like anything."""
    finished = record(b"\x01\xff\xff\xff" + bytes(36))
    assert given(finished[:-1], encrypted=True) == []
    assert given(finished, encrypted=True) == [finished]
    assert given(finished) is None
