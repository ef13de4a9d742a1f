"""TLS peers: clients of the proxy, and brokers."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from proxy.connection.frames import Bytes
from proxy.net.handshake_errors import HANGS_UP, Met, WrongProtocol
from proxy.net.read_buffer import BufferedSide, ReadBuffer
from proxy.net.tls_transport import TlsTransport, Wait

LINGER: Final = 5.0
"""Seconds in which a broker must close its side of a connection that is closed."""


class ServerTls(TlsTransport):
    """TLS of a client's connection."""

    __slots__ = ("_first", "_meet")

    def __init__(
        self,
        side: BufferedSide,
        buffer: ReadBuffer,
        wait: Wait,
        context: ssl.SSLContext,
        meet: Callable[[Met], None],
    ) -> None:
        """`meet` gets the completed handshake, or what came instead, and ends it then."""
        super().__init__(side, buffer, wait)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._meet = meet
        self._first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; its handshake is to come."""
        super().connection_made(transport)
        self._side.connection_made(cast(asyncio.Transport, self))

    def _greet(self, data: Bytes) -> None:
        if self._first:
            self._first = False
            protocol = WrongProtocol.by_first_bytes(data)
            if protocol is not WrongProtocol.TLS:
                self._ended = True
                self._meet(protocol)
                return
        super()._greet(data)

    def _greeted(self) -> None:
        self._meet(self._ssl)

    def _failed(self, error: Exception) -> None:
        assert isinstance(error, ssl.SSLError)
        self._meet(error)


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
        """`connected` is done when the handshake is, or has the error that it met."""
        super().__init__(side, buffer, wait)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._connected = connected
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The broker's socket is connected: begin the handshake."""
        super().connection_made(transport)
        self._shake_hands()

    def _greeted(self) -> None:
        if not self._connected.done():
            self._connected.set_result(None)
            self._side.connection_made(cast(asyncio.Transport, self))
        else:
            self.abort()  # nobody waits any more

    def close(self) -> None:
        """Send close_notify, and close the socket when the broker has closed its side.

        What it sends meanwhile, its session tickets for one, would meet a closed socket: then the
        kernel resets the connection, and drops what was written and has not left.
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

    def _failed(self, error: Exception) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, perhaps before there was one to speak of."""
        if self._lingering is not None:
            self._lingering.cancel()
        if self._established:
            super().connection_lost(exc)
            return
        self._closing = True
        if not self._connected.done():
            self._connected.set_exception(ConnectionResetError(HANGS_UP))
