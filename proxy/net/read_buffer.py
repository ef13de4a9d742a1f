"""Shared read buffer: one large buffer for all connections of a worker.

Rule: between `get_buffer` and the return of `buffer_updated` no other code runs, so all connections
can share the buffer. If some of its bytes are still unsent then, the worker allocates new memory.
"""

import asyncio
import mmap
from typing import Final, Protocol

from proxy.connection.frames import Bytes

BUFFER_BYTES: Final = 524_288
"""Size in bytes of the read buffer."""
BULK_READ: Final = 131_072
"""Size in bytes of a read after which a side reads into the shared buffer."""


class ReadBuffer:
    """Buffer whose memory is replaced if its bytes are still unsent after a read."""

    __slots__ = ("view",)

    def __init__(self, size: int = BUFFER_BYTES) -> None:
        self.view = _unused_memory(size)

    def replace(self) -> None:
        """Allocate new memory, because the current bytes are still unsent."""
        self.view = _unused_memory(len(self.view))


def _unused_memory(size: int) -> memoryview:
    """Return memory that is allocated on first use, and not shared with forked processes."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class BufferedSide(Protocol):
    """Interface to one half of a relayed connection."""

    @property
    def peer_has_unsent(self) -> bool:
        """True if bytes that were read on this side wait in the buffer to be sent to the peer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a connection that can be written to."""

    def data_received(self, data: Bytes) -> None:
        """Handle bytes that were read: a bytes object, or a view of the shared buffer."""

    def eof_received(self) -> bool | None:
        """Handle the end of the peer's stream; False or None closes the connection."""

    def pause_writing(self) -> None:
        """Handle a peer that does not read fast enough."""

    def resume_writing(self) -> None:
        """Handle a peer that reads again."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""


def read_in_bulk(transport: asyncio.Transport, side: BufferedSide, buffer: ReadBuffer) -> None:
    """Read into `buffer` for `side` from now on."""
    if transport.is_closing():
        return
    transport.set_protocol(BulkReader(side, buffer))
    if transport.is_reading():  # uvloop chooses how to read when reading begins
        transport.pause_reading()
        transport.resume_reading()


class BulkReader(asyncio.BufferedProtocol):
    """Reader of one side into the shared buffer."""

    __slots__ = ("_buffer", "_side")

    def __init__(self, side: BufferedSide, buffer: ReadBuffer) -> None:
        self._side = side
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the memory for the next read; never empty."""
        return self._buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the bytes that were read to the side."""
        self._side.data_received(self._buffer.view[:nbytes])
        if self._side.peer_has_unsent:
            self._buffer.replace()

    def pause_writing(self) -> None:
        """Handle a peer that does not read fast enough."""
        self._side.pause_writing()

    def resume_writing(self) -> None:
        """Handle a peer that reads again."""
        self._side.resume_writing()

    def eof_received(self) -> bool | None:
        """Handle the end of the peer's stream."""
        return self._side.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._side.connection_lost(exc)
