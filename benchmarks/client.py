"""Client of the memory and batch benchmarks: one connection, which logs in by OAUTHBEARER."""

import socket
import struct
import threading

from benchmarks.programs import MeasurementFailed
from benchmarks.targets import OAUTHBEARER, Target
from proxy.wire.apis import API_VERSIONS
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE

_CLIENT_ID = b"bench"
_TIMEOUT_SECONDS = 120.0


class Client:
    """Connection that has logged in, and sends one batch of requests at a time."""

    def __init__(self, target: Target, token: str) -> None:
        """Connect to `target`, and log in. Raises MeasurementFailed."""
        address = (target.address.host, target.address.port)
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_SECONDS)
        self._read = bytearray()
        mechanism = struct.pack(">h", len(OAUTHBEARER)) + OAUTHBEARER.encode()
        response = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        *_, answer = self.ask(
            request(API_VERSIONS, 3, b"\x06bench\x021\0", flexible=True),
            request(SASL_HANDSHAKE, 1, mechanism),
            request(SASL_AUTHENTICATE, 1, struct.pack(">i", len(response)) + response),
        )
        if answer[4:6] != b"\0\0":
            raise MeasurementFailed(f"login refused: {answer!r}")

    def ask(self, *requests: bytes) -> list[bytes]:
        """Send requests together, and return their responses."""
        sender = threading.Thread(target=self._socket.sendall, args=(b"".join(requests),))
        sender.start()
        responses = [self._receive() for _ in requests]
        sender.join()
        return responses

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._take(4))
        return self._take(size)

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            piece = self._socket.recv(1 << 20)
            if not piece:
                raise MeasurementFailed("a connection was closed")
            self._read += piece
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def request(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """Return a request with its size; `flexible`: its header has tags (KIP-482)."""
    head = struct.pack(">hhih", api_key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID
    content = head + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(content)) + content
