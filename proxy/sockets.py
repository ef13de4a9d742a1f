"""Listening sockets that several processes of ours share."""

import socket
from typing import Final

from proxy.errors import ConfigError

BACKLOG: Final = 4_096


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address that other processes of ours may listen on too. Raises ConfigError.

    Accepted connections inherit the options (Linux), which saves the calls per connection.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
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
        raise ConfigError("", f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock
