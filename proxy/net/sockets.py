"""Listening sockets, which the proxy's processes share or inherit from another process."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from errno import EPERM
from pathlib import Path
from typing import Any, Final

from proxy.errors import ConfigError, host_port
from proxy.quota.model import canonical_ip

_CREDENTIALS: Final = struct.Struct("3i")
_VARIABLES: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)

FIRST_OF_SYSTEMD: Final = 3
"""First file descriptor that systemd passes: `SD_LISTEN_FDS_START`, sd_listen_fds(3)."""
BACKLOG: Final = 4_096
"""Largest number of connections that wait in the kernel to be accepted."""
RECEIVE_BUFFER_BYTES: Final = 1_048_576
"""Size of the kernel's receive buffer for an authenticated client, which Linux doubles for its own
overhead, within `net.core.rmem_max`. An unbounded buffer grows to many megabytes while brokers are
slow, and a re-authentication waits behind them until its session is over. A smaller buffer costs
CPU with large requests, and throughput on long paths."""
KEEPALIVE_IDLE_MS: Final = 120_000
"""Default time without traffic after which TCP keepalive probes a connection: load balancers forget
idle connections after minutes (AWS 350 s, Azure 4 min), and the kernel's default is two hours."""
PROBES: Final = 3
"""Number of unanswered probes after which the kernel ends a connection."""
PROBE_SECONDS: Final = 10
"""Longest interval between two probes in seconds."""


def peer_address(transport: asyncio.BaseTransport) -> str | None:
    """Return the peer's address in canonical form; None if the connection is closed.

    As in Java, an IPv4 peer of an IPv6 socket has its IPv4 address, and the zone of a link-local
    address is the number of the interface (`fe80::1%2`). IPv6 addresses are compressed (RFC 5952).
    """
    peer = transport.get_extra_info("peername")
    if not peer:
        return None
    zone = f"%{peer[3]}" if len(peer) > 2 and peer[3] else ""
    return canonical_ip(f"{peer[0]}{zone}")


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address that the proxy's other processes may share. Raises ConfigError.

    Accepted connections inherit the options (Linux), which saves system calls for each of them.
    """
    sock = _socket_for(host)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        begin_listening(sock)
    except OSError as error:
        sock.close()
        raise _unusable(host, port, error) from error
    return sock


def begin_listening(sock: socket.socket) -> None:
    """Listen on a bound socket, with the options that accepted connections inherit."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.listen(BACKLOG)
    sock.setblocking(False)


def bound_receive_buffer(sock: socket.socket) -> None:
    """Bound the kernel's receive buffer for an authenticated client.

    Before the login no bound is needed: the kernel's own buffer begins with 128 KiB and grows only
    as it is read. The window is set as well, because older kernels do not widen it once the buffer
    has a fixed size.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, RECEIVE_BUFFER_BYTES)


def keep_alive(sock: socket.socket, idle_ms: int) -> None:
    """Probe a connection without traffic for `idle_ms`, or the connections that a socket accepts.

    The kernel counts in seconds, and waits for the interval between two probes even if the first
    is answered.
    """
    idle_s = idle_ms // 1_000
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, min(idle_s, PROBE_SECONDS))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def is_listening(sock: socket.socket) -> bool:
    """Return whether a socket listens."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


class Claim:
    """Claim on a port: the proxy's processes can listen there, and other programs cannot.

    It is created before the processes that share it are forked: a port that one of them claims
    belongs to all, with its queue of connections. Clients cannot connect before `listen`.
    """

    def __init__(self, host: str, port: int, taken: socket.socket | None = None) -> None:
        """Create an unbound socket, or use `taken`, with which another process claimed the port.

        Raises OSError if no file descriptor is available.
        """
        self._host = host
        self._port = port
        self.sock = taken or _socket_for(host)
        """The socket, which is bound once the port is claimed."""

    @property
    def taken(self) -> socket.socket | None:
        """The socket that claims the port; None if the port is not claimed."""
        is_taken = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        return self.sock if is_taken else None

    @property
    def listens(self) -> bool:
        """True if clients can connect."""
        return is_listening(self.sock)

    def take(self) -> None:
        """Claim the port. Raises ConfigError if another program uses it, or has claimed it.

        With SO_REUSEADDR alone, two sockets may be bound to it, but only one can listen. After that
        only sockets with SO_REUSEPORT, such as those of `listen`, can also be bound.
        """
        sock = self.sock
        try:
            if self.taken is not None:
                return
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not sock.getsockname()[1]:
                sock.bind((self._host, self._port))
            sock.listen(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.stop_listening()
        except OSError as error:
            raise _unusable(self._host, self._port, error) from error

    def listen(self) -> socket.socket:
        """Claim the port, and listen on it, for all processes that share it. Raises ConfigError."""
        self.take()
        try:
            begin_listening(self.sock)
            return self.sock.dup()
        except OSError as error:
            raise _unusable(self._host, self._port, error) from error

    def stop_listening(self) -> None:
        """Stop accepting clients, in all processes; the port stays claimed."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        if self.listens:
            self.sock.shutdown(socket.SHUT_RDWR)

    def would_be_shared(self) -> bool:
        """Return whether the program that uses the port shares its clients, as a proxy does."""
        with _socket_for(self._host) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                sock.bind((self._host, self._port))
            except OSError:
                return False
            return True

    def close(self) -> None:
        """Release this process's claim."""
        self.sock.close()


def numeric_host(host: str) -> str:
    """Return a host's numeric address. Raises OSError if it is not an address of this machine."""
    with _socket_for(host) as sock:
        sock.bind((host, 0))
        name: str = sock.getsockname()[0]
        return name


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError("", f"cannot listen on {host_port(host, port)}: {error.strerror}")


def listen_privately(path: Path) -> socket.socket:
    """Listen on a Unix socket that only its owner can open. Raises ConfigError.

    A socket that a killed proxy left behind is replaced. The process must have a single thread,
    because the umask applies to the whole process.
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
        problem = error.strerror or str(error)  # Python itself checks the length of a name
        raise ConfigError("", f"cannot listen on {path}: {problem}") from error
    finally:
        os.umask(mask)
    return sock


def connect_privately(path: Path, timeout: float) -> socket.socket:
    """Connect to a Unix socket within `timeout` seconds. Raises OSError."""
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
    """Query the proxy behind an admin socket; `timeout` is in seconds.

    Raises OSError, also if neither root, nor this user, nor the owner of the socket's directory
    listens there, and ValueError if the answer is incomplete.
    """
    with connect_privately(path, timeout) as sock, sock.makefile("rwb") as stream:
        _, user = peer_of(sock)
        if user not in (0, os.geteuid(), path.parent.stat().st_uid):
            raise PermissionError(EPERM, f"user {user} listens there, not the user of the proxy")
        stream.write(json.dumps(question).encode() + b"\n")
        stream.flush()
        return json.loads(stream.readline())


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of a Unix socket's peer (unix(7), SO_PEERCRED)."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(packed)
    return process, user


def remove_left_over(path: Path) -> None:
    """Remove a Unix socket that no process listens on any more. Raises OSError."""
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


class Inherited:
    """Sockets of another process, by the addresses that they are bound to."""

    def __init__(self, sockets: Iterable[socket.socket] = ()) -> None:
        self._sockets = {_name(sock): sock for sock in sockets}

    def left_of(self, sockets: Iterable[socket.socket]) -> list[str]:
        """Return the addresses of the sockets among these that were not taken."""
        left = self._sockets.items()
        return [host_port(*address) for address, sock in left if sock in sockets]

    def take(self, host: str, port: int) -> socket.socket | None:
        """Return the socket of an address; None if it was not inherited."""
        if not self._sockets:
            return None
        return self._sockets.pop((numeric_host(host), port), None)

    def take_listening(self, host: str, port: int) -> socket.socket | None:
        """Return the socket of an address, listening; None if it was not inherited."""
        sock = self.take(host, port)
        if sock is not None:
            begin_listening(sock)
        return sock

    def take_private(self, path: Path) -> socket.socket | None:
        """Return the Unix socket of this name; None if it was not inherited.

        Only the name counts: the directory is that of the previous process's socket.
        """
        return self._sockets.pop(("", path.name), None)

    def close(self) -> None:
        """Close the sockets that were not taken."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()


def _name(sock: socket.socket) -> tuple[str, int | str]:
    name = sock.getsockname()
    return ("", Path(name).name) if sock.family == socket.AF_UNIX else name[:2]


def of_systemd(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd passes to this process. Raises ConfigError.

    The variables that name them are removed, so that no child process uses them.
    """
    count, pid, _ = (environment.pop(key, "") for key in _VARIABLES)
    if pid != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise ConfigError("LISTEN_FDS", f"{count!r} is not a number of sockets")
    sockets = []
    for fd in range(FIRST_OF_SYSTEMD, FIRST_OF_SYSTEMD + int(count)):
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
            is_usable = sock.family in _INTERNET and is_listening(sock)
        except OSError:
            is_usable = False
        if not is_usable:
            raise ConfigError(
                "LISTEN_FDS",
                f"file descriptor {fd} of systemd is not a listening TCP socket"
                " (ListenStream= with a port, and Accept=no)",
            )
        sockets.append(sock)
    return sockets
