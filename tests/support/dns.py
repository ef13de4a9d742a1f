"""A DNS server in a network namespace, for programs started with `ip netns exec`."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Namespace

_HEADER = struct.Struct(">6H")
_A = 1
_ANSWERS = 0x8180
"""It is a response, and recursion was available (RFC 1035 section 4.1.1)."""


class Dns:
    """Addresses by name; a name without an entry is never answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.names: dict[str, list[str]] = {}
        self.unanswered = 0
        self._socket = sock

    def serve(self) -> None:
        """Answer until the socket is shut down."""
        while True:
            query, peer = self._socket.recvfrom(512)
            if not query:
                return
            name, end = _question(query)
            if name not in self.names:
                self.unanswered += 1
                continue
            (kind,) = struct.unpack_from(">H", query, end)
            found = self.names[name] if kind == _A else []
            head = _HEADER.pack(int.from_bytes(query[:2]), _ANSWERS, 1, len(found), 0, 0)
            records = [
                struct.pack(">HHHIH", 0xC00C, _A, 1, 0, 4) + socket.inet_aton(one) for one in found
            ]
            self._socket.sendto(b"".join((head, query[12 : end + 4], *records)), peer)


def _question(query: bytes) -> tuple[str, int]:
    """The name of the first question, and where it ends."""
    labels, at = [], _HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower(), at + 1


@contextmanager
def serving_dns(here: Namespace) -> Iterator[Dns]:
    """Run the server at 127.0.0.1."""
    files = Path("/etc/netns") / here.name  # ip-netns(8)
    files.mkdir(parents=True)
    (files / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (files / "hosts").write_text("127.0.0.1 localhost\n")
    try:
        with here.inside(lambda: socket.socket(type=socket.SOCK_DGRAM)) as sock:
            sock.bind(("127.0.0.1", 53))
            dns = Dns(sock)
            thread = threading.Thread(target=dns.serve)
            thread.start()
            try:
                yield dns
            finally:
                with here.inside(lambda: socket.socket(type=socket.SOCK_DGRAM)) as last:
                    last.sendto(b"", ("127.0.0.1", 53))
                thread.join()
    finally:
        for file in files.iterdir():
            file.unlink()
        files.rmdir()
