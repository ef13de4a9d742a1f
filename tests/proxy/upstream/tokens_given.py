"""A token endpoint, and who asks it."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.upstream.token_source import EndpointTokens, FileTokens, TokenUnavailable
from sasl.token_cache import TokenCacheSettings
from tests.proxy.waiting import PATIENCE_SECONDS

SECRET = "s3cret/with+signs:and=more"
BASIC = base64.b64encode(f"proxy:{SECRET}".encode()).decode()


@dataclass(frozen=True)
class Asked:
    headers: Mapping[str, str]
    body: str


class Provider:
    """A token endpoint whose answers can be changed; its tokens are numbered."""

    def __init__(self) -> None:
        self.status, self.expires_in = 200, 3600
        self.body: bytes | None = None
        self.headers: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.elsewhere = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def token(self, request: web.Request) -> web.Response:
        assert request.method == "POST"
        self.asked.append(Asked(request.headers, await request.text()))
        number = len(self.asked)
        await self.answering.wait()
        body = self.body
        if body is None:
            said = {"access_token": f"token-{number}", "expires_in": self.expires_in}
            body = json.dumps(said | {"token_type": "Bearer"}).encode()
        return web.Response(status=self.status, body=body, headers=self.headers)

    async def other(self, _: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response(body=b'{"access_token":"stolen"}')

    async def endless(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.headers, await request.text()))
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 65_536)
        except ConnectionError:
            return response

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/token", self.token)
        app.router.add_post("/endless", self.endless)
        app.router.add_route("*", "/other", self.other)
        return app


@asynccontextmanager
async def providing(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Provider, str]]:
    provider = Provider()
    server = TestServer(provider.app())
    await server.start_server(ssl=tls)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield provider, str(server.make_url("/token"))
    finally:
        await server.close()


def asking(url: str, *, scope: str | None = None, encoded: bool = False) -> EndpointTokens:
    return EndpointTokens(
        url,
        client_id="proxy",
        client_secret=lambda: SECRET,
        scope=scope,
        header_urlencode=encoded,
        settings=TokenCacheSettings(retry_backoff_ms=10, retry_backoff_max_ms=20),
    )


def with_provider(test: Callable[[EndpointTokens, Provider], Awaitable[None]]) -> None:
    async def run() -> None:
        async with providing() as (provider, url):
            await test(asking(url), provider)

    asyncio.run(run())


async def why_none(tokens: FileTokens | EndpointTokens) -> str:
    """The reason, which is fit for a log and keeps secrets, whatever happened."""
    with pytest.raises(TokenUnavailable) as caught:
        await tokens.current()
    reason = caught.value.reason
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 400
    for secret in (SECRET, SECRET[:8], BASIC, BASIC[:12], "s3cret%2Fwith"):
        assert secret.lower() not in reason.lower()
    return reason
