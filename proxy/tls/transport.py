"""TLS between a socket and a side of the relay, to which it is the transport it would have had.

Why not the event loop's own: with it a connection exists only once its handshake is done, so that
strangers are neither counted nor timed; it closes at once what has been half closed, unread
requests included (RFC 8446 section 6.1 lets the other side finish); and it has nowhere to say what
came instead of a handshake. Laws:

- A server's side is told of its connection before the handshake, so that limits and deadlines hold
  from the first byte; a client's after it, so that nothing is said to who may be somebody else.
- What one read brings is decrypted as a whole, much of it into the worker's buffer, and handed on
  in one call: a side that pauses then leaves nothing behind but a part of a record.
- What is written is encrypted at once, so no buffer of the writer stays referenced; whether the
  peer takes it, is the socket's transport's business and is passed on as it is.
- The end of a stream is the end, with a close_notify or without: Kafka's frames say their length.
  What comes behind it, or behind a handshake that failed, is dropped: OpenSSL would never read it.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from proxy.bulk import BULK_READ, ReadBuffer, Side, carry_bulk
from proxy.frames import LONG_WRITE, Bytes
from proxy.tls.strangers import HANGS_UP, Met, Stranger

CIPHER_BYTES: Final = 262_144
"""Of one read of encrypted bytes; with a record from before it fits into the worker's buffer."""
PIECE: Final = 65_536
"""Of it given to OpenSSL at once, which keeps as much memory for the connection."""
RECORD: Final = 16_384
"""Largest plaintext of one record (RFC 8446 section 5.1)."""
LONGEST_RECORD: Final = RECORD + 2_053
"""As it is sent (RFC 5246 section 6.2.3): so many bytes have a whole one among them."""
RECORDS_PER_WRITE: Final = 4
LINGER: Final = 5.0
"""Seconds in which a broker must close its side of a connection that is closed."""

_cipher = ReadBuffer(CIPHER_BYTES)
"""Of all bulk of a worker: nobody else runs until what was read is in OpenSSL's hands."""


class TlsTransport(asyncio.Protocol):
    """The protocol of a socket, and the transport of a side. See the head of this module."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_ended",
        "_established",
        "_incoming",
        "_outgoing",
        "_side",
        "_socket",
        "_ssl",
        "_torn",
    )

    def __init__(self, side: Side, buffer: ReadBuffer) -> None:
        self._side = side
        self._buffer = buffer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject
        self._socket: asyncio.Transport
        self._established = False
        self._ended = False
        self._closing = False
        self._torn = True
        """Whether OpenSSL may hold a part of a record."""

    # From the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: Bytes) -> None:
        """Encrypted bytes arrived: in an object of their own, or in the buffer of bulk."""
        if self._closing or self._ended:
            return
        if not self._established:
            self._greet(data)
        elif len(data) <= RECORD:
            self._incoming.write(data)
            self._decrypt_little(RECORD if self._torn else len(data))
        else:
            self._decrypt_bulk(memoryview(data))
            if len(data) >= BULK_READ and type(data) is bytes:
                carry_bulk(self._socket, self, _cipher)

    @property
    def peer_owes(self) -> bool:
        """Nothing waits in the buffer: what was read is decrypted."""
        return False

    def eof_received(self) -> bool:
        """The peer has sent FIN."""
        if not self._established:
            return False
        self._end()
        return not self._closing

    def pause_writing(self) -> None:
        """The peer does not read fast enough."""
        if self._established:
            self._side.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._established:
            self._side.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._closing = True
        self._side.connection_lost(exc)

    # Between the two

    def _greet(self, data: Bytes) -> None:
        """Encrypted bytes of a handshake arrived, or what else a stranger sends."""
        self._incoming.write(data)
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # an alert tells the peer why
            self._ended = True
            self._failed(error)
            return
        self._established = True
        self._flush()
        self._greeted()
        if self._incoming.pending and not self._closing:  # as much as a read, perhaps
            self._decrypt_bulk(memoryview(self._incoming.read()))

    def _greeted(self) -> None:
        """The handshake is done."""

    def _failed(self, error: Exception) -> None:
        """The handshake failed."""
        raise NotImplementedError

    # OpenSSL holds nothing but a part of a record when `_incoming` is empty: a record is read as a
    # whole, and nothing is read ahead.

    def _decrypt_little(self, room: int) -> None:
        """Hand on what `_incoming` has; its first record fits in `room` bytes."""
        incoming, read = self._incoming, self._ssl.read
        data, ended = b"", False
        self._torn = False
        try:
            data = read(room)
            ended = not data
            while (room := incoming.pending) and not ended:
                record = read(room)
                data += record  # few, or short: no list for the one that it mostly is
                ended = not record
        except ssl.SSLWantReadError:
            self._torn = True
        except ssl.SSLError:
            self._ended = ended = True  # what came before it is genuine
        if self._outgoing.pending:
            self._flush()
        if data:
            self._side.data_received(data)
        if ended:
            self._finish()

    def _decrypt_bulk(self, data: memoryview) -> None:
        """Hand on what was read, in the worker's buffer."""
        view, incoming = self._buffer.view, self._incoming
        read_into = cast(Callable[[int, memoryview], int], self._ssl.read)
        size, ended = 0, False
        self._torn = True
        for start in range(0, len(data), PIECE):
            incoming.write(data[start : start + PIECE])
            # That a record is not whole is an exception, and costs as much: once per read will do.
            least = LONGEST_RECORD if start + PIECE < len(data) else 0
            try:
                while incoming.pending > least and not ended:
                    count = read_into(RECORD, view[size:])
                    size += count
                    ended = not count
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                self._ended = ended = True  # what came before it is genuine
            if ended:
                break
        if self._outgoing.pending:
            self._flush()
        if size:
            self._hand_on(view, size)
        if ended:
            self._finish()

    def _finish(self) -> None:
        """The stream has ended, or has gone bad."""
        if self._ended and not self._closing:
            self.abort()
        elif not self._closing:
            self._end()

    def _hand_on(self, view: memoryview, size: int) -> None:
        if size <= LONG_WRITE:
            self._side.data_received(bytes(view[:size]))
            return
        self._side.data_received(view[:size])
        if self._side.peer_owes:
            self._buffer.give_up()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if not self._side.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    # From the side: what asyncio.Transport has, as far as a side needs it

    def write(self, data: Bytes) -> None:
        """Encrypt and send."""
        if self._closing:
            return
        try:
            if len(data) <= RECORD:
                self._ssl.write(data)
            else:
                self._write_long(memoryview(data))
        except ssl.SSLError:
            self.abort()
            return
        self._socket.write(self._outgoing.read())

    def _write_long(self, data: memoryview) -> None:
        """Write record by record, in portions that stay in the processor's cache."""
        start, records = 0, 0
        while True:
            start += self._ssl.write(data[start : start + RECORD])
            if start == len(data):
                return
            records += 1
            if records % RECORDS_PER_WRITE == 0:
                self._socket.write(self._outgoing.read())

    def close(self) -> None:
        """Say close_notify and close the socket, once what was written has left."""
        if self._closing:
            return
        self._closing = True
        if self._established:
            self._notify()
        self._socket.close()

    def _notify(self) -> None:
        with suppress(ssl.SSLError):  # mostly: the peer's own close_notify is not there yet
            self._ssl.unwrap()
        self._flush()

    def abort(self) -> None:
        """Drop the connection."""
        self._closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        """Whether it is over, or about to be."""
        return self._closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        """Leave what comes in the kernel."""
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when `pause_writing` comes."""
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that the kernel has not taken."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket; `ssl_object` tells that there is TLS."""
        return self._ssl if name == "ssl_object" else self._socket.get_extra_info(name, default)


class ServerTls(TlsTransport):
    """Of a client of ours."""

    __slots__ = ("_first", "_meet")

    def __init__(
        self, side: Side, buffer: ReadBuffer, context: ssl.SSLContext, meet: Callable[[Met], None]
    ) -> None:
        """`meet` is told of a good handshake, or of what came instead, and ends that."""
        super().__init__(side, buffer)
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
            stranger = Stranger.by_first_bytes(data)
            if stranger is not Stranger.TLS:
                self._ended = True
                self._meet(stranger)
                return
        super()._greet(data)

    def _greeted(self) -> None:
        self._meet(self._ssl)

    def _failed(self, error: Exception) -> None:
        assert isinstance(error, ssl.SSLError)
        self._meet(error)


class ClientTls(TlsTransport):
    """Of a broker's connection."""

    __slots__ = ("_connected", "_lingering")

    def __init__(
        self,
        side: Side,
        buffer: ReadBuffer,
        context: ssl.SSLContext,
        host: str,
        connected: "asyncio.Future[None]",
    ) -> None:
        """`connected` is done when the handshake is, or has the error that it met."""
        super().__init__(side, buffer)
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
        """Say close_notify, and close the socket when the broker has closed its side.

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
