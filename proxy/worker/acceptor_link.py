"""Link between the acceptor and one worker: messages, and counts in shared memory.

Between the two runs a pair of Unix sockets that keep messages apart (SOCK_SEQPACKET), made before
the fork, which outlives both:

    worker → acceptor    RESET       nothing is offered any more
                         OFFER       connections of an entrance can be sent; one of a broker brings
                                     the listening socket along, by SCM_RIGHTS (unix(7))
                         WITHDRAW    they cannot any more
    acceptor → worker    a connection of an entrance, by SCM_RIGHTS, with its number

Rules:

- Connections are numbered by worker and listener, and each cell is written by one process. A worker
  has as many as were sent less as many as have ended; as it derives the latter from the last number
  that it was sent, no crash of either leaves a mistake behind.
- What a worker has not taken yet can be taken by another process that holds its end of the pair.
"""

import errno
import mmap
import socket
import struct
import sys
from typing import Final, NamedTuple

OWN: Final = -1
"""Value of `Entrance.broker` for the listener's own address."""

RESET: Final = b"R"
OFFER: Final = b"O"
WITHDRAW: Final = b"W"

_OFFERED: Final = struct.Struct("=cHi")
_SENT: Final = struct.Struct("=Hiq")
_FD: Final = struct.Struct("=i")
_FD_SPACE: Final = socket.CMSG_LEN(_FD.size)
_QUEUE_BYTES: Final = 32_768
"""Size in bytes of the kernel's queue of sockets that are sent and not received: some dozens. The
others wait in its backlogs, where any worker can accept them."""
_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a full pair, or of a kernel without memory: unix(7), send(2)."""


class Entrance(NamedTuple):
    """Address that clients connect to."""

    listener: int
    """The listener's index in the configuration."""
    broker: int
    """The id of the broker behind it, or `OWN`."""


class Link:
    """Pair of one worker, and its counts; made by the parent, before it forks."""

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
        """Count the connections of a listener that the worker has, or has been sent."""
        return self.sent[listener] - self.ended[listener]

    def send(self, entrance: Entrance, connection: socket.socket) -> bool:
        """Send a connection and close it here; False: the worker has not taken enough of others."""
        number = self.sent[entrance.listener] + 1
        if not _send(self.acceptor_end, _SENT.pack(*entrance, number), connection):
            return False
        self.sent[entrance.listener] = number
        connection.close()
        return True

    def take_back(self) -> tuple[Entrance, socket.socket] | None:
        """Return a connection that the worker has not taken; None: there is none."""
        taken = self.take()
        if taken is None:
            return None
        entrance, _, connection = taken
        self.sent[entrance.listener] -= 1
        return self.take_back() if connection is None else (entrance, connection)

    def offers(self) -> tuple[bytes, Entrance, socket.socket | None] | None:
        """Return the worker's next message; None: there is none."""
        received = _receive(self.acceptor_end)
        if received is None:
            return None
        kind, listener, broker = _OFFERED.unpack(received[0])
        return kind, Entrance(listener, broker), received[1]

    # The worker's end

    def tell(self, kind: bytes, entrance: Entrance, listening: socket.socket | None = None) -> bool:
        """Send the acceptor a message; False: the pair is full."""
        return _send(self.worker_end, _OFFERED.pack(kind, *entrance), listening)

    def take(self) -> tuple[Entrance, int, socket.socket | None] | None:
        """Return entrance, number and socket of the next connection; None: there is none.

        Without a socket: this process had no file descriptor left, and the kernel has closed it.
        """
        received = _receive(self.worker_end)
        if received is None:
            return None
        listener, broker, number = _SENT.unpack(received[0])
        return Entrance(listener, broker), number, received[1]


def _send(end: socket.socket, message: bytes, passed: socket.socket | None) -> bool:
    rights = [] if passed is None else [_FD.pack(passed.fileno())]
    try:
        end.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, one) for one in rights])
    except OSError as error:
        if error.errno in _NOT_NOW:
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
