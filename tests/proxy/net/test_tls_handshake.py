"""What a handshake of a client may cost, and who may have one at a time."""

import _ssl
import ctypes
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

import pytest

from proxy.net import tls_transport
from proxy.net.read_buffer import BufferedSide
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
from proxy.net.tls_sides import MAX_KEPT
from proxy.net.tls_transport import MAX_WAITING
from proxy.worker.slots import SILENCE_SECONDS
from tests.support.relay import handshake_slots
from tests.support.tls import AUTHORITY, OURS, Conversation, Server, client_context, server_context

SECOND = AUTHORITY.issue()


class Client:
    """A client in memory."""

    def __init__(
        self,
        server: Server,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
        name: str = "localhost",
    ) -> None:
        self._out = ssl.MemoryBIO()
        self.ssl = (context or client_context(AUTHORITY)).wrap_bio(
            server.to_client, self._out, server_hostname=name, session=session
        )

    def flight(self) -> bytes:
        with suppress(ssl.SSLWantReadError):
            self.ssl.do_handshake()
        return self._out.read()

    def shake_hands(self, server: Server, piece: int = 1 << 20) -> None:
        while flight := self.flight():
            for start in range(0, len(flight), piece):
                server.tls.data_received(flight[start : start + piece])

    def encrypted(self, data: bytes) -> bytes:
        self.ssl.write(data)
        return self._out.read()


ANNOUNCED = b"\x16\x03\x01\x00\x32\x01" + (131_000).to_bytes(3) + b"\x03\x03" + bytes(44)


def test_a_long_hello_is_refused_for_what_it_announces() -> None:
    """OpenSSL would take 131,000 bytes for it, for 55 that were sent."""
    server = Server()
    server.tls.data_received(ANNOUNCED)
    assert server.refusal == "EXCESSIVE_MESSAGE_SIZE"
    assert server.tls._handshake_size == 0
    assert server.slots.taken == 0


def test_openssl_is_given_nothing_of_a_hello_that_is_not_complete() -> None:
    server = Server()
    client = Client(server)
    flight = client.flight()
    for one in flight[:-1]:
        server.tls.data_received(bytes([one]))
    assert server.tls._handshake_size == 0
    server.tls.data_received(flight[-1:])
    client.shake_hands(server)
    assert server.met == [server.tls._ssl]


def of_version(version: ssl.TLSVersion, *, shown: bool = False) -> ssl.SSLContext:
    context = client_context(AUTHORITY, shown=SECOND if shown else None)
    context.minimum_version = context.maximum_version = version
    return context


def server_with(*, curve: str = "", asks: bool = False) -> Server:
    context = server_context(OURS, clients_of=AUTHORITY if asks else None)
    if curve:
        context.set_ecdh_curve(curve)
    return Server(context=context)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("version", "curve"),
    [
        (ssl.TLSVersion.TLSv1_2, ""),
        (ssl.TLSVersion.TLSv1_3, ""),
        (ssl.TLSVersion.TLSv1_3, "secp521r1"),
    ],
    ids=["1.2", "1.3", "1.3 with HelloRetryRequest"],
)
def test_all_handshakes_succeed(version: ssl.TLSVersion, curve: str, piece: int) -> None:
    """With a client certificate, however reads cut them."""
    server = server_with(curve=curve, asks=True)
    client = Client(server, of_version(version, shown=True))
    client.shake_hands(server, piece)
    assert server.met == [server.tls._ssl]
    server.tls.data_received(client.encrypted(b"request"))
    assert server.ear.heard == b"request"
    assert server.slots.taken == 0


def test_sessions_of_tls_1_2_are_resumed() -> None:
    """Then the first encrypted message of the client follows its hello."""
    server, context = server_with(), of_version(ssl.TLSVersion.TLSv1_2)
    client = Client(server, context)
    client.shake_hands(server)
    again = Server(context=server.context)
    resuming = Client(again, context, client.ssl.session)
    resuming.shake_hands(again)
    assert resuming.ssl.session_reused
    assert again.met == [again.tls._ssl]


def test_a_resumed_session_of_tls_1_2_has_the_new_server_name() -> None:
    """OpenSSL would report that of the session's first handshake."""
    context, ours = of_version(ssl.TLSVersion.TLSv1_2), server_context(OURS)
    context.check_hostname = False
    names: list[str] = []

    def choose(_: BufferedSide, name: str) -> ssl.SSLContext:
        names.append(name)
        return ours

    session = None
    for name in ("localhost", "another"):
        server = Server(context=choose)
        client = Client(server, context, session, name)
        client.shake_hands(server)
        session = client.ssl.session
    assert client.ssl.session_reused
    assert names == ["localhost", "another"]


@pytest.mark.parametrize("ended", [b"", b"\x14\x03\x03\x00\x01\x01"], ids=["", "after a CCS"])
def test_a_second_hello_is_read_like_the_first(ended: bytes) -> None:
    """After a HelloRetryRequest, where a change_cipher_spec may come first (RFC 8446 D.4)."""
    server = server_with(curve="secp521r1")
    client = Client(server, of_version(ssl.TLSVersion.TLSv1_3))
    server.tls.data_received(client.flight())
    assert not server.met
    server.tls.data_received(ended + ANNOUNCED)
    assert server.refusal == "EXCESSIVE_MESSAGE_SIZE"


def test_a_client_certificate_of_tls_1_2_is_refused_for_what_it_announces() -> None:
    server = server_with(asks=True)
    client = Client(server, of_version(ssl.TLSVersion.TLSv1_2, shown=True))
    server.tls.data_received(client.flight())
    given = server.tls._handshake_size
    server.tls.data_received(b"\x16\x03\x03\x00\x08\x0b" + (100_000).to_bytes(3) + bytes(4))
    assert server.refusal == "EXCESSIVE_MESSAGE_SIZE"
    assert server.tls._handshake_size == given


class TestSlots:
    def test_a_handshake_waits_for_its_slot(self) -> None:
        slots = handshake_slots(1)
        first, second = Server(slots), Server(slots)
        one, other = Client(first), Client(second)
        first.tls.data_received(one.flight())
        second.tls.data_received(other.flight())
        assert (slots.taken, second.wire.reads) == (1, False)
        assert second.tls._handshake_size == 0
        one.shake_hands(first)
        assert (slots.taken, second.wire.reads) == (1, False), "it has one, and waits for its turn"
        assert second.turns.take()
        assert second.wire.reads
        other.shake_hands(second)
        assert second.met == [second.tls._ssl]
        assert slots.taken == 0

    def test_who_waits_may_have_sent_little(self) -> None:
        slots = handshake_slots(1)
        first, second = Server(slots), Server(slots)
        first.tls.data_received(Client(first).flight())
        second.tls.data_received(b"\x16\x03\x01\x40\x00" + bytes(MAX_KEPT))
        assert second.refusal == "EXCESSIVE_MESSAGE_SIZE"
        assert slots.taken == 1

    def test_who_leaves_gives_the_slot_back(self) -> None:
        slots = handshake_slots(1)
        first, second, third = (Server(slots) for _ in range(3))
        for server in (first, second, third):
            server.tls.data_received(Client(server).flight())
        second.tls.connection_lost(None)
        first.tls.connection_lost(None)
        assert third.turns.take()
        assert third.tls._handshake_size

    def test_a_slow_client_makes_room_and_a_trickle_is_slow(self) -> None:
        slots = handshake_slots(1)
        first, second = Server(slots), Server(slots)
        flight = Client(first).flight()
        first.tls.data_received(flight[:50])
        first.tls._began_at -= SILENCE_SECONDS
        first.tls.data_received(flight[50:60])
        second.tls.data_received(Client(second).flight())
        assert first.refusal == "SLOW_WHILE_OTHERS_WAITED"
        assert second.tls._handshake_size


# Much work that a client makes of little: it waits for turns like other clients


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
        """Return `count` key updates; `answer` also requests an update of the peer's key."""
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
        """Free the memory."""
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
    """Return the pieces that OpenSSL receives; None if the input is refused."""
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
