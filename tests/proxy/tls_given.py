"""Contexts of the other side, and a client that can do with TLS what a person with a wire can."""

import asyncio
import os
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.certificates import Authority, Issued
from tests.proxy.relayed import Secured


@dataclass(frozen=True)
class Spoken:
    """What brokers are met with."""

    context: ssl.SSLContext
    expires_at: float | None = None


def load(context: ssl.SSLContext, issued: Issued) -> None:
    file = os.memfd_create("test")
    os.write(file, issued.pem)
    context.load_cert_chain(f"/proc/self/fd/{file}")
    os.close(file)


def server_context(issued: Issued, *, clients_of: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, issued)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients_of.certificate.decode())
    return context


def client_context(authority: Authority, *, shown: Issued | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    if shown is not None:
        load(context, shown)
    return context


AUTHORITY = Authority()
OURS = AUTHORITY.issue()
FRONT = Secured(client=client_context(AUTHORITY), clients=server_context(OURS))
BACK = Secured(brokers=client_context(AUTHORITY), broker=server_context(OURS))
BOTH = Secured(client=FRONT.client, clients=FRONT.clients, brokers=BACK.brokers, broker=BACK.broker)


class TlsClient:
    """TLS over plain streams: unlike asyncio's it can end its sending and go on reading."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._plain = b""
        self.was_told_of_the_end = False

    @classmethod
    async def connect(
        cls, port: int, context: ssl.SSLContext, *, bytewise: bool = False, first: bytes = b""
    ) -> Self:
        """`first` is sent together with the last bytes of the handshake."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port), context)
        try:
            await client._shake_hands(first, bytewise=bytewise)
        except BaseException:
            client.close()
            raise
        return client

    async def _shake_hands(self, first: bytes, *, bytewise: bool) -> None:
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._send(bytewise=bytewise)
                await self._receive()
            else:
                while first:
                    first = first[self.ssl.write(first) :]
                await self._send(bytewise=bytewise)
                return

    async def _send(self, *, bytewise: bool) -> None:
        data = self._outgoing.read()
        step = 1 if bytewise else max(1, len(data))
        for start in range(0, len(data), step):
            self._writer.write(data[start : start + step])
            await asyncio.sleep(0)

    async def _receive(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        self._incoming.write(data)

    def write(self, data: bytes) -> None:
        while data:
            data = data[self.ssl.write(data) :]
        self._writer.write(self._outgoing.read())

    def write_raw(self, data: bytes) -> None:
        self._writer.write(data)

    def finish_sending(self, *, notify: bool = True) -> None:
        if notify:
            with suppress(ssl.SSLError):
                self.ssl.unwrap()
            self._writer.write(self._outgoing.read())
        self._writer.write_eof()

    def pause(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def _some(self) -> bytes:
        while True:
            try:
                data = self.ssl.read(65_536)
            except ssl.SSLWantReadError:
                await self._receive()
                continue
            except ssl.SSLZeroReturnError:
                data = b""
            self.was_told_of_the_end = not data
            return data

    async def read(self) -> bytes:
        """Everything to the end."""
        found, self._plain = self._plain, b""
        try:
            while data := await self._some():
                found += data
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return found

    async def frame(self) -> bytes:
        while (
            len(self._plain) < 4 or len(self._plain) < 4 + struct.unpack(">i", self._plain[:4])[0]
        ):
            data = await self._some()
            if not data:
                raise asyncio.IncompleteReadError(self._plain, None)
            self._plain += data
        end = 4 + int.from_bytes(self._plain[:4], "big")
        frame, self._plain = self._plain[4:end], self._plain[end:]
        return frame

    def close(self) -> None:
        self._writer.close()
