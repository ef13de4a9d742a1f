"""TLS between a test and the proxy: contexts, both ends without a socket, raw clients."""

import _ssl
import asyncio
import ctypes
import os
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from proxy.admin import read_client_properties
from proxy.config import from_mapping
from proxy.connection.frames import Bytes
from proxy.net.read_buffer import ReadBuffer
from proxy.net.tls_pace import RECORD
from proxy.net.tls_sides import ServerTls
from proxy.tls.contexts import Tls, TlsOfAll, open_tls
from tests.support.certificates import NOW, Authority, Issued
from tests.support.relay import Secured

# Certificates in a directory, the contexts made of them, and both ends of a handshake

WALL = NOW.timestamp()
AUTHORITY = Authority()
OTHER = Authority("other")
FIRST, SECOND = AUTHORITY.issue(), AUTHORITY.issue()
RSA = AUTHORITY.issue(algorithm="rsa")
LISTENER = "listeners[0]"


def opened(directory: Path, *, upstream: dict[str, Any] | None = None, **more: Any) -> TlsOfAll:
    listener = {
        "name": "clients",
        "address": "127.0.0.1:9094",
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": "server.pem",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    mapping = {
        "upstream": {"bootstrap.servers": "127.0.0.1:9092", **(upstream or {})},
        "listeners": [listener],
    }
    return open_tls(from_mapping(mapping, base_dir=directory), WALL)


def connected(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    host: str = "localhost",
    session: ssl.SSLSession | None = None,
) -> ssl.SSLObject:
    """Both ends in memory; the client's."""
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
    assert near.read(1) == b"x"  # with TLS 1.3 its ticket comes before
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
    """Twice: what changed between two looks may still be being written."""
    tls.look(wall)
    replacement = tls.look(wall)
    if replacement is not None:
        tls.take(replacement)
    return replacement is not None


# Contexts of the other side, and a client that can do with TLS what a person with a wire can


@dataclass(frozen=True)
class Spoken:
    """What brokers are met with."""

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


class TlsClient:
    """TLS over plain streams: unlike asyncio's it can end its sending and go on reading."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._plain = b""
        self.was_told_of_the_end = False

    @classmethod
    async def connect(
        cls, port: int, context: ssl.SSLContext, *, bytewise: bool = False, first: bytes = b""
    ) -> Self:
        """`first` is sent together with the last bytes of the handshake."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port), context)
        try:
            await client._shake_hands(first, bytewise=bytewise)
        except BaseException:
            client.close()
            raise
        return client

    async def _shake_hands(self, first: bytes, *, bytewise: bool) -> None:
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._send(bytewise=bytewise)
                await self._receive()
            else:
                while first:
                    first = first[self.ssl.write(first) :]
                await self._send(bytewise=bytewise)
                return

    async def _send(self, *, bytewise: bool) -> None:
        data = self._outgoing.read()
        step = 1 if bytewise else max(1, len(data))
        for start in range(0, len(data), step):
            self._writer.write(data[start : start + step])
            await asyncio.sleep(0)

    async def _receive(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        self._incoming.write(data)

    def write(self, data: bytes) -> None:
        while data:
            data = data[self.ssl.write(data) :]
        self._writer.write(self._outgoing.read())

    def write_raw(self, data: bytes) -> None:
        self._writer.write(data)

    def finish_sending(self, *, notify: bool = True) -> None:
        if notify:
            with suppress(ssl.SSLError):
                self.ssl.unwrap()
            self._writer.write(self._outgoing.read())
        self._writer.write_eof()

    def pause(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

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


# Both ends of TLS without a socket: a client, and the transport under test


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
        self.reads = True
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
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
    """Those who wait for theirs."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def wait(self, _who: str, go_on: Callable[[], None]) -> None:
        self.waiting.append(go_on)

    def take_all(self) -> None:
        """Let everybody go on until nobody waits."""
        while self.take():
            pass

    def take(self) -> bool:
        """Let whoever waits go on; False: nobody does."""
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()
        return bool(waiting)


class Server:
    """The transport under test, and all that it has to do with; a client is to come."""

    def __init__(self) -> None:
        self.ear = Ear()
        self.turns = Turns()
        self.to_client = ssl.MemoryBIO()
        self.wire = Wire(self.to_client)
        self.tls = ServerTls(
            self.ear, ReadBuffer(), self.turns.wait, server_context(OURS), lambda _: None
        )
        self.tls.connection_made(self.wire)


class Conversation(Server):
    """A client and the transport under test, after their handshake."""

    def __init__(self) -> None:
        super().__init__()
        self._from_client = ssl.MemoryBIO()
        self._client = client_context(AUTHORITY).wrap_bio(
            self.to_client, self._from_client, server_hostname="localhost"
        )
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


# A client by OpenSSL itself: Python's `ssl` sends no key updates (RFC 8446 section 4.6.3)

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


# A properties file's `ssl.*`, the files that it names, and a handshake without sockets

PASSWORD = "store-secret"
BUNDLED = serialization.BestAvailableEncryption(PASSWORD.encode())


def context(directory: Path, *lines: str) -> ssl.SSLContext:
    """What comes of a file with these lines."""
    file = directory / "client.properties"
    file.write_text("\n".join(("security.protocol=SSL", *lines)))
    found = read_client_properties(file).ssl_context
    assert found is not None
    return found


def trusting(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.truststore.type={kind}", f"ssl.truststore.location={path}")


def showing(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.keystore.type={kind}", f"ssl.keystore.location={path}")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def value(pem: bytes) -> str:
    """PEM over several lines of a properties file, which makes one line of it."""
    return pem.decode().strip().replace("\n", " \\\n  ")


def escaped(pem: bytes) -> str:
    """PEM in one line, its line ends escaped."""
    return pem.decode().replace("\n", "\\n")


def truststore(*trusted: bytes) -> bytes:
    """PKCS12 as keytool makes it of certificates."""
    certificates = [x509.load_pem_x509_certificate(pem) for pem in trusted]
    return pkcs12.serialize_key_and_certificates(None, None, None, certificates, BUNDLED)


def keystore(issued: Issued, *above: bytes) -> bytes:
    """PKCS12 with a key, its certificate, and those above it."""
    return pkcs12.serialize_key_and_certificates(
        b"me",
        serialization.load_pem_private_key(issued.key, None),  # type: ignore[arg-type]  # our kinds
        x509.load_pem_x509_certificate(issued.certificate),
        [x509.load_pem_x509_certificate(pem) for pem in above],
        BUNDLED,
    )


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost"
) -> tuple[str | None, int | None]:
    """The version of TLS, and the serial number that the server was shown. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    waiting = [ours, theirs]
    for _ in range(10):
        for one in tuple(waiting):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(one)
    assert waiting == []
    shown = theirs.getpeercert()
    return theirs.version(), int(str(shown["serialNumber"]), 16) if shown else None
