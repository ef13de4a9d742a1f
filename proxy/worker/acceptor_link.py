"""Link between the acceptor and one worker: messages, and counts in shared memory.

A pair of Unix sockets that preserve message boundaries (SOCK_SEQPACKET) connects the two; it is
created before the fork, and outlives both:

    worker → acceptor    RESET       all offers of this worker are withdrawn
                         OFFER       connections of an endpoint can be sent
                         LAST_OFFER  the same, if no worker has sent OFFER for this endpoint
                         WITHDRAW    the offer of an endpoint is withdrawn
    acceptor → worker    a connection of an endpoint, by SCM_RIGHTS (unix(7)), with its number

Rules:

- Connections are numbered per worker and listener, and each count has one writer. The load of a
  worker is the number of connections sent to it minus those that have ended. It derives the second
  from the number of the last connection received, so a crash of either process leaves no wrong
  count.
- Connections that a worker has not received can be received by any process that holds its end of
  the pair.
- A worker offers a listener's own address after the brokers that it knows at its start.
"""

import asyncio
import errno
import logging
import mmap
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.scheduling.heartbeats import BEAT_EVERY, Heartbeat

if TYPE_CHECKING:
    from proxy.worker.listener import Listener

OWN: Final = -1
"""Value of `EndpointId.broker` for the listener's own address."""

RESET: Final = b"R"
OFFER: Final = b"O"
LAST_OFFER: Final = b"L"
WITHDRAW: Final = b"W"

_OFFERED: Final = struct.Struct("=cHi")
_SENT: Final = struct.Struct("=Hiq")
_QUEUE_BYTES: Final = 32_768
"""Size in bytes of the kernel's queue of sent but unreceived sockets: a few dozen. Further
connections wait in the backlogs, from where they can go to any worker."""
_FULL: Final = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a full queue, or of a kernel without memory: unix(7), send(2)."""


class EndpointId(NamedTuple):
    """Identifier of an endpoint, an address that clients connect to."""

    listener: int
    """The listener's index in the configuration."""
    broker: int
    """The id of the broker behind it, or `OWN`."""


class Link:
    """Socket pair and counts of one worker; made by the parent, before it forks."""

    def __init__(self, listeners: int) -> None:
        self.acceptor_end, self.worker_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        for end in (self.acceptor_end, self.worker_end):
            end.setblocking(False)
        self.acceptor_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
        words = memoryview(mmap.mmap(-1, 16 * listeners)).cast("q")
        self.sent = words[:listeners]
        """The number of the last connection that was sent, by listener; the acceptor writes it."""
        self.ended = words[listeners:]
        """The number of connections that have ended, by listener; the worker writes it."""

    # The acceptor's end

    def load(self, listener: int) -> int:
        """Return the number of a listener's connections that the worker has, or was sent."""
        return self.sent[listener] - self.ended[listener]

    def send_connection(self, endpoint: EndpointId, connection: socket.socket) -> bool:
        """Send a connection and close it here; False if the queue is full."""
        number = self.sent[endpoint.listener] + 1
        if not _send(self.acceptor_end, _SENT.pack(*endpoint, number), connection):
            return False
        self.sent[endpoint.listener] = number
        connection.close()
        return True

    def take_back(self) -> tuple[EndpointId, socket.socket] | None:
        """Return a connection that the worker has not received; None if none waits."""
        taken = self.receive_connection()
        if taken is None:
            return None
        endpoint, _, connection = taken
        self.sent[endpoint.listener] -= 1
        return self.take_back() if connection is None else (endpoint, connection)

    def receive_message(self) -> tuple[bytes, EndpointId] | None:
        """Return the worker's next message and its endpoint; None if there is no message."""
        received = _receive(self.acceptor_end)
        if received is None:
            return None
        kind, listener, broker = _OFFERED.unpack(received[0])
        return kind, EndpointId(listener, broker)

    # The worker's end

    def send_message(self, kind: bytes, endpoint: EndpointId) -> bool:
        """Send the acceptor a message; False if the queue is full."""
        return _send(self.worker_end, _OFFERED.pack(kind, *endpoint))

    def receive_connection(self) -> tuple[EndpointId, int, socket.socket | None] | None:
        """Return endpoint, number and socket of the next connection; None if none waits.

        Without a free file descriptor, the kernel closes the socket, and None is returned for it.
        """
        received = _receive(self.worker_end)
        if received is None:
            return None
        listener, broker, number = _SENT.unpack(received[0])
        return EndpointId(listener, broker), number, received[1]


def _send(end: socket.socket, message: bytes, passed: socket.socket | None = None) -> bool:
    try:
        socket.send_fds(end, [message], [] if passed is None else [passed.fileno()])
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True


def _receive(end: socket.socket) -> tuple[bytes, socket.socket | None] | None:
    try:
        message, fds, _, _ = socket.recv_fds(end, 64, 1)
    except BlockingIOError:
        return None
    return message, socket.socket(fileno=fds[0]) if fds else None


log = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 16
"""Largest number of connections that are received in one callback of the event loop."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class AcceptedConnections:
    """Receiver of the connections that the acceptor sends to one worker."""

    def __init__(self, link: Link, listeners: "Sequence[Listener]", acceptor: Heartbeat) -> None:
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
        listener: "Listener",
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
                text = "a connection was lost: out of file descriptors"
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
