"""Both ends of TLS without a socket: a client, and the transport under test."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress

from proxy.connection.frames import Bytes
from proxy.net.read_buffer import ReadBuffer
from proxy.net.tls_pace import RECORD
from proxy.net.tls_sides import ServerTls
from tests.proxy.tls_given import AUTHORITY, OURS, client_context, server_context


class Ear:
    """A side that listens."""

    peer_owes = False

    def __init__(self) -> None:
        self.heard = b""
        self.waits_behind_the_end = False

    def data_received(self, data: Bytes) -> None:
        self.heard += bytes(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def eof_received(self) -> bool:
        return self.waits_behind_the_end

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class Wire(asyncio.Transport):
    """A socket's transport: what is written to it goes to the client."""

    def __init__(self, to_client: ssl.MemoryBIO) -> None:
        super().__init__()
        self._to_client = to_client
        self.reads = True
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._to_client.write(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


class Turns:
    """Those who wait for theirs."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def wait(self, _who: str, go_on: Callable[[], None]) -> None:
        self.waiting.append(go_on)

    def take_all(self) -> None:
        """Let everybody go on until nobody waits."""
        while self.take():
            pass

    def take(self) -> bool:
        """Let whoever waits go on; False: nobody does."""
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()
        return bool(waiting)


class Server:
    """The transport under test, and all that it has to do with; a client is to come."""

    def __init__(self) -> None:
        self.ear = Ear()
        self.turns = Turns()
        self.to_client = ssl.MemoryBIO()
        self.wire = Wire(self.to_client)
        self.tls = ServerTls(
            self.ear, ReadBuffer(), self.turns.wait, server_context(OURS), lambda _: None
        )
        self.tls.connection_made(self.wire)


class Conversation(Server):
    """A client and the transport under test, after their handshake."""

    def __init__(self) -> None:
        super().__init__()
        self._from_client = ssl.MemoryBIO()
        self._client = client_context(AUTHORITY).wrap_bio(
            self.to_client, self._from_client, server_hostname="localhost"
        )
        for _ in range(2):
            with suppress(ssl.SSLWantReadError):
                self._client.do_handshake()
            self.tls.data_received(self._from_client.read())

    def encrypted(self, plain: bytes) -> bytes:
        """One record for each `RECORD` bytes."""
        for start in range(0, len(plain), RECORD):
            self._client.write(plain[start : start + RECORD])
        return self._from_client.read()

    def farewell(self) -> bytes:
        """A close_notify."""
        with suppress(ssl.SSLWantReadError):
            self._client.unwrap()
        return self._from_client.read()
