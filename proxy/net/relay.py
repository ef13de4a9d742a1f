"""Relay of sockets: feeds a connection what was read, carries out its commands.

The only module that touches transports. What was learnt about uvloop:

- Small reads arrive as bytes (`data_received`), which are handed on as they are: one call per read
  and no copy. A side that carries bulk reads into one large buffer per worker instead
  (`proxy/net/read_buffer.py`).
- A write goes to the kernel at once, unless an earlier one waits; to gather the short ones of a
  turn costs more (`benchmarks/README.md`). What is not a copy and was not taken stays referenced by
  the transport, so a read buffer is then given up for a new one.
- The loop's own time stands still for a turn, and counts in milliseconds: `monotonic` does not.
- `transport.close()` waits until everything was written, so a client that does not read could
  keep it open for ever: `LINGER` bounds that.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from proxy.connection.commands import (
    AnswerFromStore,
    AwaitMemory,
    AwaitTurn,
    Close,
    CloseReason,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    DeriveKeys,
    GetIdentity,
    PauseBroker,
    PauseClient,
    RefreshKeys,
    ResumeBroker,
    ResumeClient,
    RunLongTask,
    WakeAt,
)
from proxy.connection.connection import Connection
from proxy.connection.frames import LONG_WRITE, Bytes
from proxy.net.handshake_errors import begins_tls
from proxy.net.read_buffer import BULK_READ, ReadBuffer, carry_bulk
from proxy.scheduling.steps import LongTask

log = logging.getLogger(__name__)

monotonic: Final = time.monotonic
"""Clock in seconds; a module constant, because the compiler looks up an imported name each time."""

LINGER: Final = 5.0
"""Seconds in which a peer must take the last bytes written to it."""


class NotServed:
    """Client that is not served and not closed yet: its shell closes it after a delay."""


class RelayHost(Protocol):
    """Interface of the relay to its worker."""

    loop: asyncio.AbstractEventLoop
    buffer: ReadBuffer

    def connect(self, client: "ClientSide") -> None:
        """Open the upstream connection; call `broker_connected` or `broker_unreachable`."""
        ...

    def seek_keys(self, client: "ClientSide") -> None:
        """Look for newer keys of the connection's listener; call `keys_refreshed`."""
        ...

    def log_in(self, client: "ClientSide", step: GetIdentity | DeriveKeys) -> None:
        """Obtain the credentials for the login to a broker; pass them to `upstream_login`."""
        ...

    def consult(self, client: "ClientSide", question: AnswerFromStore) -> None:
        """Have `question` answered off the loop, timed by the stopwatch; call `consulted`."""
        ...

    def await_turn(self, client: "ClientSide") -> None:
        """Have others served first, by `long_work.await_turn`."""
        ...

    def deliberate(self, client: "ClientSide", long_task: LongTask) -> None:
        """Have long work done in steps; call `long_work.done`."""
        ...

    def opened(self, client: "ClientSide") -> Connection | NotServed | None:
        """A client connected; None refuses it."""
        ...

    def authenticated(self, client: "ClientSide") -> None:
        """A client has logged in, or needs no login."""
        ...

    def closed(self, client: "ClientSide") -> None:
        """A client's connection is over."""
        ...

    def met_tls(self, client: "ClientSide") -> None:
        """A client began with TLS where none is spoken; its connection is closed already."""
        ...


class _Side(asyncio.Protocol):
    """Common part of both halves of a relayed connection."""

    __slots__ = ("_buffer", "_encrypts", "_loop", "_transport")

    def __init__(self, shell: RelayHost) -> None:
        self._buffer = shell.buffer
        self._loop = shell.loop
        self._encrypts = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=LONG_WRITE)
        self._encrypts = transport.get_extra_info("ssl_object") is not None

    @property
    def write(self) -> Callable[[Bytes], None]:
        """Sends bytes."""
        assert self._transport is not None
        return self._transport.write

    @property
    def owes(self) -> bool:
        """True if bytes wait to be sent, and may lie in a read buffer."""
        if self._transport is None or self._encrypts:
            return False  # what is encrypted is a copy
        return self._transport.get_write_buffer_size() > 0

    @property
    def peer_owes(self) -> bool:
        """True if bytes that were read here wait to be sent on the other side."""
        raise NotImplementedError

    def data_received(self, data: Bytes) -> None:
        """Bytes arrived: in an object of their own, or in the worker's buffer."""
        raise NotImplementedError

    def read(self, on: bool) -> None:
        """Read from the socket, or leave it."""
        assert self._transport is not None
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection once what was written has left, within `LINGER`."""
        if self._transport is None:
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER, self._transport.abort)


class ClientSide(_Side):
    """The client's half of a relayed connection, and owner of the broker's half."""

    __slots__ = ("_broker", "_shell", "_timer", "_wakes_at", "connection")

    def __init__(self, shell: RelayHost) -> None:
        super().__init__(shell)
        self._shell = shell
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        """Time at which `_timer` is due, in monotonic seconds."""
        self._broker: BrokerSide | None = None
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
        super().connection_made(transport)
        opened = self._shell.opened(self)
        if isinstance(opened, Connection):
            self.connection = opened
            self._arm()
        elif opened is None:
            self.close()

    @property
    def peer_owes(self) -> bool:
        """True if bytes that were read here wait to be sent to the broker."""
        return self._broker is not None and self._broker.owes

    def data_received(self, data: Bytes) -> None:
        """Bytes of the client arrived."""
        connection = self.connection
        if connection is None or connection.closed:
            return
        now = monotonic()
        try:
            connection.requests.client_bytes(data, now)
        except Exception:
            self.broke(now)
        if connection.commands:
            self.carry_out()
            if connection.closed and begins_tls(data) and not self._encrypts:
                self._shell.met_tls(self)
        if len(data) >= BULK_READ and type(data) is bytes and self._transport is not None:
            carry_bulk(self._transport, self, self._buffer)

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self.tell(lambda connection, now: connection.client_full(True, now))

    def resume_writing(self) -> None:
        """The client reads again."""
        self.tell(lambda connection, now: connection.client_full(False, now))

    def eof_received(self) -> bool:
        """The client will send no more; it is still owed the answers to what it sent."""
        self.tell(Connection.client_finished)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client's connection is over."""
        if self.connection is None:
            return
        self.tell(Connection.client_closed)
        if self._broker is not None:
            self._broker.close()
        self._shell.closed(self)

    # From the worker

    def broker_connected(self, broker: "BrokerSide") -> None:
        """The upstream connection is there."""
        assert self.connection is not None
        if self.connection.closed:
            broker.close()
            return
        self._broker = broker
        self.tell(lambda connection, now: connection.broker_connected(broker.write, now))

    def handshake_failed(self) -> None:
        """The client does not speak TLS, or not as it has to."""
        self.tell(lambda connection, now: connection.end(CloseReason.TLS_HANDSHAKE_FAILED, now))

    def evict(self) -> None:
        """Close now, in favour of another client, without the bytes that wait to be sent."""
        self.tell(lambda connection, now: connection.finish(CloseReason.EVICTED, now))
        self.close()

    def tell(self, what: Callable[[Connection, float], None]) -> None:
        """Inform the connection of an event, and carry out its commands."""
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

    def _tell_later(self, what: Callable[[Connection, float], None]) -> None:
        self._loop.call_soon(self.tell, what)

    def broke(self, now: float) -> None:
        """The proxy made a mistake: log the place, close the connection."""
        assert self.connection is not None
        log.exception("connection %s: a mistake of the proxy", self.connection.connection_id)
        self.connection.broke(now)

    # Commands

    def carry_out(self) -> None:
        """Carry out the connection's commands, in their order."""
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
                case AwaitMemory(size):
                    self.connection.long_work.wait_for_memory(size, self._tell_later)
                case Close():
                    self._close(command)
                case _:
                    self._hand_on(command)

    def _hand_on(self, command: Command) -> None:
        match command:
            case ConnectToBroker():
                self._shell.connect(self)
            case RefreshKeys():
                self._shell.seek_keys(self)
            case GetIdentity() | DeriveKeys():
                self._shell.log_in(self, command)
            case AnswerFromStore():
                self._shell.consult(self, command)
            case AwaitTurn():
                self._shell.await_turn(self)
            case RunLongTask(long_task):
                self._shell.deliberate(self, long_task)
            case CountAuthenticated():
                self._shell.authenticated(self)

    def _arm(self) -> None:
        """Wake up when the connection wants to; what it puts off is seen then."""
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
        self._timer = self._loop.call_later(max(0.0, when - monotonic()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.tell(Connection.timer)
        self._arm()

    def _close(self, close: Close) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._broker is not None:
            self._broker.close()
        if close.delay:
            self._loop.call_later(close.delay, self._say_farewell, close.farewell)
        else:
            self._say_farewell(close.farewell)

    def _say_farewell(self, frame: bytes | None) -> None:
        assert self._transport is not None
        if frame is not None and not self._transport.is_closing():
            self._transport.write(frame)
        self.close()


class BrokerSide(_Side):
    """The broker's half of a relayed connection."""

    __slots__ = ("_client", "_connection")

    def __init__(self, client: ClientSide, shell: RelayHost) -> None:
        assert client.connection is not None
        super().__init__(shell)
        self._client = client
        self._connection = client.connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The upstream connection is open."""
        super().connection_made(transport)
        self._client.broker_connected(self)

    @property
    def peer_owes(self) -> bool:
        """True if bytes that were read here wait to be sent to the client."""
        return self._client.owes

    def data_received(self, data: Bytes) -> None:
        """Bytes of the broker arrived."""
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
            carry_bulk(self._transport, self, self._buffer)

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
        self._client.tell(Connection.broker_closed)
