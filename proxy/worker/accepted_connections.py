"""Receiver of accepted connections: a worker's end of the link to the acceptor."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from proxy.scheduling.heartbeats import BEAT_EVERY, Heartbeat
from proxy.worker.acceptor_link import LAST_OFFER, OFFER, OWN, RESET, WITHDRAW, EndpointId, Link

log = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 16
"""Largest number of connections that are received in one callback of the event loop."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """Interface to `proxy.worker.listener.Listener`."""

    ended: Callable[[], None]
    """Callback for the end of a connection."""

    @property
    def connection_count(self) -> int:
        """Number of the listener's connections in this worker."""
        ...

    def warn(self, cause: str, text: str) -> None:
        """Log an event that unauthenticated clients can cause."""
        ...

    def broker_left(self, broker_id: int) -> None:
        """Report that a client was refused because the broker of its port has left."""
        ...


class AcceptedConnections:
    """Receiver of the connections that the acceptor sends to one worker."""

    def __init__(self, link: Link, listeners: Sequence[Listener], acceptor: Heartbeat) -> None:
        """Receive from `link`.

        `listeners` are in the order of the configuration; `acceptor` is the acceptor's heartbeat.
        """
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._listeners = listeners
        self._acceptor = acceptor
        self._acceptor_life = acceptor.life
        self._factories: dict[EndpointId, tuple[bytes, ProtocolFactory]] = {}
        """The offer and the protocols of each endpoint; offers are repeated to an acceptor that is
        restarted."""
        self._outbox: deque[tuple[bytes, EndpointId]] = deque()
        self._last = link.sent.tolist()
        """The number of the last connection that was received, by listener."""
        self._opening = [0] * len(listeners)
        """The number of connections whose protocol is not connected yet, by listener."""
        self._tasks: set[asyncio.Task[Any]] = set()
        for number, listener in enumerate(listeners):
            listener.ended = partial(self._count, number)
            self._count(number)
        self._send(RESET, EndpointId(0, OWN))
        self._check()

    def begin(self) -> None:
        """Begin to receive connections, including those sent to a worker that died before."""
        self._loop.add_reader(self._link.worker_end, self._receive)

    def serve(
        self,
        listener: Listener,
        broker: int | None,
        factory: ProtocolFactory,
        *,
        is_known: bool = True,
    ) -> "Served":
        """Serve an endpoint with the protocols of `factory` until the returned object is closed.

        `broker` is the broker's id, or None for the listener's own address. While the broker is not
        known, other workers are preferred; once it is known, call this again.
        """
        endpoint = EndpointId(self._listeners.index(listener), OWN if broker is None else broker)
        kind = OFFER if is_known else LAST_OFFER
        self._factories[endpoint] = kind, factory
        self._send(kind, endpoint)
        return Served(partial(self._close, endpoint))

    def _close(self, endpoint: EndpointId) -> None:
        self._factories.pop(endpoint, None)
        self._send(WITHDRAW, endpoint)

    # To the acceptor

    def _send(self, kind: bytes, endpoint: EndpointId) -> None:
        self._outbox.append((kind, endpoint))
        self._send_outbox()

    def _send_outbox(self) -> None:
        while self._outbox:
            if not self._link.send_message(*self._outbox[0]):
                return  # `_check` tries again
            self._outbox.popleft()

    def _check(self) -> None:
        """Repeat all offers to an acceptor that was restarted, and send messages that wait."""
        if self._acceptor.life != self._acceptor_life:
            self._acceptor_life = self._acceptor.life
            self._outbox.clear()
            self._outbox.append((RESET, EndpointId(0, OWN)))
            self._outbox.extend((kind, one) for one, (kind, _) in self._factories.items())
        self._send_outbox()
        for number in range(len(self._listeners)):
            self._count(number)
        self._loop.call_later(BEAT_EVERY, self._check)

    # From the acceptor

    def _receive(self) -> None:
        for _ in range(MAX_AT_ONCE):
            taken = self._link.receive_connection()
            if taken is None:
                return
            endpoint, number, connection = taken
            self._last[endpoint.listener] = number
            served, listener = self._factories.get(endpoint), self._listeners[endpoint.listener]
            if connection is None:
                text = "a connection was lost: no file descriptor is left"
                listener.warn(text, text)
            elif served is None:
                connection.close()
                listener.broker_left(endpoint.broker)
            else:
                self._open(endpoint.listener, connection, served[1])
            self._count(endpoint.listener)

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
        open_now = self._opening[number] + self._listeners[number].connection_count
        self._link.ended[number] = self._last[number] - open_now


class Served:
    """Endpoint that is served until it is closed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
