"""What the proxy logs in with and to: a broker that wants a login, a token endpoint."""

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

from proxy.connection.commands import Close, CloseReason, DeriveKeys
from proxy.connection.connection import Connection
from proxy.connection.upstream_login import UpstreamLogin
from proxy.upstream.token_source import EndpointTokens, FileTokens, TokenUnavailable
from sasl.login import ClientExchange, PlainClient
from sasl.messages import authenticate_response, handshake_response
from sasl.token_cache import TokenCacheSettings
from tests.support.frames import fetch, response
from tests.support.playbook import Play, logged_in
from tests.support.processes import PATIENCE_SECONDS

# A broker that wants a login of the proxy, and answers as it is told

PLAIN = PlainClient("proxy", "secret")


def waiting_play() -> Play:
    """A client has asked for something, and the broker is connected but knows nobody yet."""
    play = logged_in(Play(logs_in=True))
    play.client(fetch(3))
    assert play.take() == ["connect", "GetIdentity"]
    return play


def on_login(play: Play, what: Callable[[UpstreamLogin, float], None]) -> None:
    def tell(connection: Connection, now: float) -> None:
        assert connection.upstream_login is not None
        what(connection.upstream_login, now)

    play.tell(tell)


def identify(play: Play, exchange: ClientExchange = PLAIN) -> None:
    on_login(play, lambda login, now: login.identified(exchange, now))


def derived(play: Play, derive: DeriveKeys) -> None:
    token = derive.work()
    on_login(play, lambda login, now: login.derived(token, now))


def offers(*mechanisms: str, error_code: int = 0) -> bytes:
    return response(0, handshake_response(error_code, mechanisms))


def lets_in(lifetime_ms: int = 0, *, token: bytes = b"", error_code: int = 0) -> bytes:
    body = authenticate_response(
        2,
        error_code=error_code,
        error_message="no such \x1b[31muser\n" if error_code else "",
        auth_bytes=token,
        session_lifetime_ms=lifetime_ms,
    )
    return response(0, b"\0" + body)


def log_in(play: Play, lifetime_ms: int = 0) -> None:
    """Let the broker say yes to all."""
    identify(play)
    play.broker(offers("PLAIN"))
    play.broker(lets_in(lifetime_ms))


def connected(lifetime_ms: int = 0) -> Play:
    """A client whose first request was answered."""
    play = waiting_play()
    log_in(play, lifetime_ms)
    play.broker(response(3))
    play.take()
    return play


def close_reason(play: Play) -> CloseReason:
    [close] = [one for one in play.commands if isinstance(one, Close)]
    return close.reason


# A token endpoint, and who asks it

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
