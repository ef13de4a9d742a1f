"""Receiver of accepted connections: a worker's end of the link to the acceptor."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from proxy.child_process.heartbeats import BEAT_EVERY, Heartbeat
from proxy.worker.acceptor_link import OFFER, OWN, RESET, WITHDRAW, Entrance, Link

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Number of connections that are received in one callback of the event loop."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """Interface to a listener: a `proxy.worker.listener.Listener` is one."""

    ended: Callable[[], None]

    @property
    def connection_count(self) -> int:
        """Connections that count."""
        ...

    def warn(self, cause: str, text: str) -> None:
        """Log an event that unauthenticated clients can cause."""
        ...


class AcceptedConnections:
    """Receiver of the connections that the acceptor sends to one worker."""

    def __init__(self, link: Link, listeners: Sequence[Listener], acceptor: Heartbeat) -> None:
        """`listeners` in the order of the configuration; `acceptor`: the acceptor's heartbeat."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._listeners = listeners
        self._acceptor = acceptor
        self._acceptor_life = acceptor.life
        self._factories: dict[Entrance, ProtocolFactory] = {}
        self._sockets: dict[Entrance, socket.socket] = {}
        """The listening sockets of entrances to brokers, kept because the acceptor, which has
        copies, may die."""
        self._outbox: deque[tuple[bytes, Entrance, socket.socket | None]] = deque()
        self._last = link.sent.tolist()
        """The number of the last connection that was received, by listener."""
        self._opening = [0] * len(listeners)
        """The number of connections whose protocol is not connected yet, by listener."""
        self._tasks: set[asyncio.Task[Any]] = set()
        for number, listener in enumerate(listeners):
            listener.ended = partial(self._count, number)
            self._count(number)
        self._send(RESET, Entrance(0, OWN))
        self._check()

    def begin(self) -> None:
        """Take what was sent, to a predecessor that died perhaps, now that all is served."""
        self._loop.add_reader(self._link.worker_end, self._take)

    def serve(
        self,
        listener: Listener,
        broker: int | None,
        listening: socket.socket | None,
        factory: ProtocolFactory,
    ) -> "Served":
        """Serve the connections of an entrance with what `factory` makes, until that is closed.

        `listening` is its socket, unless the acceptor has it: that of a listener's own address.
        """
        entrance = Entrance(self._listeners.index(listener), OWN if broker is None else broker)
        self._factories[entrance] = factory
        if listening is not None:
            self._sockets[entrance] = listening
        self._send(OFFER, entrance, listening)
        return Served(partial(self._close, entrance))

    def _close(self, entrance: Entrance) -> None:
        self._factories.pop(entrance, None)
        if (listening := self._sockets.pop(entrance, None)) is not None:
            listening.close()
        self._send(WITHDRAW, entrance)

    # To the acceptor

    def _send(
        self, kind: bytes, entrance: Entrance, listening: socket.socket | None = None
    ) -> None:
        self._outbox.append((kind, entrance, listening))
        self._send_outbox()

    def _send_outbox(self) -> None:
        while self._outbox:
            kind, entrance, listening = self._outbox[0]
            is_closed = listening is not None and listening.fileno() < 0
            if not is_closed and not self._link.tell(kind, entrance, listening):
                return  # `_check` goes on
            self._outbox.popleft()

    def _check(self) -> None:
        """Offer everything to an acceptor that was started again, and send messages that wait."""
        if self._acceptor.life != self._acceptor_life:
            self._acceptor_life = self._acceptor.life
            self._outbox.clear()
            self._outbox.append((RESET, Entrance(0, OWN), None))
            for entrance in self._factories:
                self._outbox.append((OFFER, entrance, self._sockets.get(entrance)))
        self._send_outbox()
        for number in range(len(self._listeners)):
            self._count(number)
        self._loop.call_later(BEAT_EVERY, self._check)

    # From the acceptor

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            taken = self._link.take()
            if taken is None:
                return
            entrance, number, connection = taken
            self._last[entrance.listener] = number
            factory = self._factories.get(entrance)
            if connection is None:
                text = "a connection was lost: no file descriptor is left"
                self._listeners[entrance.listener].warn(text, text)
            elif factory is None:
                connection.close()
            else:
                self._open(entrance.listener, connection, factory)
            self._count(entrance.listener)

    def _open(self, number: int, connection: socket.socket, factory: ProtocolFactory) -> None:
        self._opening[number] += 1
        opening = self._loop.connect_accepted_socket(factory, connection)
        task = self._loop.create_task(opening)
        self._tasks.add(task)
        task.add_done_callback(partial(self._opened, number))

    def _opened(self, number: int, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        self._opening[number] -= 1
        self._count(number)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be opened", exc_info=error)

    def _count(self, number: int) -> None:
        """Publish how many connections of a listener have ended."""
        there = self._opening[number] + self._listeners[number].connection_count
        self._link.ended[number] = self._last[number] - there


class Served:
    """An entrance that is served until it is closed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
