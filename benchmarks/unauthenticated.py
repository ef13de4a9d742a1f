"""Clients that stop in the middle of their login, and the memory that they cost."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from benchmarks.client import request
from benchmarks.targets import OAUTHBEARER, Lab, Target
from proxy.net.tls_sides import HANDSHAKE_BYTES, MAX_HANDSHAKES
from proxy.net.tls_transport import MAX_WAITING
from proxy.scheduling.memory_budget import (
    LONG_BYTES_UNAUTHENTICATED,
    MAX_BYTES,
    MAX_BYTES_UNAUTHENTICATED,
)
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE

_TIMEOUT_SECONDS = 20.0
_AT_ONCE = 32
"""Number of clients that connect at once; a handshake may have to wait."""
_LONG_FRAME = 524_288
"""Largest frame of a login by default in bytes (`sasl.server.max.receive.size`)."""
_LONG_RECORD = 16_384
"""Largest plaintext of a TLS record in bytes."""
_MANY_CERTIFICATES = 130
"""Number of certificates in a chain of almost 100 KiB, OpenSSL's limit."""


BASE_BYTES = 72 * 1_048_576
"""Memory of a proxy with one worker and without clients, where no other program maps its files."""
WORKER_BYTES = 16 * 1_048_576
"""Memory of each further worker."""
CONNECTION_BYTES = 65_536
"""Largest memory of a connection that no budget covers: an unauthenticated client with TLS, all but
a byte of a login's message that needs no reservation, and all but a byte of a record."""


def needed_bytes(max_connections: Sequence[int], workers: int) -> int:
    """Return the memory limit that a proxy needs, by `max.connections` of its listeners."""
    each_worker = MAX_HANDSHAKES * HANDSHAKE_BYTES + MAX_WAITING + MAX_BYTES
    of_listeners = len(max_connections) * MAX_BYTES_UNAUTHENTICATED
    return (
        BASE_BYTES
        + (workers - 1) * WORKER_BYTES
        + sum(max_connections) * CONNECTION_BYTES
        + workers * (each_worker + of_listeners)
    )


class Client:
    """Client that speaks TLS over a socket of its own."""

    def __init__(self, target: Target, context: ssl.SSLContext) -> None:
        address = (target.address.host, target.address.port)
        self.socket = socket.create_connection(address, timeout=_TIMEOUT_SECONDS)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="benchmark")

    def flight(self) -> bytes:
        """Return the next bytes of the handshake."""
        with suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
        return self._outgoing.read()

    def receive(self) -> None:
        """Receive the server's next bytes. Raises OSError."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError  # by the proxy
        self._incoming.write(data)

    def shake_hands(self) -> None:
        """Complete the handshake. Raises OSError."""
        self.socket.sendall(self.flight())
        while self._ssl.version() is None:
            self.receive()
            self.socket.sendall(self.flight())

    def encrypted(self, data: bytes) -> bytes:
        """Return the records of `data`."""
        for start in range(0, len(data), _LONG_RECORD):
            self._ssl.write(data[start : start + _LONG_RECORD])
        return self._outgoing.read()


Send = Callable[[Client], None]


def _nothing(_: Client) -> None:
    pass


def _begin_hello(client: Client) -> None:
    """Send 55 bytes, the first of a ClientHello that announces 131,000."""
    hello = b"\x01" + (131_000).to_bytes(3) + b"\x03\x03" + bytes(44)
    client.socket.sendall(b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello)


def _begin_long_hello(client: Client) -> None:
    """Send 32,000 bytes of a ClientHello in records of 100 bytes."""
    hello = b"\x01" + (32_300).to_bytes(3) + b"\x03\x03" + bytes(32_000)
    records = (hello[start : start + 100] for start in range(0, len(hello), 100))
    client.socket.sendall(
        b"".join(b"\x16\x03\x01" + struct.pack(">H", len(one)) + one for one in records)[:32_000]
    )


def _send_hello(client: Client) -> None:
    client.socket.sendall(client.flight())


def _begin_certificate(client: Client) -> None:
    """Send the first record of a certificate that announces almost 100 KiB."""
    client.socket.sendall(client.flight())
    client.receive()
    flight = client.flight()
    assert len(flight) > _LONG_RECORD
    client.socket.sendall(flight[: _LONG_RECORD + 100])


def _begin_record(client: Client) -> None:
    client.shake_hands()
    client.socket.sendall(client.encrypted(b"\0\0\0" + bytes(_LONG_RECORD - 3))[:-1])


def _begin_message(size: int, *, raw: bool = False) -> Send:
    """Return a function that sends all but the last byte of a SASL message of `size` bytes, and a
    TLS record that lacks its last byte, too."""

    def send(client: Client) -> None:
        client.shake_hands()
        mechanism = struct.pack(">h", len(OAUTHBEARER)) + OAUTHBEARER.encode()
        client.socket.sendall(client.encrypted(request(SASL_HANDSHAKE, 0 if raw else 1, mechanism)))
        client.receive()
        if raw:
            message = struct.pack(">i", size) + bytes(size)
        else:
            head = len(request(SASL_AUTHENTICATE, 1, bytes(4))) - 4
            body = struct.pack(">i", size - head) + bytes(size - head)
            message = request(SASL_AUTHENTICATE, 1, body)
        for start in range(0, len(message) - 1, _LONG_RECORD):
            client.socket.sendall(client.encrypted(message[start:-1][:_LONG_RECORD]))
        client.socket.sendall(client.encrypted(bytes(_LONG_RECORD))[:-1])

    return send


PHASES: Mapping[str, Send] = {
    "TCP connection": _nothing,
    "ClientHello, first 55 bytes": _begin_hello,
    "ClientHello, first 32,000 bytes": _begin_long_hello,
    "ClientHello, complete": _send_hello,
    "client certificate, first 16 KiB of 100": _begin_certificate,
    "TLS record, all but a byte of 16 KiB": _begin_record,
    "SASL message, all but a byte of 8 KiB": _begin_message(LONG_BYTES_UNAUTHENTICATED - 1),
    "SASL message, all but a byte of 512 KiB": _begin_message(_LONG_FRAME),
    "raw token, all but a byte of 8 KiB": _begin_message(LONG_BYTES_UNAUTHENTICATED - 1, raw=True),
    "raw token, all but a byte of 512 KiB": _begin_message(_LONG_FRAME, raw=True),
}
"""Phases of a login in which a client may stop; all with TLS."""


def listener(lab: Lab) -> dict[str, object]:
    """Return the settings of a listener to which the phases apply."""
    return {
        "ssl.client.auth": "requested",
        "ssl.truststore.location": str(lab.ca),
        "sasl.authentication.timeout.ms": 600_000,
    }


@contextmanager
def stopped(target: Target, lab: Lab, phase: str, count: int) -> Iterator[int]:
    """Open `count` connections that stop in `phase`; yield how many of them the proxy has not
    closed meanwhile."""
    context = ssl.create_default_context(cafile=str(lab.ca))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    chain = lab.directory / "long-chain.pem"
    chain.write_bytes(lab.certificate.read_bytes() + _MANY_CERTIFICATES * lab.ca.read_bytes())
    if phase.startswith("client certificate"):
        context.load_cert_chain(chain)
    send = PHASES[phase]

    def stop(_: int) -> Client:
        client = Client(target, context)
        with suppress(OSError):
            send(client)
        return client

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        clients = list(pool.map(stop, range(count)))
    try:
        yield sum(map(_is_open, clients))
    finally:
        for client in clients:
            client.socket.close()


def _is_open(client: Client) -> bool:
    client.socket.setblocking(False)
    try:
        while client.socket.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
