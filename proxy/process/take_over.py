"""Take-over: the sockets of a running proxy are passed to the next one, which then replaces it.

The running proxy listens on a Unix socket beside its admin socket, which only its user can open:

    next → running    REQUEST
    running → next    the length of the reply, and the reply in JSON: the version, the number of
                      sockets that follow, and the reason of a refusal, empty if they follow
                      all listening sockets and claimed ports, by SCM_RIGHTS (unix(7))
    next → running    SERVES, as soon as all of its workers do
    running → next    DRAINS, or TOO_LATE instead

Rules:

- Both sides refuse a peer of another user, including root: the sockets decide which process serves
  clients.
- One process at a time takes over. Until the running one has sent DRAINS, it keeps serving if the
  next one ends, even right after SERVES, or takes longer than `HELD_SECONDS`. The next one serves
  if the running one ends.
- The parent never blocks: it polls once a second. A peer without a request by the next poll is
  dropped; a reply that the peer does not read takes `PATIENCE` at most.
- Both processes hold the same sockets, so no connection in their queues is lost, whichever ends.
"""

import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

from proxy.errors import ConfigError
from proxy.net.sockets import BACKLOG, connect_privately, peer_of

log = logging.getLogger(__name__)

VERSION: Final = 1
"""Version of this exchange."""
REQUEST: Final = b"take over\n"
SERVES: Final = b"serves\n"
DRAINS: Final = b"drains\n"
TOO_LATE: Final = b"too late\n"
PATIENCE: Final = 1.0
"""Seconds for which the running proxy waits for a peer to read the reply."""
REPLY_SECONDS: Final = 15.0
"""Seconds for which the next one waits for the sockets."""
READY_SECONDS: Final = 60.0
"""Seconds after which the next one gives up if it is not ready to serve."""
HELD_SECONDS: Final = READY_SECONDS + 30.0
"""Seconds after which the running one no longer waits for the next one, which hangs."""
_LENGTH: Final = struct.Struct("!I")
_MAX_REPLY: Final = 10_000
_AT_ONCE: Final = 200
"""Number of sockets in one message; the kernel allows 253 (SCM_MAX_FD)."""
_MAX_ASKING: Final = 8
"""Largest number of peers that are accepted at a time."""


class Answer(Enum):
    """Answer of the running proxy to SERVES."""

    NONE = "none so far"
    DRAINS = "it drains"
    ENDED = "it has ended"
    TOO_LATE = "it keeps serving"


def path_beside(admin_socket: Path) -> Path:
    """Return the path of the socket on which a proxy with this admin socket is taken over."""
    return admin_socket.with_name(f"{admin_socket.name}.take-over")


class Successor:
    """Next process, as the running proxy sees it."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        """The Unix socket on which requests arrive."""
        self.pid = 0
        """The id of the process that was given the sockets last; 0 if none was."""
        self._asking: list[socket.socket] = []
        """The peers that have not sent a request yet."""
        self._peer: socket.socket | None = None
        """The connection of the process that received the sockets but does not serve yet."""
        self._until = 0.0

    @property
    def is_starting(self) -> bool:
        """True if a process has the sockets, and does not serve yet."""
        return self._peer is not None

    def begin(self) -> None:
        """Answer requests from now on, replacing the process that listened before.

        `listen` makes this process the one that peers see (unix(7), SO_PEERCRED).
        """
        self.listening.listen(BACKLOG)

    def poll(self, sockets: Callable[[], Sequence[socket.socket]], now: float) -> bool:
        """Handle what has arrived, without waiting for more; True if the next process serves.

        `sockets` are those that it is given; `now` is in monotonic seconds.
        """
        late, self._asking = self._asking, []
        for peer in late:
            if not self._answered(peer, sockets, now):
                peer.close()
        for peer in self._accepted():
            if not self._answered(peer, sockets, now):
                self._asking.append(peer)
        return self._has_begun(now)

    def close(self) -> None:
        """Answer no more requests; a process that has the sockets learns that this one ends."""
        for one in (self.listening, self._peer, *self._asking):
            if one is not None:
                one.close()
        self._peer = None

    def _accepted(self) -> Iterator[socket.socket]:
        for _ in range(_MAX_ASKING):
            try:
                peer, _ = self.listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no file descriptor is left
                log.warning("take-over: %s", error)
                return
            peer.setblocking(False)
            yield peer

    def _answered(
        self, peer: socket.socket, sockets: Callable[[], Sequence[socket.socket]], now: float
    ) -> bool:
        """Answer a peer, which is closed unless it receives the sockets; False if it sent no
        request."""
        try:
            given = self._answer(peer, sockets, now)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("take-over: %s", error)
            given = False
        if not given:
            peer.close()
        return True

    def _answer(
        self, peer: socket.socket, sockets: Callable[[], Sequence[socket.socket]], now: float
    ) -> bool:
        """Answer a request; True if the sockets were sent."""
        pid, uid = peer_of(peer)
        if uid != os.geteuid():
            log.warning("take-over: process %d of user %d is refused", pid, uid)
            _reply(peer, 0, f"only the user that the proxy runs as, {os.geteuid()}, may take over")
            return False
        if peer.recv(len(REQUEST)) != REQUEST:
            return False  # `remove_left_over` only tries whether anybody listens
        if self._peer is not None:
            log.warning("take-over: process %d is refused, %d is taking over", pid, self.pid)
            _reply(peer, 0, f"process {self.pid} is taking over already")
            return False
        given = sockets()
        log.info("take-over: process %d is given the sockets", pid)
        peer.settimeout(PATIENCE)
        _reply(peer, len(given), "")
        for first in range(0, len(given), _AT_ONCE):
            some = [one.fileno() for one in given[first : first + _AT_ONCE]]
            socket.send_fds(peer, [b"s"], some)
        peer.setblocking(False)
        self._peer, self.pid, self._until = peer, pid, now + HELD_SECONDS
        return True

    def _has_begun(self, now: float) -> bool:
        peer = self._peer
        if peer is None:
            return False
        try:
            message = peer.recv(len(SERVES))
        except BlockingIOError:
            if now < self._until:
                return False
            message = TOO_LATE
        except OSError:
            message = b""
        self._peer = None
        with peer:
            if message == SERVES and _is_open(peer) and _sent(peer, DRAINS):
                log.info("take-over: process %d serves now, this one drains", self.pid)
                return True
            _sent(peer, TOO_LATE)
        ended = "hangs" if message == TOO_LATE else "gave up or ended"
        log.error("take-over: process %d %s, this one keeps serving", self.pid, ended)
        return False


class Predecessor:
    """Running proxy, as the process that takes over sees it."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.pid, _ = peer_of(peer)
        """The process id of its parent."""
        self.is_told = False
        """True if it has received SERVES."""

    @classmethod
    def find(cls, path: Path) -> "Predecessor | None":
        """Return the proxy that listens on `path`; None if no proxy does. Raises ConfigError."""
        try:
            return cls(connect_privately(path, REPLY_SECONDS))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise ConfigError("--take-over", f"{path}: {error.strerror}") from error

    def sockets(self) -> list[socket.socket]:
        """Receive the sockets. Raises ConfigError if they are refused."""
        try:
            return self._received()
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"process {self.pid} does not hand over its sockets: {error}"
            raise ConfigError("--take-over", problem) from error

    def _received(self) -> list[socket.socket]:
        pid, uid = peer_of(self._peer)
        if uid != os.geteuid():
            raise ValueError(f"it is user {uid}'s, and this process user {os.geteuid()}'s")
        self._peer.sendall(REQUEST)
        (length,) = _LENGTH.unpack(_read(self._peer, _LENGTH.size))
        if length > _MAX_REPLY:
            raise ValueError("its reply is too long")
        reply: dict[str, Any] = json.loads(_read(self._peer, length))
        if reply["version"] != VERSION:
            raise ValueError(f"process {pid} is of another version: restart it instead")
        if reply["refusal"]:
            raise ValueError(reply["refusal"])
        sockets: list[socket.socket] = []
        while len(sockets) < reply["sockets"]:
            data, fds, flags, _ = socket.recv_fds(self._peer, 1, _AT_ONCE)
            for fd in fds:
                os.set_inheritable(fd, False)  # `recv_fds` of Python 3.11 ignores its flags
                sockets.append(socket.socket(fileno=fd))
            if flags & socket.MSG_CTRUNC:
                raise ValueError("too few file descriptors (ulimit -Hn)")
            if not data:
                raise ValueError("it has ended")
        self._peer.setblocking(False)
        return sockets

    def answer(self) -> Answer:
        """Return the answer of the running proxy so far."""
        try:
            message = self._peer.recv(len(TOO_LATE))
        except BlockingIOError:
            return Answer.NONE
        except OSError:
            message = b""
        if not message:
            return Answer.ENDED
        return Answer.DRAINS if message == DRAINS else Answer.TOO_LATE

    def replace(self) -> None:
        """Send SERVES: the running proxy drains and ends."""
        self.is_told = True
        _sent(self._peer, SERVES)  # or it has ended, as `answer` says

    def close(self) -> None:
        """Close the connection; the running proxy keeps serving."""
        self._peer.close()


def _is_open(peer: socket.socket) -> bool:
    """Return whether the peer, which sends nothing more, still runs."""
    try:
        peer.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _sent(peer: socket.socket, message: bytes) -> bool:
    """Send a message to a peer that may have ended; False if it has."""
    with suppress(OSError):
        peer.sendall(message)
        return True
    return False


def _reply(peer: socket.socket, sockets: int, refusal: str) -> None:
    reply = {"version": VERSION, "sockets": sockets, "refusal": refusal}
    text = json.dumps(reply).encode()
    peer.sendall(_LENGTH.pack(len(text)) + text)


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := peer.recv(size - len(data))):
            raise ValueError("it has ended")
        data += more
    return data
