"""Relay of sockets: passes bytes to a connection, and carries out its commands.

It is the only module of the data path that uses transports. Properties of uvloop that shape it:

- Small reads arrive as bytes objects (`data_received`), which are handed on as they are: one call
  per read and no copy. A side with long reads reads into one large buffer per worker instead
  (`proxy/net/read_buffer.py`).
- A write goes to the kernel at once, unless an earlier one is pending; gathering an iteration's
  short writes costs more (`benchmarks/README.md`). Bytes that the kernel has not taken stay
  referenced by the transport, so a read buffer that holds them is replaced.
- The loop's own time is updated once per iteration, in milliseconds; `monotonic` is exact.
- `transport.close()` waits until everything is written, so a client that does not read could keep
  the connection open forever: `LINGER` bounds that.
"""

import asyncio
import fcntl
import logging
import sys
import termios
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol, cast

from proxy.connection.commands import (
    AwaitMemory,
    Close,
    CloseReason,
    CloseSideConnection,
    Command,
    CountUnread,
    MoveToSideConnection,
    PauseBroker,
    PauseClient,
    ResumeBroker,
    ResumeClient,
    WakeAt,
)
from proxy.connection.connection import Connection, finishing
from proxy.connection.frames import LONG_WRITE, Bytes
from proxy.net.handshake_errors import NEVER_KAFKA, WrongProtocol
from proxy.net.read_buffer import BULK_READ, ReadBuffer, read_in_bulk
from proxy.net.sockets import bound_receive_buffer, peer_address
from proxy.net.tls_sides import ServerTls
from proxy.net.tls_transport import TlsTransport

log = logging.getLogger(__name__)

monotonic: Final = time.monotonic
"""Clock in seconds; a constant, because compiled code looks up an imported name at each use."""

_TIMER_CONTEXT: Final = Context()
"""Context for the timers of all connections, which use no context variables; a copy of the current
context for each timer would take 80 bytes."""

LINGER: Final = 5.0
"""Seconds within which a peer must read its last bytes, or close its side once the proxy has closed
the other one."""


class NotServed:
    """Result for a client that is not served; the shell closes it after a delay."""


class RelayHost(Protocol):
    """Interface of the relay to its shell, a `proxy.worker.endpoint.Endpoint`."""

    loop: asyncio.AbstractEventLoop
    """The worker's event loop."""
    buffer: ReadBuffer
    """The read buffer that all connections of the worker share."""

    def carry_out(self, client: "ClientSide", command: Command) -> None:
        """Carry out a command that needs more than the sockets.

        Its result is passed to the connection by `client.call`, or `broker_connected`.
        """

    def opened(self, client: "ClientSide") -> Connection | NotServed | None:
        """Return the connection of a client that connected; None refuses it."""

    def closed(self, client: "ClientSide") -> None:
        """Handle the end of a client's connection."""

    def wrong_protocol(self, client: "ClientSide", protocol: WrongProtocol) -> None:
        """Handle a client that began with another protocol, and was closed."""


class _Side(asyncio.Protocol):
    """Common part of both halves of a relayed connection."""

    __slots__ = ("_buffer", "_is_tls", "_loop", "_transport")

    def __init__(self, shell: RelayHost) -> None:
        self._buffer = shell.buffer
        self._loop = shell.loop
        self._is_tls = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connected socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=LONG_WRITE)
        self._is_tls = isinstance(transport, TlsTransport)

    @property
    def write(self) -> Callable[[Bytes], None]:
        """Function that sends bytes."""
        assert self._transport is not None
        return self._transport.write

    @property
    def has_unsent(self) -> bool:
        """True if bytes wait to be sent, perhaps in a read buffer."""
        if self._transport is None or self._is_tls:
            return False  # encrypted bytes are copies
        return self._transport.get_write_buffer_size() > 0

    @property
    def peer_has_unsent(self) -> bool:
        """True if bytes that were read on this side wait to be sent to the peer."""
        raise NotImplementedError

    def data_received(self, data: Bytes) -> None:
        """Handle bytes that were read: a bytes object, or a view of the shared buffer."""
        raise NotImplementedError

    def read(self, on: bool) -> None:
        """Resume reading from the socket, or pause it."""
        assert self._transport is not None
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection once everything is sent, after `LINGER` at the latest."""
        if self._transport is None:
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER, self._transport.abort)


class ClientSide(_Side):
    """Client's half of a relayed connection, which owns the broker's half."""

    __slots__ = (
        "_address",
        "_broker",
        "_shell",
        "_side",
        "_timer",
        "_wakes_at",
        "connection",
        "dialled",
    )

    def __init__(self, shell: RelayHost, address: str = "") -> None:
        """`address`: the client's, if a load balancer has named it; empty: the peer's."""
        super().__init__(shell)
        self._address = address
        self._shell = shell
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        """Time at which `_timer` is due, in monotonic seconds."""
        self._broker: BrokerSide | None = None
        """The broker's half; None until there is an upstream connection."""
        self._side: BrokerSide | None = None
        """The side connection of a re-authentication; None if it is not open."""
        self.dialled = ("", 0)
        """Host and port to which the broker's half was connected."""
        self.connection: Connection | None = None
        """The state of the connection; None if the client was refused."""

    @property
    def peer_host(self) -> str:
        """Address of the client, without its port."""
        assert self._transport is not None
        return self._address or peer_address(self._transport) or "unknown"

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the client; the port is 0 behind a load balancer."""
        assert self._transport is not None
        name = None if self._address else self._transport.get_extra_info("peername")
        return self.peer_host, name[1] if name else 0

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a client that connected."""
        super().connection_made(transport)
        opened = self._shell.opened(self)
        if isinstance(opened, Connection):
            self.connection = opened
            self._arm()
        elif opened is None:
            self.close()

    @property
    def peer_has_unsent(self) -> bool:
        """True if bytes of the client wait to be sent to the broker."""
        return self._broker is not None and self._broker.has_unsent

    def data_received(self, data: Bytes) -> None:
        """Feed the connection bytes of the client, and carry out its commands."""
        connection = self.connection
        if connection is None or connection.closed:
            return
        now = monotonic()
        try:
            connection.client_bytes(data, now)
        except Exception:
            self.broke(now)
        if connection.commands:
            self.carry_out()
            if connection.closed and not (self._is_tls or connection.pipe.requests):
                protocol = WrongProtocol.by_first_bytes(data)
                if protocol in NEVER_KAFKA:
                    self._shell.wrong_protocol(self, protocol)
        if len(data) >= BULK_READ and type(data) is bytes and self._transport is not None:
            read_in_bulk(self._transport, self, self._buffer)

    def pause_writing(self) -> None:
        """Handle a client that does not read fast enough."""
        self.call(lambda connection, now: connection.client_full(True, now))

    def resume_writing(self) -> None:
        """Handle a client that reads again."""
        self.call(lambda connection, now: connection.client_full(False, now))

    def eof_received(self) -> bool:
        """Handle the end of the client's stream; its requests are still answered."""
        self.call(Connection.client_finished)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Handle the end of the client's connection."""
        if self.connection is None:
            return
        self.call(finishing(CloseReason.CLIENT_CLOSED))
        self._close_brokers()
        self._shell.closed(self)

    # From the worker

    def broker_connected(self, broker: "BrokerSide") -> None:
        """Take over the broker's half: the upstream connection is open."""
        assert self.connection is not None
        if self.connection.closed:
            broker.close()
            return
        self._broker = broker
        self.call(lambda connection, now: connection.broker_connected(broker.write, now))

    @property
    def broker_address(self) -> tuple[str, int] | None:
        """Address and port of the broker's half; None if it is not open."""
        return None if self._broker is None else self._broker.address

    def side_connected(self, side: "BrokerSide") -> None:
        """Take over the open side connection of a re-authentication."""
        assert self.connection is not None
        if self.connection.closed:
            side.close()
            return
        self._side = side
        self.call(lambda connection, now: connection.relayed_login.side_connected(side.write, now))

    def is_served_by(self, broker: "BrokerSide") -> bool:
        """Return whether requests go to this half."""
        return self._broker is broker

    def is_renewed_by(self, side: "BrokerSide") -> bool:
        """Return whether a re-authentication goes to this half."""
        return self._side is side

    def authenticated(self) -> None:
        """Allow the client the memory of an authenticated client."""
        if self._transport is None or self._transport.is_closing():
            return
        bound_receive_buffer(self._transport.get_extra_info("socket"))
        if isinstance(self._transport, ServerTls):
            self._transport.authenticated()

    def handshake_failed(self) -> None:
        """Close the connection of a client whose TLS handshake failed."""
        self.call(lambda connection, now: connection.end(CloseReason.TLS_HANDSHAKE_FAILED, now))

    def evict(self) -> None:
        """Close now, whatever is under way, so that another client can be served."""
        self.call(finishing(CloseReason.EVICTED))
        self.close()

    def call(self, what: Callable[[Connection, float], None]) -> None:
        """Call `what` with the connection and the time, and carry out the connection's commands.

        Does nothing once the connection is closed.
        """
        connection = self.connection
        if connection is None or connection.closed:
            return
        now = monotonic()
        try:
            what(connection, now)
        except Exception:
            self.broke(now)
        if connection.commands:
            self.carry_out()

    def _call_later(self, what: Callable[[Connection, float], None]) -> None:
        self._loop.call_soon(self.call, what)

    def broke(self, now: float) -> None:
        """Log the exception that is being handled, a bug of the proxy, and close the connection."""
        assert self.connection is not None
        log.exception("connection %s: internal error", self.connection.connection_id)
        self.connection.finish(CloseReason.INTERNAL_ERROR, now)

    # Commands

    def carry_out(self) -> None:
        """Carry out the connection's commands, in order."""
        assert self.connection is not None
        assert self._transport is not None
        commands, self.connection.commands = self.connection.commands, []
        for command in commands:
            match command:
                case PauseClient() | ResumeClient():
                    self.read(isinstance(command, ResumeClient))
                case WakeAt(when):
                    self._wake_at(when)
                case PauseBroker() | ResumeBroker():
                    if self._broker is not None:
                        self._broker.read(isinstance(command, ResumeBroker))
                case CloseSideConnection() | MoveToSideConnection():
                    self._end_side(moves=isinstance(command, MoveToSideConnection))
                    self._shell.carry_out(self, command)
                case AwaitMemory(size):
                    self.connection.await_memory(size, self._call_later)
                case CountUnread():
                    # Deferred twice, until after this iteration's I/O, which may end back-pressure
                    self._loop.call_soon(self._call_later, self._count_unread)
                case Close():
                    self._close(command)
                case _:
                    self._shell.carry_out(self, command)

    def _count_unread(self, connection: Connection, now: float) -> None:
        assert self._transport is not None
        connection.session_ended(_unread_bytes(self._transport), now)

    def _arm(self) -> None:
        """Set the timer to the connection's next deadline; a later one is found when it is due."""
        assert self.connection is not None
        when = self.connection.next_deadline()
        if when is not None:
            self._wake_at(when)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._wakes_at <= when:
                return
            self._timer.cancel()
        self._wakes_at = when
        delay = max(0.0, when - monotonic())
        self._timer = self._loop.call_later(delay, self._wake, context=_TIMER_CONTEXT)

    def _wake(self) -> None:
        self._timer = None
        self.call(Connection.timer)
        self._arm()

    def _end_side(self, *, moves: bool) -> None:
        """Close the side connection, or close the broker's half and replace it with the former."""
        side, self._side = self._side, None
        if moves:
            side, self._broker = self._broker, side
        if side is not None:
            side.close()

    def _close_brokers(self) -> None:
        for side in (self._broker, self._side):
            if side is not None:
                side.close()

    def _close(self, close: Close) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._broker is not None and close.after_broker:
            self._broker.finish(lambda: self._close_with(close.farewell))
            return
        self._close_brokers()
        if close.delay:
            self._loop.call_later(close.delay, self._close_with, close.farewell)
        else:
            self._close_with(close.farewell)

    def _close_with(self, frame: bytes | None) -> None:
        assert self._transport is not None
        if frame is not None and not self._transport.is_closing():
            self._transport.write(frame)
        self.close()


class BrokerSide(_Side):
    """Broker's half of a relayed connection."""

    __slots__ = ("_client", "_connection", "_finished", "_lingering")

    def __init__(self, client: ClientSide, shell: RelayHost) -> None:
        assert client.connection is not None
        super().__init__(shell)
        self._client = client
        self._connection = client.connection
        self._finished: Callable[[], None] | None = None
        """Callback for the end of the connection, set by `finish`."""
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the open upstream connection to the client's half."""
        super().connection_made(transport)
        self._client.broker_connected(self)

    @property
    def address(self) -> tuple[str, int] | None:
        """Address and port of the broker; None if the connection is closed."""
        assert self._transport is not None
        host = peer_address(self._transport)
        return None if host is None else (host, self._transport.get_extra_info("peername")[1])

    @property
    def peer_has_unsent(self) -> bool:
        """True if bytes of the broker wait to be sent to the client."""
        return self._client.has_unsent

    def data_received(self, data: Bytes) -> None:
        """Pass the broker's bytes to the connection, and carry out its commands."""
        connection = self._connection
        if connection.closed:
            return
        now = monotonic()
        try:
            connection.broker_bytes(data, now)
        except Exception:
            self._client.broke(now)
        if connection.commands:
            self._client.carry_out()
        if len(data) >= BULK_READ and type(data) is bytes and self._transport is not None:
            read_in_bulk(self._transport, self, self._buffer)

    def pause_writing(self) -> None:
        """Handle a broker that does not read fast enough."""
        if self._client.is_served_by(self):
            self._client.call(lambda connection, now: connection.broker_full(True, now))

    def resume_writing(self) -> None:
        """Handle a broker that reads again."""
        if self._client.is_served_by(self):
            self._client.call(lambda connection, now: connection.broker_full(False, now))

    def finish(self, finished: Callable[[], None]) -> None:
        """Stop sending; call `finished` when the broker closes, after `LINGER` at the latest."""
        assert self._transport is not None
        self._finished = finished
        if self._transport.is_closing():
            return
        self._transport.write_eof()
        self.read(True)
        self._lingering = self._loop.call_later(LINGER, self._transport.abort)

    def eof_received(self) -> bool:
        """Close at the end of the broker's stream."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Handle the end of the upstream connection, unless another one has replaced it."""
        if self._lingering is not None:
            self._lingering.cancel()
        if self._finished is not None:
            self._finished()
        if self._client.is_served_by(self):
            self._client.call(Connection.broker_closed)


class SideConnection(BrokerSide):
    """Upstream connection of one re-authentication; it may replace the broker's half."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the open connection to the client's half."""
        _Side.connection_made(self, transport)
        self._client.side_connected(self)

    def data_received(self, data: Bytes) -> None:
        """Feed the connection bytes of the broker: responses to a login or to requests."""
        if self._client.is_served_by(self):
            super().data_received(data)
        elif self._client.is_renewed_by(self):
            self._client.call(
                lambda connection, now: connection.relayed_login.side_bytes(data, now)
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        if self._client.is_renewed_by(self):
            self._client.call(lambda connection, now: connection.relayed_login.side_closed(now))
        else:
            super().connection_lost(exc)


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Return the number of received bytes that were not processed yet: those in the socket (SIOCINQ
    of tcp(7)), and those that wait to be decrypted."""
    sock, count = transport.get_extra_info("socket"), bytearray(4)
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    kept: int = transport.get_extra_info("unread", 0)
    return int.from_bytes(count, sys.byteorder) + kept
