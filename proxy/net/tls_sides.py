"""TLS transports of the two sides: clients of the proxy, and brokers."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from proxy.connection.frames import Bytes
from proxy.net.handshake_errors import CLOSED_IN_HANDSHAKE, HandshakeResult, WrongProtocol
from proxy.net.read_buffer import BufferedSide, ReadBuffer
from proxy.net.tls_transport import TlsTransport, Wait

LINGER: Final = 5.0
"""Seconds in which a broker must close its side of a connection that the proxy has closed."""


class ServerTls(TlsTransport):
    """TLS of a client's connection."""

    __slots__ = ("_first", "_on_handshake")

    def __init__(
        self,
        side: BufferedSide,
        buffer: ReadBuffer,
        wait: Wait,
        context: ssl.SSLContext,
        on_handshake: Callable[[BufferedSide, HandshakeResult], None],
    ) -> None:
        """`on_handshake` gets `side` with the completed handshake, or with what came instead, and
        then closes."""
        super().__init__(side, buffer, wait)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._on_handshake = on_handshake
        self._first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a client that connected, before its handshake."""
        super().connection_made(transport)
        self._side.connection_made(cast(asyncio.Transport, self))

    def _handshake_bytes(self, data: Bytes) -> None:
        if self._first:
            self._first = False
            protocol = WrongProtocol.by_first_bytes(data)
            if protocol is not WrongProtocol.TLS:
                self._ended = True
                self._on_handshake(self._side, protocol)
                return
        super()._handshake_bytes(data)

    def _handshake_done(self) -> None:
        self._on_handshake(self._side, self._ssl)

    def _handshake_failed(self, error: Exception) -> None:
        assert isinstance(error, ssl.SSLError)
        self._on_handshake(self._side, error)


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
        """`connected` gets the result of the handshake: None, or the error that it failed with."""
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

        If the broker sends more meanwhile, such as session tickets, to a closed socket, the kernel
        resets the connection, and drops bytes that it has not sent yet.
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
        """Send no more: TLS has no half of a connection that stays open for long."""
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
