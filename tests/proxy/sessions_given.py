"""A proxy that really runs, with a broker and clients in the test's event loop."""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from proxy.wire.apis import API_VERSIONS, METADATA
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from sasl.oauthbearer_messages import client_initial_response
from tests.proxy.frames_given import read_authenticated, request
from tests.proxy.relayed import read_frame
from tests.proxy.routing.fake_broker import FakeBroker
from tests.proxy.serving import PATIENCE_SECONDS, Serving
from tests.support.sasl import claims, document, ed_key, token

LIFETIME_S = 3_600


class Client:
    """A client that has logged in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ended(self) -> bool:
        """Whether the proxy has closed the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read(1) == b""

    def is_open(self) -> bool:
        return not self.reader.at_eof()


class Proxy(Serving):
    """A proxy of several workers, its broker and its clients."""

    def __init__(self, directory: Path, workers: int, broker: FakeBroker) -> None:
        super().__init__(directory, workers)
        self.clients: list[Client] = []
        jwks = directory / "jwks.json"
        jwks.write_bytes(document(ed_key().jwk()))
        self.settings["upstream"] = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        self.settings["listeners"][0] |= {
            "sasl.enabled.mechanisms": ["OAUTHBEARER"],
            "reauth.enforcement": "enforce",
            "connections.max.reauth.ms": LIFETIME_S * 1000,
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{jwks}",
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        self.write()

    async def log_in(
        self, user: str, client_id: str = "app", *, version: int = 1, ends_in: float = LIFETIME_S
    ) -> Client:
        """Log in; with `version` 0 as a client that knows nothing of lifetimes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = Client(reader, writer)
        self.clients.append(client)
        now = time.time()
        bearer = client_initial_response(
            token(claims(sub=user, iat=now - 10, exp=now + ends_in), ed_key())
        )
        writer.write(request(API_VERSIONS, 3, 1, b"\x05java\x064.1.0\0", client_id))
        mechanism = b"\0\x0bOAUTHBEARER"
        writer.write(request(SASL_HANDSHAKE, 1, 2, mechanism, client_id))
        body = struct.pack(">i", len(bearer)) + bearer
        writer.write(request(SASL_AUTHENTICATE, version, 3, body, client_id))
        for _ in range(2):
            await read_frame(reader)
        error, *_ = read_authenticated(await read_frame(reader), version)
        assert error == 0
        return client

    async def ask_metadata(self, client: Client) -> None:
        """Have one request relayed."""
        client.writer.write(request(METADATA, 1, 9, b"\0\0\0\0", "app"))
        await read_frame(client.reader)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.02)

    async def fetch(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        async with (
            ClientSession(timeout=ClientTimeout(PATIENCE_SECONDS)) as session,
            session.get(url) as answer,
        ):
            return answer.status, await answer.text()

    async def fetch_json(self, path: str) -> dict[str, Any]:
        status, body = await self.fetch(path)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    async def is_ready(self) -> bool:
        try:
            return (await self.fetch("/readyz"))[0] == 200
        except OSError:
            return False


@asynccontextmanager
async def running(directory: Path, workers: int = 2) -> AsyncIterator[Proxy]:
    """Start all; end all."""
    async with FakeBroker() as broker:
        proxy = Proxy(directory, workers, broker)
        try:
            await asyncio.to_thread(proxy.start)
            await proxy.until(proxy.is_ready)
            yield proxy
        finally:
            for client in proxy.clients:
                client.writer.close()
            await asyncio.to_thread(proxy.stop)
