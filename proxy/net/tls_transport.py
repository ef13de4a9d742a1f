"""TLS transport between a socket and one side of the relay.

The event loop's own TLS has a connection only once its handshake is done, so that clients that
never finish one are neither counted nor timed; it closes at once what has been half closed, unread
requests included (RFC 8446 section 6.1 lets the other side finish); and it cannot report what came
instead of a handshake. Rules:

- A server's side learns of its connection before the handshake, so that limits and deadlines hold
  from the first byte; a client's after it, so that nothing is sent to a peer that is not verified.
- What one read brings is decrypted as a whole, much of it into the worker's buffer, and handed on
  in one call: a side that pauses then leaves nothing behind but a part of a record.
- What is written is encrypted at once, so no buffer of the writer stays referenced; backpressure
  is that of the socket's transport, passed on as it is.
- A peer that makes much work with few bytes waits for another iteration of the loop after each
  piece (`proxy.net.tls_pace`); what was read already is kept meanwhile, and no more is read.
- The end of a stream is the end, with a close_notify or without: Kafka's frames say their length.
  What comes behind it, or behind a handshake that failed, is dropped: OpenSSL would never read it.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

from proxy.connection.frames import LONG_WRITE, Bytes
from proxy.net.read_buffer import BULK_READ, BufferedSide, ReadBuffer, carry_bulk
from proxy.net.tls_pace import (
    MAX_OF_A_GREETING,
    MAX_RECORD,
    MAX_RECORDS,
    MAX_UNREAD_ANSWERS,
    PIECE,
    RECORD,
    Pace,
)

CIPHER_BYTES: Final = 262_144
"""Size in bytes of one read of ciphertext; with a record from before it fits into the worker's
buffer."""
RECORDS_PER_WRITE: Final = 4
MAX_KEPT: Final = 16_777_216
"""Largest number of bytes in a worker that were read, and wait to be decrypted."""

Wait = Callable[[str, Callable[[], None]], None]
"""Function `wait(who, go_on)` that calls `go_on` in a later iteration of the event loop, hosts in
rotation."""

_cipher = ReadBuffer(CIPHER_BYTES)
"""The buffer of all bulk of a worker: no other code runs until its bytes are given to OpenSSL, or
copied."""


class _Kept:
    """Ciphertext that all connections of a worker keep until it can be decrypted."""

    bytes_of_all: ClassVar[int] = 0


class TlsTransport(asyncio.Protocol):
    """Protocol of a socket, and transport of a side. See the module's docstring."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_ended",
        "_established",
        "_greeting",
        "_incoming",
        "_is_full",
        "_is_left",
        "_outgoing",
        "_pace",
        "_rest",
        "_side",
        "_socket",
        "_ssl",
        "_torn",
        "_unread",
        "_wait",
        "_waits",
    )

    def __init__(self, side: BufferedSide, buffer: ReadBuffer, wait: Wait) -> None:
        self._side = side
        self._buffer = buffer
        self._wait = wait
        self._pace = Pace()
        self._rest = b""
        """Ciphertext that was read, and waits to be decrypted."""
        self._waits = False
        self._is_left = False
        """True if the side has paused reading."""
        self._is_full = False
        """True if the peer does not read fast enough."""
        self._unread = 0
        """Number of answers to key updates since then."""
        self._greeting = 0
        """Size of the handshake so far in bytes."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject
        self._socket: asyncio.Transport
        self._established = False
        self._ended = False
        self._closing = False
        self._torn = True
        """True if OpenSSL may hold a part of a record."""

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
        elif len(data) <= self._pace.piece and len(data) <= RECORD:
            self._incoming.write(data)
            self._decrypt_little(len(data))
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
        self._is_full = True
        if self._established:
            self._side.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._is_full = False
        self._unread = 0
        if self._established:
            self._side.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._closing = True
        self._forget()
        self._side.connection_lost(exc)

    # Between the two

    def _greet(self, data: Bytes) -> None:
        """Process bytes of a handshake, or others that a client sends in its place."""
        self._incoming.write(data)
        self._greeting += len(data)
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._greeting > MAX_OF_A_GREETING:
                self._ended = True
                self._failed(_too_long())
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

    def _decrypt_little(self, taken: int) -> None:
        """Hand on what `_incoming` has, the last `taken` bytes read."""
        incoming, read = self._incoming, self._ssl.read
        data, ended = b"", False
        room = RECORD if self._torn else taken
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
            self._answer()
        if data:
            self._side.data_received(data)
        if ended:
            self._finish()
        elif (2 * len(data) < taken or self._pace.barren) and not self._pace.is_worth(
            taken, len(data)
        ):
            self._wait_for_turn(memoryview(b""))

    def _decrypt_bulk(self, data: memoryview) -> None:
        """Hand on what was read, in the worker's buffer."""
        view, incoming, pace = self._buffer.view, self._incoming, self._pace
        read_into = cast(Callable[[int, memoryview], int], self._ssl.read)
        start, size, records, ended, goes_on = 0, 0, 0, False, True
        self._torn = True
        while start < len(data) and goes_on and not ended:
            before, held = size, incoming.pending
            given = incoming.write(data[start : start + pace.piece])
            start += given
            # That a record is not whole is an exception, and costs as much: once per read will do.
            least = MAX_RECORD if pace.piece == PIECE and start < len(data) else 0
            try:
                while incoming.pending > least and not ended:
                    count = read_into(RECORD, view[size:])
                    size += count
                    records += 1
                    ended = not count
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                self._ended = ended = True  # what came before it is genuine
            taken = held + given - incoming.pending
            goes_on = pace.is_worth(taken, size - before) and records <= MAX_RECORDS
        if self._outgoing.pending:
            self._answer()
        if size:
            self._hand_on(view, size)
        if ended:
            self._finish()
        elif not goes_on:
            self._wait_for_turn(data[start:])

    def _wait_for_turn(self, rest: memoryview) -> None:
        """Keep what is left of a read, and let others be served first."""
        if self._closing or self._ended:
            return
        if self._pace.is_hopeless or _Kept.bytes_of_all + len(rest) > MAX_KEPT:
            self.abort()
            return
        self._rest = bytes(rest)
        _Kept.bytes_of_all += len(rest)
        self._waits = True
        self._socket.pause_reading()
        peer = self._socket.get_extra_info("peername")
        self._wait(str(peer[0]) if peer else "", self._go_on)

    def _go_on(self) -> None:
        """Continue with the ciphertext that waits."""
        self._waits = False
        rest = self._forget()
        if self._closing or self._ended:
            return
        if rest:
            self._decrypt_bulk(memoryview(rest))
        if not (self._waits or self._is_left or self._closing):
            self._socket.resume_reading()

    def _forget(self) -> bytes:
        """Keep nothing any more; return what was kept."""
        rest, self._rest = self._rest, b""
        _Kept.bytes_of_all -= len(rest)
        return rest

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

    def _answer(self) -> None:
        """Send what OpenSSL says to what was read, which is that a key was updated."""
        if self._is_full:
            self._unread += 1
            if self._unread > MAX_UNREAD_ANSWERS:
                self.abort()
                return
        self._flush()

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
        """Return whether the connection is closed, or about to be."""
        return self._closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        """Leave what comes in the kernel."""
        self._is_left = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_left = False
        if not self._waits:
            self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when `pause_writing` comes."""
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that the kernel has not taken."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket returns; `ssl_object` shows that there is TLS."""
        return self._ssl if name == "ssl_object" else self._socket.get_extra_info(name, default)


def _too_long() -> ssl.SSLError:
    error = ssl.SSLError()
    error.reason = "EXCESSIVE_MESSAGE_SIZE"
    return error
