"""Link between the acceptor and one worker: messages, and counts in shared memory.

Between the two runs a pair of Unix sockets that keep messages apart (SOCK_SEQPACKET), made before
the fork, which outlives both:

    worker → acceptor    RESET       all offers of this worker are withdrawn
                         OFFER       connections of an endpoint can be sent
                         LAST_OFFER  the same, if no worker has sent OFFER for this endpoint
                         WITHDRAW    the offer of an endpoint is withdrawn
    acceptor → worker    a connection of an endpoint, by SCM_RIGHTS (unix(7)), with its number

Rules:

- Connections are numbered by worker and listener, and only one process writes each count. A worker
  has the connections that it was sent less those that have ended; as it derives the latter number
  from that of the last connection received, a crash of either process leaves no wrong count.
- Connections that a worker has not received can be received by any process that holds its end of
  the pair.
- A worker offers a listener's own address after the brokers that it knows at its start.
"""

import errno
import mmap
import socket
import struct
import sys
from typing import Final, NamedTuple

OWN: Final = -1
"""Value of `EndpointId.broker` for the listener's own address."""

RESET: Final = b"R"
OFFER: Final = b"O"
LAST_OFFER: Final = b"L"
WITHDRAW: Final = b"W"

_OFFERED: Final = struct.Struct("=cHi")
_SENT: Final = struct.Struct("=Hiq")
_FD: Final = struct.Struct("=i")
_FD_SPACE: Final = socket.CMSG_LEN(_FD.size)
_QUEUE_BYTES: Final = 32_768
"""Size in bytes of the kernel's queue of sockets that are sent and not received: some dozens. More
connections wait in the backlogs, from where they can be sent to any worker."""
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
        """Send a connection and close it here; False: the queue is full."""
        number = self.sent[endpoint.listener] + 1
        if not _send(self.acceptor_end, _SENT.pack(*endpoint, number), connection):
            return False
        self.sent[endpoint.listener] = number
        connection.close()
        return True

    def take_back(self) -> tuple[EndpointId, socket.socket] | None:
        """Return a connection that the worker has not received; None: there is none."""
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
        """Send the acceptor a message; False: the queue is full."""
        return _send(self.worker_end, _OFFERED.pack(kind, *endpoint))

    def receive_connection(self) -> tuple[EndpointId, int, socket.socket | None] | None:
        """Return endpoint, number and socket of the next connection; None: there is none.

        The socket is None if this process had no file descriptor left: the kernel has closed it.
        """
        received = _receive(self.worker_end)
        if received is None:
            return None
        listener, broker, number = _SENT.unpack(received[0])
        return EndpointId(listener, broker), number, received[1]


def _send(end: socket.socket, message: bytes, passed: socket.socket | None = None) -> bool:
    rights = [] if passed is None else [_FD.pack(passed.fileno())]
    try:
        end.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, one) for one in rights])
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True


def _receive(end: socket.socket) -> tuple[bytes, socket.socket | None] | None:
    try:
        message, ancillary, _, _ = end.recvmsg(64, _FD_SPACE)
    except BlockingIOError:
        return None
    for _, _, data in ancillary:
        return message, socket.socket(fileno=int.from_bytes(data[: _FD.size], sys.byteorder))
    return message, None
