"""Sockets that were made by another process: the proxy before this one, or systemd."""

import os
import socket
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Final

from proxy.errors import ConfigError, host_port
from proxy.net.sockets import begin_listening, is_listening, numeric_host

FIRST_OF_SYSTEMD: Final = 3
"""First file descriptor that systemd passes: `SD_LISTEN_FDS_START`, sd_listen_fds(3)."""
_VARIABLES: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)


class Inherited:
    """Sockets of another process, each to be taken by what it is bound to."""

    def __init__(self, sockets: Iterable[socket.socket] = ()) -> None:
        self._sockets = {_name(sock): sock for sock in sockets}

    def left_of(self, sockets: Iterable[socket.socket]) -> list[str]:
        """Return the addresses of those of these sockets that nobody has taken."""
        left = self._sockets.items()
        return [host_port(*address) for address, sock in left if sock in sockets]

    def take(self, host: str, port: int) -> socket.socket | None:
        """Return the socket of an address; None: there is none."""
        if not self._sockets:
            return None
        return self._sockets.pop((numeric_host(host), port), None)

    def take_listening(self, host: str, port: int) -> socket.socket | None:
        """Return the socket of an address, which listens; None: there is none."""
        sock = self.take(host, port)
        if sock is not None:
            begin_listening(sock)
        return sock

    def take_private(self, path: Path) -> socket.socket | None:
        """Return the Unix socket of this name; None: there is none.

        The directory is that in which the socket of the process before was found.
        """
        return self._sockets.pop(("", path.name), None)

    def close(self) -> None:
        """Close the sockets that nobody has taken."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()


def _name(sock: socket.socket) -> tuple[str, int | str]:
    name = sock.getsockname()
    return ("", Path(name).name) if sock.family == socket.AF_UNIX else name[:2]


def of_systemd(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd passes to this process. Raises ConfigError.

    The variables that name them are removed, so that no child takes them for its own.
    """
    count, pid, _ = (environment.pop(key, "") for key in _VARIABLES)
    if pid != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise ConfigError("LISTEN_FDS", f"{count!r} is no number of sockets")
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
                f"file descriptor {fd} of systemd is no TCP socket that listens"
                " (ListenStream= with a port, and Accept=no)",
            )
        sockets.append(sock)
    return sockets
