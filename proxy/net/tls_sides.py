"""TLS transports of the two sides: clients of the proxy, and brokers."""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from proxy.connection.frames import Bytes
from proxy.net.handshake_errors import (
    CLOSED_IN_HANDSHAKE,
    UNRECOGNIZED_NAME,
    HandshakeResult,
    ServerNameError,
    WrongProtocol,
)
from proxy.net.read_buffer import BufferedSide, ReadBuffer
from proxy.net.sockets import peer_address
from proxy.net.tls_input import FIRST_PIECE, MAX_HANDSHAKE, PIECE, HandshakeMessages, server_name
from proxy.net.tls_transport import TOO_LONG, TlsTransport, Wait, handshake_fault
from proxy.quota.model import address_group

monotonic: Final = time.monotonic
"""Clock in seconds; see `proxy.net.relay`."""
LINGER: Final = 5.0
"""Seconds in which a broker must close its side of a connection that the proxy has closed."""
MAX_KEPT: Final = 4_096
"""Largest number of bytes of a client that are kept while it waits for its handshake. With
post-quantum keys a ClientHello has 2 KiB."""
MAX_HANDSHAKES: Final = 256
"""Largest number of clients' handshakes that a worker has under way at once."""
HANDSHAKE_BYTES: Final = 196_608
"""Largest memory in bytes of a handshake under way: OpenSSL's buffers for a certificate of 100 KiB
that a client with TLS 1.3 has announced take most of it. A usual one takes a quarter."""


class HandshakeSlots(Protocol):
    """Interface to the slots for the handshakes of a worker's clients."""

    def acquire(self, key: "ServerTls", owner: str, go: Callable[[], None]) -> None:
        """Call `go` when `key` has a slot, which may be at once; owners take turns."""

    def release(self, key: "ServerTls") -> None:
        """Release the slot, or stop waiting for one; a second call has no effect."""


class ServerTls(TlsTransport):
    """TLS of a client's connection.

    The handshake waits for a slot, because it needs `HANDSHAKE_BYTES` of memory. Until it has
    one, OpenSSL allocates no memory, and at most `MAX_KEPT` bytes of the client are kept.
    """

    __slots__ = (
        "_address",
        "_began_at",
        "_context",
        "_has_slot",
        "_messages",
        "_on_handshake",
        "_slots",
    )

    def __init__(
        self,
        side: BufferedSide,
        buffer: ReadBuffer,
        wait: Wait,
        context: ssl.SSLContext | Callable[[BufferedSide, str], ssl.SSLContext | None],
        slots: HandshakeSlots,
        on_handshake: Callable[[BufferedSide, HandshakeResult], None],
        address: str = "",
    ) -> None:
        """`on_handshake` gets `side` with the completed handshake, or with the reason for its
        failure; then the connection closes. `address`: see `ClientSide`.

        Instead of a context, a function may return the context for a side and its server name, or
        None to refuse the client.
        """
        super().__init__(side, buffer, wait)
        self._address = address
        self._pace.largest = FIRST_PIECE
        self._context = context
        self._slots = slots
        self._on_handshake = on_handshake
        self._has_slot = False
        self._messages: HandshakeMessages | None = None
        """The parser of the handshake; None before and after the handshake."""
        self._began_at = 0.0
        """Time at which the handshake began, in monotonic seconds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a client that connected, before its handshake."""
        super().connection_made(transport)
        self._side.connection_made(cast(asyncio.Transport, self))

    @property
    def _group(self) -> str:
        return address_group(self._address or peer_address(self._socket) or "")

    def _handshake_bytes(self, data: Bytes) -> None:
        if self._messages is not None:
            self._kept += data
            self._give(self._messages)
            return
        protocol = WrongProtocol.by_first_bytes(data)
        if protocol is not WrongProtocol.TLS:
            self._ended = True
            self._on_handshake(self._side, protocol)
            return
        self._kept = bytes(data)
        self._slots.acquire(self, self._group, self._granted)
        if self._has_slot:
            self._begin()
        elif len(self._kept) > MAX_KEPT:
            self._fail(handshake_fault(TOO_LONG))
        else:
            self._waits = True
            self._socket.pause_reading()

    def _granted(self) -> None:
        self._has_slot = True
        if self._waits:  # called in another client's turn; the handshake begins in its own
            self._wait(self._group, self._begin)

    def _begin(self) -> None:
        """Begin the handshake."""
        if self._closing:
            return
        if self._waits:
            self._waits = False
            if not self._is_paused:
                self._socket.resume_reading()
        self._began_at = monotonic()
        if isinstance(self._context, ssl.SSLContext):
            self._wrap(self._context)
        self._messages = HandshakeMessages()
        self._give(self._messages)

    def _wrap(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def _choose(self, hello: bytes) -> bool:
        """Use the context for the server name; return False if the client is refused."""
        assert not isinstance(self._context, ssl.SSLContext)
        name = server_name(hello)
        context = None if name is None else self._context(self._side, name)
        if context is not None:
            self._wrap(context)
            return True
        self._socket.write(UNRECOGNIZED_NAME)
        self._fail(ServerNameError(name))
        return False

    def authenticated(self) -> None:
        """Read an authenticated client in larger pieces, for which OpenSSL keeps memory."""
        self._pace.largest = PIECE

    @property
    def age(self) -> float:
        """Seconds for which the handshake has been under way; 0 before it begins."""
        return 0.0 if self._messages is None else monotonic() - self._began_at

    def displaced(self) -> None:
        """End a handshake whose slot goes to another client."""
        self._fail(handshake_fault("SLOW_WHILE_OTHERS_WAITED"))

    def _give(self, messages: HandshakeMessages) -> None:
        """Give OpenSSL the messages that are complete."""
        while not (self._established or self._ended or self._closing):
            is_chosen = isinstance(self._context, ssl.SSLContext)
            cipher = self._ssl.cipher() if is_chosen else None
            is_encrypted = cipher is not None and cipher[1] != "TLSv1.3"
            size = messages.complete(self._kept, encrypted=is_encrypted)
            if size is None or (not size and len(self._kept) > MAX_HANDSHAKE):
                self._fail(handshake_fault(TOO_LONG))
                return
            if not size:
                return
            complete, self._kept = self._kept[:size], self._kept[size:]
            if not is_chosen and not self._choose(complete):
                return
            super()._handshake_bytes(complete)

    def _handshake_done(self) -> None:
        self._messages = None
        self._slots.release(self)
        self._on_handshake(self._side, self._ssl)

    def _handshake_failed(self, error: Exception) -> None:
        assert isinstance(error, ssl.SSLError)
        self._slots.release(self)
        self._on_handshake(self._side, error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._slots.release(self)
        super().connection_lost(exc)


class ClientTls(TlsTransport):
    """TLS of a broker's connection."""

    __slots__ = ("_connected", "_lingering")

    def __init__(
        self,
        side: BufferedSide,
        buffer: ReadBuffer,
        wait: Wait,
        context: ssl.SSLContext,
        host: str,
        connected: "asyncio.Future[None]",
    ) -> None:
        """`connected` gets the result of the handshake: None on success, or the error."""
        super().__init__(side, buffer, wait)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._connected = connected
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake on a connected socket."""
        super().connection_made(transport)
        self._shake_hands()

    def _handshake_done(self) -> None:
        if not self._connected.done():
            self._connected.set_result(None)
            self._side.connection_made(cast(asyncio.Transport, self))
        else:
            self.abort()  # no task waits for it any more

    def close(self) -> None:
        """Send close_notify, and close the socket when the broker has closed its side.

        If the broker sent more to a closed socket, such as session tickets, the kernel would reset
        the connection and drop unsent bytes.
        """
        if self._closing or self._ended or not self._established:
            super().close()
            return
        self._closing = True
        self._notify()
        self._socket.write_eof()
        if not self._socket.is_reading():
            self._socket.resume_reading()
        self._lingering = self._connected.get_loop().call_later(LINGER, self._socket.abort)

    def write_eof(self) -> None:
        """Close the connection: with TLS it is not kept half-open for long."""
        self.close()

    def _handshake_failed(self, error: Exception) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, perhaps before its handshake was done."""
        if self._lingering is not None:
            self._lingering.cancel()
        if self._established:
            super().connection_lost(exc)
            return
        self._closing = True
        if not self._connected.done():
            self._connected.set_exception(ConnectionResetError(CLOSED_IN_HANDSHAKE))
