"""Take-over: the sockets of a running proxy are passed to the next one, which then replaces it.

The running proxy listens on a Unix socket beside its admin socket, which only its user can open:

    next → running    REQUEST
    running → next    the length of a `_Reply`, and the reply, which may be a refusal
                      all listening sockets and claimed ports, by SCM_RIGHTS (unix(7))
    next → running    SERVES, as soon as all of its workers do

Rules:

- Both sides refuse a peer of another user, root included: the sockets decide who serves clients,
  and files of root would be none of the proxy's.
- One process at a time takes over. If it ends before it has sent SERVES, nothing has changed.
- The parent waits for nobody longer than `PATIENCE`: it polls once a second.
- Both processes hold the same sockets, so no connection in their queues is lost, whichever ends.
"""

import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

from proxy.errors import ConfigError
from proxy.net.sockets import connect_privately

log = logging.getLogger(__name__)

VERSION: Final = 1
"""Version of this exchange."""
REQUEST: Final = b"take over\n"
SERVES: Final = b"serves\n"
PATIENCE: Final = 1.0
"""Seconds for which the running proxy waits for a message of the other."""
REPLY_SECONDS: Final = 15.0
"""Seconds for which the next one waits for the sockets."""
READY_SECONDS: Final = 60.0
"""Seconds after which the next one gives up if it is not ready to serve."""
_LENGTH: Final = struct.Struct("!I")
_MAX_REPLY: Final = 10_000
_CREDENTIALS: Final = struct.Struct("3i")
"""The peer's process, user and group (unix(7), SO_PEERCRED)."""
_AT_ONCE: Final = 200
"""Number of sockets in one message; the kernel allows 253 (SCM_MAX_FD)."""


class _Reply(TypedDict):
    version: int
    sockets: int
    """The number of sockets that follow."""
    refusal: str
    """The reason why there are none; empty: there are some."""


def path_beside(admin_socket: Path) -> Path:
    """Return the path of the socket on which a proxy with this admin socket is taken over."""
    return admin_socket.with_name(f"{admin_socket.name}.take-over")


class Successor:
    """Next process, as the running proxy sees it."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        """The Unix socket on which requests arrive."""
        self._peer: socket.socket | None = None
        self._pid = 0

    @property
    def is_starting(self) -> bool:
        """True if a process has the sockets, and does not serve yet."""
        return self._peer is not None

    def poll(self, sockets: Callable[[], Sequence[socket.socket]]) -> bool:
        """Handle what has arrived, without waiting for more; True: the next process serves.

        `sockets` are those that it is given.
        """
        with suppress(BlockingIOError):
            peer, _ = self.listening.accept()
            peer.settimeout(PATIENCE)
            try:
                kept = self._answer(peer, sockets)
            except OSError as error:
                log.warning("take-over: %s", error)
                kept = False
            if not kept:
                peer.close()
        return self._has_begun()

    def close(self) -> None:
        """Answer no more requests."""
        self.listening.close()

    def _answer(self, peer: socket.socket, sockets: Callable[[], Sequence[socket.socket]]) -> bool:
        """Answer a request; True: the sockets were sent."""
        pid, uid = _credentials(peer)
        if peer.recv(len(REQUEST)) != REQUEST:
            return False  # `remove_left_over` only tries whether anybody listens
        if uid != os.geteuid():
            log.warning("take-over: process %d of user %d is refused", pid, uid)
            _reply(peer, 0, f"only the user that the proxy runs as, {os.geteuid()}, may take over")
        elif self._peer is not None:
            log.warning("take-over: process %d is refused, %d is taking over", pid, self._pid)
            _reply(peer, 0, f"process {self._pid} is taking over already")
        else:
            given = sockets()
            log.info("take-over: process %d is given the sockets", pid)
            _reply(peer, len(given), "")
            for first in range(0, len(given), _AT_ONCE):
                some = [one.fileno() for one in given[first : first + _AT_ONCE]]
                socket.send_fds(peer, [b"s"], some)
            peer.setblocking(False)
            self._peer, self._pid = peer, pid
            return True
        return False

    def _has_begun(self) -> bool:
        if self._peer is None:
            return False
        try:
            message = self._peer.recv(len(SERVES))
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        self._peer.close()
        self._peer = None
        if message == SERVES:
            log.info("take-over: process %d serves now, this one drains", self._pid)
            return True
        log.error("take-over: process %d gave up or ended, this one goes on serving", self._pid)
        return False


class Predecessor:
    """Running proxy, as the process that takes over sees it."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.pid, _ = _credentials(peer)
        """The process id of its parent."""

    @classmethod
    def find(cls, path: Path) -> "Predecessor | None":
        """Return the proxy that listens on `path`; None: there is none. Raises ConfigError."""
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
        except (OSError, ValueError, KeyError) as error:
            problem = f"process {self.pid} does not hand over its sockets: {error}"
            raise ConfigError("--take-over", problem) from error

    def _received(self) -> list[socket.socket]:
        pid, uid = _credentials(self._peer)
        if uid != os.geteuid():
            raise ValueError(f"it is user {uid}'s, and this process user {os.geteuid()}'s")
        self._peer.sendall(REQUEST)
        reply = _read_reply(self._peer)
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

    def has_ended(self) -> bool:
        """Return whether the running proxy has ended."""
        try:
            return self._peer.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def replace(self) -> None:
        """Have the running proxy drain and end: this process serves."""
        with suppress(OSError):  # it has ended
            self._peer.sendall(SERVES)
        self.close()

    def close(self) -> None:
        """Leave the running proxy as it is."""
        self._peer.close()


def _credentials(peer: socket.socket) -> tuple[int, int]:
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid


def _reply(peer: socket.socket, sockets: int, refusal: str) -> None:
    reply = _Reply(version=VERSION, sockets=sockets, refusal=refusal)
    text = json.dumps(reply).encode()
    peer.sendall(_LENGTH.pack(len(text)) + text)


def _read_reply(peer: socket.socket) -> _Reply:
    (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size))
    if length > _MAX_REPLY:
        raise ValueError("its reply is too long")
    reply: _Reply = json.loads(_read(peer, length))
    return reply


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := peer.recv(size - len(data))):
            raise ValueError("it has ended")
        data += more
    return data
