"""Acceptor process: accepts every connection, and passes each to the least loaded worker.

It runs only with several workers. The kernel would spread connections by hash (SO_REUSEPORT):
unevenly, and also to a worker that hangs. Rules:

- The acceptor reads nothing that a client sends, and keeps no connection that it has sent on.
- The next connection goes to the worker with the fewest connections of its listener. A worker that
  died, or has been silent for 1.5 s, receives no more; connections that it has not received go to
  others.
- While no worker can receive another connection, none is accepted: they wait in the kernel's
  backlog.
- All of its state can be rebuilt: when an acceptor is restarted, workers repeat their offers.
"""

import errno
import logging
import select
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from proxy.scheduling.heartbeats import BEAT_EVERY, Heartbeat, Watch
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.worker.acceptor_link import LAST_OFFER, OFFER, OWN, RESET, EndpointId, Link

log = logging.getLogger(__name__)

STALE_CHECKS: Final = 3
"""Number of checks, one every `BEAT_EVERY`, after which a silent worker is sent nothing more."""
MAX_AT_ONCE: Final = 16
"""Number of connections of one endpoint that are accepted before the others are served."""
RETRY_EVERY: Final = 0.01
"""Seconds between two attempts to send a connection that no worker can receive."""
GATHER: Final = 2 * BEAT_EVERY
"""Seconds in which running workers repeat their offers to a restarted acceptor."""
PAUSE: Final = 1.0
"""Seconds for which nothing is accepted when the machine has no memory for another socket."""
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def run(
    listening: Mapping[EndpointId, socket.socket],
    links: Sequence[Link],
    workers: Sequence[Heartbeat],
    heartbeat: Heartbeat,
    lifeline: int,
) -> int:
    """Accept until SIGTERM, or until `lifeline` ends with the parent; return the exit status.

    `listening` has the socket of each endpoint, `links` and `workers` a link and a heartbeat for
    each worker; `heartbeat` is the acceptor's own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; the parent handles it
    acceptor = Acceptor(
        listening, [Peer(*one) for one in zip(links, workers, strict=True)], lifeline
    )
    while acceptor.turn(heartbeat):
        pass
    return 0


class Peer:
    """State of one worker in the acceptor."""

    def __init__(self, link: Link, heartbeat: Heartbeat) -> None:
        self.link = link
        self.heartbeat = heartbeat
        self.watch = Watch(heartbeat)
        self.life = 0
        """The number of starts of the worker as of its offers."""
        self.offered: dict[EndpointId, bool] = {}
        """The endpoints that it offers; True if other workers are preferred (`LAST_OFFER`)."""
        self.is_fresh = False
        """True if its event loop is known to run."""

    def load(self, listener: int) -> tuple[int, int]:
        """Return its connections of the listener, and of all listeners: the smallest pair wins."""
        link = self.link
        return link.load(listener), sum(link.load(one) for one in range(len(link.sent)))


class Acceptor:
    """State of the acceptor."""

    def __init__(
        self, listening: Mapping[EndpointId, socket.socket], peers: Sequence[Peer], lifeline: int
    ) -> None:
        self._listening = listening
        self._peers = peers
        self._peer_at = {peer.link.acceptor_end.fileno(): peer for peer in peers}
        self._lifeline = lifeline
        self._accepting_from: dict[int, EndpointId] = {}
        """The endpoints whose connections are accepted, by file descriptor of their sockets."""
        self._waiting: deque[tuple[EndpointId, socket.socket]] = deque()
        """Accepted connections that no worker can receive now."""
        self._repeats = LogRateLimit()
        self._check_at = self._accept_at = 0.0
        if any(peer.heartbeat.beats for peer in peers):  # or the first to offer would get all
            self._accept_at = monotonic() + GATHER
        # One epoll within the other: one call enables or disables all listening sockets.
        self._accepting = select.epoll()
        self._events = select.epoll()
        self._events.register(lifeline, select.EPOLLIN)
        self._events.register(self._accepting.fileno(), 0)
        for end in self._peer_at:
            self._events.register(end, select.EPOLLIN)

    def turn(self, heartbeat: Heartbeat) -> bool:
        """Wait for events, and handle them; False if the parent has ended."""
        if monotonic() >= self._check_at:
            self._check_at = monotonic() + BEAT_EVERY
            heartbeat.beat()
            self._check()
        self._send_waiting()
        now = monotonic()
        accepts = not self._waiting and now >= self._accept_at
        self._events.modify(self._accepting.fileno(), select.EPOLLIN if accepts else 0)
        patience = RETRY_EVERY if self._waiting else max(0.0, self._check_at - now)
        for fd, _ in self._events.poll(patience):
            if fd == self._lifeline:
                return False
            if fd in self._peer_at:
                self._receive_offers(self._peer_at[fd])
            else:
                self._accept_all()
        return True

    # Workers

    def _check(self) -> None:
        """Find workers that died or hang, and take back the connections that they have not
        received."""
        for peer in self._peers:
            peer.watch.check()
            if peer.heartbeat.life != peer.life:
                self._forget(peer)
            peer.is_fresh = peer.heartbeat.beats > 0 and peer.watch.silent_checks < STALE_CHECKS
        if any(peer.is_fresh for peer in self._peers):
            for peer in self._peers:
                while not peer.is_fresh and (connection := peer.link.take_back()) is not None:
                    self._waiting.append(connection)

    def _receive_offers(self, peer: Peer) -> None:
        peer.is_fresh = True
        while (message := peer.link.receive_message()) is not None:
            kind, endpoint = message
            if kind == RESET:
                self._forget(peer)
            elif kind in (OFFER, LAST_OFFER):
                peer.offered[endpoint] = kind == LAST_OFFER
                fd = self._listening[endpoint].fileno()
                if fd not in self._accepting_from:
                    self._accepting_from[fd] = endpoint
                    self._accepting.register(fd, select.EPOLLIN)
            else:
                self._withdraw(peer, endpoint)

    def _forget(self, peer: Peer) -> None:
        peer.life = peer.heartbeat.life
        for endpoint in list(peer.offered):
            self._withdraw(peer, endpoint)

    def _withdraw(self, peer: Peer, endpoint: EndpointId) -> None:
        if peer.offered.pop(endpoint, None) is not None and not self._is_offered(endpoint):
            fd = self._listening[endpoint].fileno()
            del self._accepting_from[fd]
            self._accepting.unregister(fd)

    def _is_offered(self, endpoint: EndpointId) -> bool:
        return any(endpoint in peer.offered for peer in self._peers)

    # Connections

    def _accept_all(self) -> None:
        for fd, _ in self._accepting.poll(0):
            for _ in range(MAX_AT_ONCE):
                if self._waiting or not self._accept(self._accepting_from[fd]):
                    break

    def _accept(self, endpoint: EndpointId) -> bool:
        """Accept a connection and send it on; False if none waits."""
        try:
            connection, _ = self._listening[endpoint].accept()
        except OSError as error:  # mostly network errors of the connection: accept(2)
            if error.errno in _OUT_OF_RESOURCES:
                self._accept_at = monotonic() + PAUSE
                self._warn(f"no connection can be accepted: {error.strerror}")
            return False
        if not self._send(endpoint, connection):
            self._waiting.append((endpoint, connection))
        return True

    def _send(self, endpoint: EndpointId, connection: socket.socket) -> bool:
        able = [peer for peer in self._peers if peer.is_fresh and endpoint in peer.offered]
        able.sort(key=lambda peer: (peer.offered[endpoint], peer.load(endpoint.listener)))
        return any(peer.link.send_connection(endpoint, connection) for peer in able)

    def _send_waiting(self) -> None:
        while self._waiting:
            endpoint, connection = self._waiting[0]
            own = EndpointId(endpoint.listener, OWN)
            if self._is_offered(own) and not self._is_offered(endpoint):
                connection.close()  # its broker has left
            elif not self._send(endpoint, connection):
                self._warn("no worker can receive another connection")
                return
            self._waiting.popleft()

    def _warn(self, text: str) -> None:
        self._repeats.warn(log, text, monotonic())
