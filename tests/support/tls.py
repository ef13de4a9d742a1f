"""TLS between a test and the proxy: contexts, in-memory connections, raw clients."""

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from proxy.admin import read_client_properties
from proxy.connection.frames import Bytes
from proxy.net.read_buffer import BufferedSide, ReadBuffer
from proxy.net.tls_contexts import ProxyTls, Tls, open_tls
from proxy.net.tls_input import RECORD
from proxy.net.tls_sides import ServerTls
from proxy.worker.slots import LoginSlots
from tests.support.certificates import NOW, Authority, Issued
from tests.support.relay import Secured, handshake_slots
from tests.support.settings import SCRAM, configured

# Certificates in a directory, the contexts made of them, and both ends of a handshake

WALL = NOW.timestamp()
AUTHORITY = Authority()
OTHER = Authority("other")
FIRST, SECOND = AUTHORITY.issue(), AUTHORITY.issue("a longer name than the first one has")
"""File sizes differ, because kernels before 6.13 may give two writes the same time."""
RSA = AUTHORITY.issue(algorithm="rsa")
LISTENER = "listeners[0]"


def opened(directory: Path, *, upstream: dict[str, Any] | None = None, **more: Any) -> ProxyTls:
    tls = {"security.protocol": "SASL_SSL", "ssl.keystore.location": "server.pem"}
    given = {key.replace("_", "."): value for key, value in more.items()}
    return open_tls(configured(directory, {**SCRAM, **tls, **given}, upstream), WALL)


def connected(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    host: str = "localhost",
    session: ssl.SSLSession | None = None,
) -> ssl.SSLObject:
    """Connect both ends in memory; return the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host, session=session)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    far.write(b"x")
    assert near.read(1) == b"x"  # with TLS 1.3 its ticket comes first
    return near


def context_trusting(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    return context


def serial(tls: Tls) -> int:
    shown = connected(tls.context, context_trusting()).getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


def looked(tls: Tls, wall: float = WALL) -> bool:
    """Check twice, because a file that has just changed may be incomplete."""
    tls.check(wall)
    replacement = tls.check(wall)
    if replacement is not None:
        tls.replace(replacement)
    return replacement is not None


# Contexts of the other side, and a client that controls every record


@dataclass(frozen=True)
class Spoken:
    """TLS settings for brokers."""

    context: ssl.SSLContext
    expires_at: float | None = None


def load(context: ssl.SSLContext, issued: Issued) -> None:
    file = os.memfd_create("test")
    os.write(file, issued.pem)
    context.load_cert_chain(f"/proc/self/fd/{file}")
    os.close(file)


def server_context(issued: Issued, *, clients_of: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, issued)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients_of.certificate.decode())
    return context


def client_context(authority: Authority, *, shown: Issued | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    if shown is not None:
        load(context, shown)
    return context


OURS = AUTHORITY.issue()
FRONT = Secured(client=client_context(AUTHORITY), clients=server_context(OURS))
BACK = Secured(brokers=client_context(AUTHORITY), broker=server_context(OURS))
BOTH = Secured(client=FRONT.client, clients=FRONT.clients, brokers=BACK.brokers, broker=BACK.broker)


# A client and the transport under test, without a socket


class ReceivingSide:
    """The listening side."""

    peer_has_unsent = False

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
    """A transport whose writes go to the client."""

    def __init__(self, to_client: ssl.MemoryBIO) -> None:
        super().__init__()
        self._to_client = to_client
        self.reads = True
        self.aborted = False
        self.writes = 0
        """Number of writes, each a system call of a real transport."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self._to_client.write(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


class Turns:
    """Callbacks that wait for their turn."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def wait(self, _who: str, go_on: Callable[[], None]) -> None:
        self.waiting.append(go_on)

    def take_all(self) -> None:
        """Run all waiting callbacks."""
        while self.take():
            pass

    def take(self) -> bool:
        """Run the waiting callbacks; return False if there was nothing to run."""
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()
        return bool(waiting)


class Server:
    """The transport under test and its environment, before a client connects."""

    def __init__(
        self,
        slots: LoginSlots[ServerTls] | None = None,
        context: ssl.SSLContext | Callable[[BufferedSide, str], ssl.SSLContext] | None = None,
    ) -> None:
        self.ear = ReceivingSide()
        self.turns = Turns()
        self.to_client = ssl.MemoryBIO()
        self.wire = Wire(self.to_client)
        self.context = context or server_context(OURS)
        self.slots = handshake_slots() if slots is None else slots
        self.met: list[object] = []
        """The outcome of the handshake."""
        self.tls = ServerTls(
            self.ear,
            ReadBuffer(),
            self.turns.wait,
            self.context,
            self.slots,
            lambda _, outcome: self.met.append(outcome),
        )
        self.tls.connection_made(self.wire)

    @property
    def refusal(self) -> str | None:
        """OpenSSL's reason for the failed handshake."""
        (error,) = self.met
        assert isinstance(error, ssl.SSLError)
        return error.reason


class Conversation(Server):
    """A client and the transport under test after their handshake."""

    def __init__(self, *, is_authenticated: bool = True) -> None:
        super().__init__()
        self._from_client = ssl.MemoryBIO()
        self._client = client_context(AUTHORITY).wrap_bio(
            self.to_client, self._from_client, server_hostname="localhost"
        )
        for _ in range(2):
            with suppress(ssl.SSLWantReadError):
                self._client.do_handshake()
            self.tls.data_received(self._from_client.read())
        if is_authenticated:
            self.tls.authenticated()

    def encrypted(self, plain: bytes) -> bytes:
        """Encrypt one record per `RECORD` bytes."""
        for start in range(0, len(plain), RECORD):
            self._client.write(plain[start : start + RECORD])
        return self._from_client.read()

    def farewell(self) -> bytes:
        """A close_notify."""
        with suppress(ssl.SSLWantReadError):
            self._client.unwrap()
        return self._from_client.read()


# A client with OpenSSL itself, as Python's `ssl` cannot send key updates (RFC 8446 section 4.6.3)


# `ssl.*` of a properties file, its files, and a handshake without sockets

PASSWORD = "store-secret"
BUNDLED = serialization.BestAvailableEncryption(PASSWORD.encode())


def context(directory: Path, *lines: str) -> ssl.SSLContext:
    """The TLS context for a properties file with these lines."""
    file = directory / "client.properties"
    file.write_text("\n".join(("security.protocol=SSL", *lines)))
    found = read_client_properties(file).ssl_context
    assert found is not None
    return found


def trusting(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.truststore.type={kind}", f"ssl.truststore.location={path}")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def value(pem: bytes) -> str:
    """PEM as a continued line of a properties file."""
    return pem.decode().strip().replace("\n", " \\\n  ")


def escaped(pem: bytes) -> str:
    """PEM in one line with escaped line ends."""
    return pem.decode().replace("\n", "\\n")


def truststore(*trusted: bytes) -> bytes:
    """A PKCS12 truststore like that of keytool."""
    certificates = [x509.load_pem_x509_certificate(pem) for pem in trusted]
    return pkcs12.serialize_key_and_certificates(None, None, None, certificates, BUNDLED)


def keystore(issued: Issued, *above: bytes) -> bytes:
    """A PKCS12 keystore with a key and its certificate chain."""
    return pkcs12.serialize_key_and_certificates(
        b"me",
        serialization.load_pem_private_key(issued.key, None),  # type: ignore[arg-type]  # our kinds
        x509.load_pem_x509_certificate(issued.certificate),
        [x509.load_pem_x509_certificate(pem) for pem in above],
        BUNDLED,
    )
