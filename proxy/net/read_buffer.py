"""Shared read buffer: one large buffer for all connections of a worker.

Rule: between `get_buffer` and the return of `buffer_updated` nobody else runs, so all may share the
buffer. What then still waits in it to be sent keeps it, and the worker goes on with a new one.
"""

import asyncio
from typing import Final, Protocol

from proxy.connection.frames import Bytes

BUFFER_BYTES: Final = 524_288
"""Size in bytes of the read buffer that all bulk connections of a worker share."""
BULK_READ: Final = 131_072
"""Size in bytes of a read that shows that a side carries bulk."""


class ReadBuffer:
    """Buffer of every bulk read of a worker."""

    __slots__ = ("view",)

    def __init__(self, size: int = BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size))

    def give_up(self) -> None:
        """Leave the present bytes to whoever still refers to them."""
        self.view = memoryview(bytearray(len(self.view)))


class BufferedSide(Protocol):
    """Interface of one half of a relayed connection to its reader."""

    @property
    def peer_owes(self) -> bool:
        """True if bytes that were handed on wait in the buffer to be sent."""
        ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It may write."""

    def data_received(self, data: Bytes) -> None:
        """Bytes arrived: in an object of their own, or in the worker's buffer."""

    def eof_received(self) -> bool | None:
        """The peer will send no more; False: close."""
        ...

    def pause_writing(self) -> None:
        """The peer does not read fast enough."""

    def resume_writing(self) -> None:
        """The peer reads again."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""


def carry_bulk(transport: asyncio.Transport, side: BufferedSide, buffer: ReadBuffer) -> None:
    """Read into `buffer` for `side` from now on."""
    if transport.is_closing():
        return
    transport.set_protocol(BulkReader(side, buffer))
    if transport.is_reading():  # the way of reading is chosen when reading begins
        transport.pause_reading()
        transport.resume_reading()


class BulkReader(asyncio.BufferedProtocol):
    """Reader of one side into the worker's buffer."""

    __slots__ = ("_buffer", "_side")

    def __init__(self, side: BufferedSide, buffer: ReadBuffer) -> None:
        self._side = side
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the memory for the next read; never empty."""
        return self._buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        self._side.data_received(self._buffer.view[:nbytes])
        if self._side.peer_owes:
            self._buffer.give_up()

    def pause_writing(self) -> None:
        """The peer does not read fast enough."""
        self._side.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._side.resume_writing()

    def eof_received(self) -> bool | None:
        """The peer will send no more."""
        return self._side.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._side.connection_lost(exc)
