"""TLS transport between a socket and one side of the relay.

The event loop's own TLS has three faults here: it reports a connection only once its handshake is
done, so clients that never finish it are neither counted nor timed; it closes a half-closed
connection at once, including unread requests (RFC 8446 section 6.1 lets the other side finish); and
it cannot report which other protocol a client speaks. Rules:

- A server's side gets its connection before the handshake, so that limits and deadlines apply from
  the first byte; a client's side after it, so that nothing is sent to an unverified peer.
- All bytes of one read are decrypted at once, long reads into the worker's buffer, and handed on in
  one call. When the side pauses, only a part of a record is left undecrypted.
- Written bytes are encrypted at once, so no buffer of the writer stays referenced; backpressure
  is that of the socket's transport.
- OpenSSL's own session tickets and key updates are sent with the side's answer to the same read, if
  there is one: one system call and one packet.
- A peer whose bytes are expensive to decrypt waits for another iteration of the loop after each
  piece (`proxy.net.tls_input`); the rest of the read is kept meanwhile, and no more is read.
- A stream may end with a close_notify or without: Kafka's frames have their length. Bytes after its
  end, or after a failed handshake, are dropped: OpenSSL would never read them.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

from proxy.connection.frames import LONG_WRITE, Bytes
from proxy.net.read_buffer import BULK_READ, BufferedSide, ReadBuffer, read_in_bulk
from proxy.net.sockets import peer_address
from proxy.net.tls_input import (
    FIRST_PIECE,
    MAX_HANDSHAKE,
    MAX_RECORD,
    MAX_RECORDS,
    MAX_UNREAD_ANSWERS,
    PIECE,
    RECORD,
    Pace,
)
from proxy.quota.model import address_group

CIPHER_BYTES: Final = 262_144
"""Size in bytes of one read of ciphertext; with a record from before it fits into the worker's
buffer."""
RECORDS_PER_WRITE: Final = 4
"""Number of records that are encrypted before they are written to the socket."""
TOO_LONG: Final = "EXCESSIVE_MESSAGE_SIZE"
"""OpenSSL's reason for a message that is too long."""
MAX_WAITING: Final = 16_777_216
"""Largest number of bytes in a worker that were read and wait to be decrypted. The limit for
unauthenticated clients is half of it, so that they cannot cause authenticated ones to be closed."""

Wait = Callable[[str, Callable[[], None]], None]
"""Function `wait(group, go_on)` that calls `go_on` in a later iteration of the event loop, the
groups of addresses in rotation."""

_bulk_ciphertext = ReadBuffer(CIPHER_BYTES)
"""Shared buffer for long reads of ciphertext: no other code runs until its bytes are given to
OpenSSL, or copied."""


class _Waiting:
    """Ciphertext of all connections of a worker that waits to be decrypted."""

    total_bytes: ClassVar[int] = 0


class TlsTransport(asyncio.Protocol):
    """Protocol of a socket, and transport of a side of the relay."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_ended",
        "_established",
        "_handshake_size",
        "_has_partial_record",
        "_incoming",
        "_is_paused",
        "_kept",
        "_outgoing",
        "_pace",
        "_peer_is_slow",
        "_rest",
        "_side",
        "_socket",
        "_ssl",
        "_unread_answers",
        "_wait",
        "_waits",
    )
    __deletable__ = ("_incoming", "_outgoing", "_ssl")

    def __init__(self, side: BufferedSide, buffer: ReadBuffer, wait: Wait) -> None:
        self._side = side
        self._buffer = buffer
        self._wait = wait
        self._pace = Pace()
        self._rest = b""
        """Ciphertext that was read and waits to be decrypted."""
        self._waits = False
        """True if decryption continues in a later iteration of the event loop."""
        self._is_paused = False
        """True if the side has paused reading."""
        self._peer_is_slow = False
        """True if the peer does not read fast enough."""
        self._unread_answers = 0
        """Number of answers to key updates since the peer stopped reading."""
        self._kept = b""
        """Bytes of the handshake that were not passed to OpenSSL yet."""
        self._handshake_size = 0
        """Size in bytes of the peer's part of the handshake so far."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject
        self._socket: asyncio.Transport
        self._established = False
        """True once the handshake is done."""
        self._ended = False
        """True once the peer's stream has ended, or is invalid."""
        self._closing = False
        """True once this side closes the connection."""
        self._has_partial_record = True
        """True if OpenSSL may hold a part of a record."""

    # From the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connected socket."""
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: Bytes) -> None:
        """Decrypt bytes that were read: a bytes object, or a view of the shared buffer."""
        if self._closing or self._ended:
            return
        if not self._established:
            self._handshake_bytes(data)
        elif len(data) <= self._pace.piece and len(data) <= RECORD:
            self._incoming.write(data)
            self._decrypt_short(len(data))
        else:
            self._decrypt_bulk(memoryview(data))
            if len(data) >= BULK_READ and type(data) is bytes:
                read_in_bulk(self._socket, self, _bulk_ciphertext)

    @property
    def peer_has_unsent(self) -> bool:
        """Always False: ciphertext is decrypted or copied at once, which frees the buffer."""
        return False

    def eof_received(self) -> bool:
        """Handle a FIN of the peer."""
        if not self._established:
            return False
        self._end()
        return not self._closing

    def pause_writing(self) -> None:
        """Handle a peer that does not read fast enough."""
        self._peer_is_slow = True
        if self._established:
            self._side.pause_writing()

    def resume_writing(self) -> None:
        """Handle a peer that reads again."""
        self._peer_is_slow = False
        self._unread_answers = 0
        if self._established:
            self._side.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, and release OpenSSL's memory at once: a closed
        connection is part of a reference cycle, so the garbage collector frees it late."""
        self._closing = True
        self._take_rest()
        del self._incoming, self._outgoing
        with suppress(AttributeError):  # not set before a client's handshake begins
            del self._ssl
        self._side.connection_lost(exc)

    # Between the two

    def _handshake_bytes(self, data: Bytes) -> None:
        """Process bytes of a handshake."""
        rest = memoryview(data)
        while rest and not (self._established or self._ended):
            self._handshake_size += self._incoming.write(rest[:FIRST_PIECE])
            rest = rest[FIRST_PIECE:]
            self._shake_hands(rest)

    def _shake_hands(self, rest: Bytes = b"") -> None:
        """Continue the handshake; `rest` has bytes that OpenSSL has not seen."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._handshake_size > MAX_HANDSHAKE:
                self._fail(handshake_fault(TOO_LONG))
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert for the peer
            self._fail(error)
            return
        self._established = True
        self._handshake_done()
        rest, self._kept = self._incoming.read() + rest + self._kept, b""  # perhaps a long read
        if rest and not self._closing:
            self._decrypt_bulk(memoryview(rest))
        if not self._closing:  # session tickets, unless they were sent with an answer
            self._flush()

    def _handshake_done(self) -> None:
        """Handle a completed handshake."""

    def _fail(self, error: Exception) -> None:
        """End the handshake."""
        self._ended, self._kept = True, b""
        self._handshake_failed(error)

    def _handshake_failed(self, error: Exception) -> None:
        """Handle a failed handshake."""
        raise NotImplementedError

    # When `_incoming` is empty, OpenSSL holds at most a part of a record: each call reads a whole
    # record, and OpenSSL does not read ahead.

    def _decrypt_short(self, taken: int) -> None:
        """Decrypt the bytes in `_incoming`, and hand them on; the last read added `taken` bytes."""
        incoming, read = self._incoming, self._ssl.read
        data, ended = b"", False
        room = RECORD if self._has_partial_record else taken
        self._has_partial_record = False
        try:
            data = read(room)
            ended = not data
            while (room := incoming.pending) and not ended:
                record = read(room)
                data += record  # no list: there are few records, mostly one
                ended = not record
        except ssl.SSLWantReadError:
            self._has_partial_record = True
        except ssl.SSLError:
            self._ended = ended = True  # the data before it are authentic
        to_answer = self._outgoing.pending
        if data:
            self._side.data_received(data)
        if to_answer:
            self._answer()
        if ended:
            self._finish()
        elif (2 * len(data) < taken or self._pace.without_data) and not self._pace.may_continue(
            taken, len(data)
        ):
            self._wait_for_turn(memoryview(b""))

    def _decrypt_bulk(self, data: memoryview) -> None:
        """Decrypt a long read into the worker's buffer, and hand the data on."""
        view, incoming, pace = self._buffer.view, self._incoming, self._pace
        read_into = cast(Callable[[int, memoryview], int], self._ssl.read)
        start, size, records, ended, goes_on = 0, 0, 0, False, True
        self._has_partial_record = True
        while start < len(data) and goes_on and not ended:
            before, held = size, incoming.pending
            given = incoming.write(data[start : start + pace.piece])
            start += given
            # An incomplete record raises, which is expensive: let it happen only once per read.
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
                self._ended = ended = True  # the data before it are authentic
            taken = held + given - incoming.pending
            goes_on = pace.may_continue(taken, size - before) and records <= MAX_RECORDS
        to_answer = self._outgoing.pending
        if size:
            self._hand_on(view, size)
        if to_answer:
            self._answer()
        if ended:
            self._finish()
        elif not goes_on:
            self._wait_for_turn(data[start:])

    def _wait_for_turn(self, rest: memoryview) -> None:
        """Keep the rest of a read until other connections have had their turn."""
        if self._closing or self._ended:
            return
        most = MAX_WAITING if self._pace.largest == PIECE else MAX_WAITING // 2
        if self._pace.must_close or _Waiting.total_bytes + len(rest) > most:
            self.abort()
            return
        self._rest = bytes(rest)
        _Waiting.total_bytes += len(rest)
        self._waits = True
        self._socket.pause_reading()
        self._wait(self._group, self._go_on)

    @property
    def _group(self) -> str:
        """Group of the peer's address."""
        return address_group(peer_address(self._socket) or "")

    def _go_on(self) -> None:
        """Continue with the ciphertext that waits."""
        self._waits = False
        rest = self._take_rest()
        if self._closing or self._ended:
            return
        if rest:
            self._decrypt_bulk(memoryview(rest))
        if not (self._waits or self._is_paused or self._closing):
            self._socket.resume_reading()

    def _take_rest(self) -> bytes:
        """Return the kept ciphertext, and clear it."""
        rest, self._rest = self._rest, b""
        _Waiting.total_bytes -= len(rest)
        return rest

    def _finish(self) -> None:
        """Handle the end of the stream, or invalid records in it."""
        if self._ended and not self._closing:
            self.abort()
        elif not self._closing:
            self._end()

    def _hand_on(self, view: memoryview, size: int) -> None:
        if size <= LONG_WRITE:
            self._side.data_received(bytes(view[:size]))
            return
        self._side.data_received(view[:size])
        if self._side.peer_has_unsent:
            self._buffer.replace()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if not self._side.eof_received():
            self.close()

    def _answer(self) -> None:
        """Send OpenSSL's own key update, its answer to the peer's, unless it was sent with the
        side's answer."""
        if self._closing:
            return
        if self._peer_is_slow:
            self._unread_answers += 1
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.abort()
                return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    # From the side: the methods of asyncio.Transport that a side uses

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
        """Write several records at a time, few enough for the processor's cache."""
        start, records = 0, 0
        while True:
            start += self._ssl.write(data[start : start + RECORD])
            if start == len(data):
                return
            records += 1
            if records % RECORDS_PER_WRITE == 0:
                self._socket.write(self._outgoing.read())

    def close(self) -> None:
        """Send close_notify, and close the socket once everything is sent."""
        if self._closing:
            return
        self._closing = True
        if self._established:
            self._notify()
        self._socket.close()

    def _notify(self) -> None:
        with suppress(ssl.SSLError):  # mostly: the peer's own close_notify has not arrived yet
            self._ssl.unwrap()
        self._flush()

    def abort(self) -> None:
        """Close the connection, and drop unsent bytes."""
        self._closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._is_paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._is_paused = False
        if not self._waits:
            self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which `pause_writing` and `resume_writing` are called."""
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that the kernel has not taken."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information of the socket; as `unread`, the number of bytes that were read and
        wait to be decrypted, rounded up to a record."""
        if name != "unread":
            return self._socket.get_extra_info(name, default)
        part = RECORD if self._has_partial_record else 0
        return len(self._rest) + self._incoming.pending + part


def handshake_fault(reason: str) -> ssl.SSLError:
    """Return the error of a handshake that the proxy ends for `reason`, written like OpenSSL's."""
    error = ssl.SSLError()
    error.reason = reason
    return error
