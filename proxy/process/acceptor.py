"""Acceptor process: accepts every connection, and passes each to the least loaded worker.

A process of its own where there are several workers. The kernel would spread connections by hash
(SO_REUSEPORT): unevenly, and to a worker that hangs as to any other. Rules:

- It reads nothing that a client sends, and keeps no connection: what it sent is the worker's.
- The worker with the fewest connections of the same listener is next. One that dies, or has been
  silent for a second and a half, is sent nothing more; what it was sent and has not taken goes to
  others.
- While no worker can take another connection it accepts none: they wait in the kernel's backlog.
- It knows nothing that it could not learn again: one that dies or hangs is started anew, and is
  offered again what workers have.
"""

import errno
import gc
import logging
import select
import signal
import socket
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Final

from proxy.child_process.heartbeats import BEAT_EVERY, Heartbeat, Watch
from proxy.log_rate_limit import LogRateLimit
from proxy.worker.acceptor_link import OFFER, OWN, RESET, Entrance, Link

log = logging.getLogger(__name__)

STALE_LOOKS: Final = 3
"""Number of checks, one in `BEAT_EVERY`, after which a silent worker is sent nothing more."""
AT_ONCE: Final = 16
"""Number of connections of one entrance that are accepted before the others are served."""
RETRY: Final = 0.01
"""Seconds between two attempts to send a connection that no worker can take."""
GATHER: Final = 2 * BEAT_EVERY
"""Seconds in which running workers send their offers to an acceptor that is started again."""
PAUSE: Final = 1.0
"""Seconds for which nothing is accepted when the machine has no memory for another socket."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def run(
    listening: Sequence[socket.socket],
    links: Sequence[Link],
    workers: Sequence[Heartbeat],
    heartbeat: Heartbeat,
    lifeline: int,
) -> int:
    """Accept until SIGTERM, or until `lifeline` ends with the parent.

    `listening` has a socket for each listener, `links` and `workers` what belongs to each worker;
    `heartbeat` is its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the parent to decide about
    gc.freeze()
    acceptor = Acceptor(
        listening, [Peer(*one) for one in zip(links, workers, strict=True)], lifeline
    )
    while acceptor.turn(heartbeat):
        pass
    return 0


class Peer:
    """One worker, as the acceptor sees it."""

    def __init__(self, link: Link, heartbeat: Heartbeat) -> None:
        self.link = link
        self.heartbeat = heartbeat
        self.watch = Watch(heartbeat)
        self.life = 0
        """The worker's life (number of starts) that its offers belong to."""
        self.offered: dict[Entrance, socket.socket | None] = {}
        """The entrances that it offers, with the listening socket of those that are not a
        listener's own; None: it is."""
        self.is_fresh = False
        """True if its event loop is known to go on."""

    def burden(self, listener: int) -> tuple[int, int]:
        """Key of the comparison with others: connections of the listener, and of all listeners."""
        link = self.link
        return link.load(listener), sum(link.load(one) for one in range(len(link.sent)))


class Acceptor:
    """State of the acceptor."""

    def __init__(
        self, listening: Sequence[socket.socket], peers: Sequence[Peer], lifeline: int
    ) -> None:
        self._own = listening
        self._peers = peers
        self._peer_at = {peer.link.acceptor_end.fileno(): peer for peer in peers}
        self._lifeline = lifeline
        self._entrances: dict[int, tuple[Entrance, socket.socket]] = {}
        """The entrances that are accepted from, by file descriptor."""
        self._waiting: deque[tuple[Entrance, socket.socket]] = deque()
        """Connections that no worker can take now."""
        self._repeats = LogRateLimit()
        self._look_at = self._accept_at = 0.0
        if any(peer.heartbeat.beats for peer in peers):  # the first to offer shall not have all
            self._accept_at = monotonic() + GATHER
        # One epoll within the other: all listening sockets are looked at, or none, by one call.
        self._accepting = select.epoll()
        self._events = select.epoll()
        self._events.register(lifeline, select.EPOLLIN)
        self._events.register(self._accepting.fileno(), 0)
        for end in self._peer_at:
            self._events.register(end, select.EPOLLIN)

    def turn(self, heartbeat: Heartbeat) -> bool:
        """Wait for something to do, and do it; False: the parent has ended."""
        if monotonic() >= self._look_at:
            self._look_at = monotonic() + BEAT_EVERY
            heartbeat.beat()
            self._look()
        self._send_waiting()
        now = monotonic()
        accepts = not self._waiting and now >= self._accept_at
        self._events.modify(self._accepting.fileno(), select.EPOLLIN if accepts else 0)
        patience = RETRY if self._waiting else max(0.0, self._look_at - now)
        for fd, _ in self._events.poll(patience):
            if fd == self._lifeline:
                return False
            if fd in self._peer_at:
                self._heed(self._peer_at[fd])
            else:
                self._accept_all()
        return True

    # Workers

    def _look(self) -> None:
        """Notice who has died, or hangs, and take back what they have not taken."""
        for peer in self._peers:
            peer.watch.look()
            if peer.heartbeat.life != peer.life:
                self._forget(peer)
            peer.is_fresh = peer.heartbeat.beats > 0 and peer.watch.silent < STALE_LOOKS
        if any(peer.is_fresh for peer in self._peers):
            for peer in self._peers:
                while not peer.is_fresh and (connection := peer.link.take_back()) is not None:
                    self._waiting.append(connection)

    def _heed(self, peer: Peer) -> None:
        peer.is_fresh = True
        while (message := peer.link.offers()) is not None:
            kind, entrance, listening = message
            if kind == RESET:
                self._forget(peer)
                continue
            self._withdraw(peer, entrance)
            if kind == OFFER:
                peer.offered[entrance] = listening
                if entrance.broker == OWN:
                    listening = self._own[entrance.listener]
                if listening is not None and listening.fileno() not in self._entrances:
                    self._entrances[listening.fileno()] = entrance, listening
                    self._accepting.register(listening.fileno(), select.EPOLLIN)

    def _forget(self, peer: Peer) -> None:
        peer.life = peer.heartbeat.life
        for entrance in list(peer.offered):
            self._withdraw(peer, entrance)

    def _withdraw(self, peer: Peer, entrance: Entrance) -> None:
        listening = peer.offered.pop(entrance, None)
        if entrance.broker == OWN and not self._is_offered(entrance):
            listening = self._own[entrance.listener]
        if listening is not None and listening.fileno() in self._entrances:
            del self._entrances[listening.fileno()]
            self._accepting.unregister(listening.fileno())
            if entrance.broker != OWN:
                listening.close()

    def _is_offered(self, entrance: Entrance) -> bool:
        return any(entrance in peer.offered for peer in self._peers)

    # Connections

    def _accept_all(self) -> None:
        for fd, _ in self._accepting.poll(0):
            entrance, listening = self._entrances[fd]
            for _ in range(AT_ONCE):
                if self._waiting or not self._accept(entrance, listening):
                    break

    def _accept(self, entrance: Entrance, listening: socket.socket) -> bool:
        """Accept a connection and send it on; False: there is none."""
        try:
            connection, _ = listening.accept()
        except OSError as error:  # most are of the network, and of the next connection: accept(2)
            if error.errno in _NO_ROOM:
                self._accept_at = monotonic() + PAUSE
                self._warn(f"no connection can be accepted: {error.strerror}")
            return False
        if not self._send(entrance, connection):
            self._waiting.append((entrance, connection))
        return True

    def _send(self, entrance: Entrance, connection: socket.socket) -> bool:
        able = [peer for peer in self._peers if peer.is_fresh and entrance in peer.offered]
        able.sort(key=lambda peer: peer.burden(entrance.listener))
        return any(peer.link.send(entrance, connection) for peer in able)

    def _send_waiting(self) -> None:
        while self._waiting:
            entrance, connection = self._waiting[0]
            if entrance.broker != OWN and not self._is_offered(entrance):
                connection.close()  # its broker has left
            elif not self._send(entrance, connection):
                self._warn("no worker can take another connection")
                return
            self._waiting.popleft()

    def _warn(self, text: str) -> None:
        if (line := self._repeats.line(text, text, monotonic())) is not None:
            log.warning("%s", line)
