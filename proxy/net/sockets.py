"""Listening sockets shared by the proxy's processes."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from proxy.errors import ConfigError

BACKLOG: Final = 4_096


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address that other processes of ours may listen on too. Raises ConfigError.

    Accepted connections inherit the options (Linux), which saves the calls per connection.
    """
    sock = _socket_for(host)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _unusable(host, port, error) from error
    return sock


class Claim:
    """Claim on a port for our processes: they `listen` there, and programs that look first do not.

    It is made before the processes are forked that share it: a port that one of them takes, all
    have. It never accepts a client.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError: no file descriptor is left."""
        self._host = host
        self._port = port
        self._sock = _socket_for(host)
        self.is_taken = False
        """True if this process, or its parent before the fork, listens there."""

    def take(self) -> None:
        """Have the port from now on. Raises ConfigError: another program has it, or a claim to it.

        Two who bind may both succeed; of two who listen the kernel lets one (SO_REUSEADDR alone).
        From then on only sockets with SO_REUSEPORT can be bound beside, as those of `listen` are.
        """
        sock = self._sock
        try:
            if self.is_taken or sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT):
                return
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not sock.getsockname()[1]:
                sock.bind((self._host, self._port))
            sock.listen(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sock.shutdown(socket.SHUT_RDWR)  # bound, but it listens no more
            self.is_taken = True
        except OSError as error:
            raise _unusable(self._host, self._port, error) from error

    def listen(self) -> socket.socket:
        """Take the port, and listen on it. Raises ConfigError."""
        self.take()
        return listen(self._host, self._port)

    def would_be_shared(self) -> bool:
        """Return whether the program with the port shares its clients, as another proxy does."""
        with _socket_for(self._host) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                sock.bind((self._host, self._port))
            except OSError:
                return False
            return True

    def close(self) -> None:
        """Let this process's part of it go."""
        self._sock.close()


def numeric_host(host: str) -> str:
    """Return the address that a host of this machine stands for. Raises OSError: for none."""
    with _socket_for(host) as sock:
        sock.bind((host, 0))
        name: str = sock.getsockname()[0]
        return name


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError("", f"cannot listen on {host}:{port}: {error.strerror}")


def listen_privately(path: Path) -> socket.socket:
    """Listen on a Unix socket that its owner alone can open. Raises ConfigError.

    What a proxy that was killed left there is replaced. To be called where there is one thread: the
    mode of new files is the process's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        remove_left_over(path)
        with _short_name(path) as name:
            sock.bind(name)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        problem = error.strerror or str(error)  # Python itself counts the bytes of a name
        raise ConfigError("", f"cannot listen on {path}: {problem}") from error
    finally:
        os.umask(mask)
    return sock


def connect_privately(path: Path, timeout: float) -> socket.socket:
    """Connect to a Unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        with _short_name(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


def ask_privately(path: Path, question: Mapping[str, object], timeout: float) -> Any:
    """Ask the proxy whose admin socket it is. Raises OSError, and ValueError if it breaks off."""
    with connect_privately(path, timeout) as sock, sock.makefile("rwb") as stream:
        stream.write(json.dumps(question).encode() + b"\n")
        stream.flush()
        return json.loads(stream.readline())


def remove_left_over(path: Path) -> None:
    """Remove a Unix socket on which nobody listens any more. Raises OSError."""
    if not path.is_socket():
        return
    try:
        connect_privately(path, timeout=1.0).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yield another name of a path: a socket's is limited to 107 bytes (unix(7))."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
