"""The sockets of the data path: feed a connection what was read, carry out what it says.

The only module that touches transports. What was learnt about uvloop:

- Reads go into one large buffer per worker: between `get_buffer` and the return of
  `buffer_updated` nobody else runs. `get_buffer` must never return an empty buffer.
- With a high-water mark of 0 a write goes to the kernel at once. What the kernel does not take
  stays referenced by the transport, so the buffer is then given up for a new one.
- `transport.close()` waits until everything was written, so a client that does not read could
  keep it open for ever: `LINGER` bounds that.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from proxy.commands import (
    Close,
    ConnectToBroker,
    Consult,
    PauseBroker,
    PauseClient,
    ResumeBroker,
    ResumeClient,
    SeekKeys,
)
from proxy.connection import Connection

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 262_144
"""Of the read buffer that all connections of a worker share."""
LINGER: Final = 5.0
"""Seconds in which a client must take the last bytes written to it."""


class ReadBuffer:
    """The bytes that every read of a worker goes to."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_BYTES))

    def give_up(self) -> None:
        """Leave the present bytes to whoever still refers to them."""
        self.view = memoryview(bytearray(BUFFER_BYTES))


class Shell(Protocol):
    """What the relay needs of its worker."""

    loop: asyncio.AbstractEventLoop
    buffer: ReadBuffer

    def connect(self, client: "ClientSide") -> None:
        """Open the upstream connection; call `broker_connected` or `broker_unreachable`."""
        ...

    def seek_keys(self, client: "ClientSide") -> None:
        """Look for newer keys of the connection's listener; call `keys_sought`."""
        ...

    def consult(self, client: "ClientSide", question: Consult) -> None:
        """Have `question` answered off the loop; call `consulted`."""
        ...

    def opened(self, client: "ClientSide") -> Connection | None:
        """A client connected; None refuses it."""
        ...

    def closed(self, client: "ClientSide") -> None:
        """A client's connection is over."""
        ...


class ClientSide(asyncio.BufferedProtocol):
    """The client's half of a relayed connection, and owner of the broker's half."""

    __slots__ = ("_broker", "_buffer", "_shell", "_transport", "connection")

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._buffer = shell.buffer
        self._broker: BrokerSide | None = None
        self._transport: asyncio.Transport | None = None
        self.connection: Connection | None = None

    @property
    def peer_host(self) -> str:
        """Address of the client, without its port."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else "unknown"

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self.connection = self._shell.opened(self)
        if self.connection is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next read goes: behind what was left of the last one."""
        view = self._buffer.view
        rest = self.connection.requests.rest if self.connection else b""
        if rest:
            view[: len(rest)] = rest
            return view[len(rest) :]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the client arrived."""
        connection = self.connection
        if connection is None or connection.closed:
            return
        now = self._shell.loop.time()
        end = len(connection.requests.rest) + nbytes
        try:
            connection.client_bytes(self._buffer.view, end, now)
        except Exception:
            self.broke(now)
        if connection.commands:
            self.carry_out()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self.tell(lambda connection, now: connection.client_full(True, now))

    def resume_writing(self) -> None:
        """The client reads again."""
        self.tell(lambda connection, now: connection.client_full(False, now))

    def eof_received(self) -> bool:
        """The client will send no more: like Kafka, take it as a close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client's connection is over."""
        if self.connection is None:
            return
        self.tell(lambda connection, now: connection.client_closed(now))
        if self._broker is not None:
            self._broker.abort()
        self._shell.closed(self)

    # From the worker

    def broker_connected(self, broker: "BrokerSide") -> None:
        """The upstream connection is there."""
        assert self.connection is not None
        if self.connection.closed:
            broker.abort()
            return
        self._broker = broker
        self.tell(lambda connection, now: connection.broker_connected(broker.write, now))

    def tell(self, what: Callable[[Connection, float], None]) -> None:
        """Tell the connection what happened, and carry out what it says."""
        connection = self.connection
        if connection is None or connection.closed:
            return
        now = self._shell.loop.time()
        try:
            what(connection, now)
        except Exception:
            self.broke(now)
        if connection.commands:
            self.carry_out()

    def broke(self, now: float) -> None:
        """The proxy made a mistake: log the place, close the connection."""
        assert self.connection is not None
        log.exception("connection %s: a mistake of the proxy", self.connection.connection_id)
        self.connection.broke(now)

    # Commands

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the client now, or as soon as it takes it."""
        transport = self._transport
        assert transport is not None
        transport.write(data)
        if transport.get_write_buffer_size() and isinstance(data, memoryview):
            self._buffer.give_up()

    def carry_out(self) -> None:
        """Do what the connection asked for, in its order."""
        assert self.connection is not None
        assert self._transport is not None
        commands, self.connection.commands = self.connection.commands, []
        for command in commands:
            match command:
                case PauseClient():
                    self._transport.pause_reading()
                case ResumeClient():
                    self._transport.resume_reading()
                case PauseBroker() | ResumeBroker():
                    if self._broker is not None:
                        self._broker.read(isinstance(command, ResumeBroker))
                case ConnectToBroker():
                    self._shell.connect(self)
                case SeekKeys():
                    self._shell.seek_keys(self)
                case Consult():
                    self._shell.consult(self, command)
                case Close():
                    self._close(command)

    def _close(self, close: Close) -> None:
        if self._broker is not None:
            self._broker.abort()
        if close.delay:
            self._shell.loop.call_later(close.delay, self._say_farewell, close.farewell)
        else:
            self._say_farewell(close.farewell)

    def _say_farewell(self, frame: bytes | None) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if frame is not None:
            self._transport.write(frame)
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._shell.loop.call_later(LINGER, self._transport.abort)


class BrokerSide(asyncio.BufferedProtocol):
    """The broker's half of a relayed connection."""

    __slots__ = ("_buffer", "_client", "_connection", "_loop", "_transport")

    def __init__(self, client: ClientSide, shell: Shell) -> None:
        assert client.connection is not None
        self._client = client
        self._connection = client.connection
        self._buffer = shell.buffer
        self._loop = shell.loop
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The upstream connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._client.broker_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next read goes: behind what was left of the last one."""
        view = self._buffer.view
        rest = self._connection.responses.rest
        if rest:
            view[: len(rest)] = rest
            return view[len(rest) :]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the broker arrived."""
        connection = self._connection
        if connection.closed:
            return
        now = self._loop.time()
        end = len(connection.responses.rest) + nbytes
        try:
            connection.broker_bytes(self._buffer.view, end, now)
        except Exception:
            self._client.broke(now)
        if connection.commands:
            self._client.carry_out()

    def pause_writing(self) -> None:
        """The broker does not read fast enough."""
        self._client.tell(lambda connection, now: connection.broker_full(True, now))

    def resume_writing(self) -> None:
        """The broker reads again."""
        self._client.tell(lambda connection, now: connection.broker_full(False, now))

    def eof_received(self) -> bool:
        """The broker will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The upstream connection is over."""
        self._client.tell(lambda connection, now: connection.broker_closed(now))

    def write(self, data: memoryview) -> None:
        """Send `data` to the broker now, or as soon as it takes it."""
        transport = self._transport
        assert transport is not None
        transport.write(data)
        if transport.get_write_buffer_size():
            self._buffer.give_up()

    def read(self, on: bool) -> None:
        """Read from the broker, or leave it."""
        assert self._transport is not None
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def abort(self) -> None:
        """Drop the upstream connection."""
        if self._transport is not None:
            self._transport.abort()
