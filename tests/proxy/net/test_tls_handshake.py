"""What a handshake of a client may cost, and who may have one at a time."""

import ssl
from contextlib import suppress

import pytest

from proxy.net.read_buffer import BufferedSide
from proxy.net.tls_sides import MAX_KEPT
from proxy.worker.slots import SILENCE_SECONDS
from tests.support.relay import handshake_slots
from tests.support.tls import AUTHORITY, OURS, Server, client_context, server_context

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
