"""Upstream logins: a broker that requires a login, and a token endpoint."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.brokers.access import token_source
from proxy.brokers.token_source import EndpointTokens, FileTokens, RenewedTokens
from proxy.connection.commands import Close, CloseReason, DeriveKeys
from sasl.login import ClientExchange, LoginError, PlainClient
from sasl.messages import authenticate_response, handshake_response
from tests.support.fake_broker import (
    ECHO,
    FORGED,
    NAME,
    PASSWORD,
    TOKEN,
    Behaviour,
    FalseBroker,
    Met,
)
from tests.support.frames import fetch, produce, response
from tests.support.kafka.wire_client import Outcome, WireClient
from tests.support.playbook import Playbook, logged_in
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.proxy_process import ProxyProcess
from tests.support.settings import PLAINTEXT, configured, mapping

# A broker that requires a login of the proxy, with scripted answers

PROXY_LOGIN = PlainClient("proxy", "secret")


def waiting_play() -> Playbook:
    """A client has sent a request; the broker is connected but not logged in yet."""
    play = logged_in(Playbook(logs_in=True))
    play.client(fetch(3))
    assert play.take() == ["connect", "GetIdentity"]
    return play


def identified(exchange: ClientExchange = PROXY_LOGIN) -> Playbook:
    """The login to the broker has begun."""
    play = waiting_play()
    identify(play, exchange)
    return play


def identify(play: Playbook, exchange: ClientExchange = PROXY_LOGIN) -> None:
    play.call(lambda connection, now: connection.upstream_login.identified(exchange, now))


def derived(play: Playbook, derive: DeriveKeys) -> None:
    token = derive.work()
    play.call(lambda connection, now: connection.upstream_login.derived(token, now))


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


def log_in(play: Playbook, lifetime_ms: int = 0) -> None:
    """Log in; the broker accepts everything."""
    identify(play)
    play.broker(offers("PLAIN"))
    play.broker(lets_in(lifetime_ms))


def connected(lifetime_ms: int = 0) -> Playbook:
    """A connection whose first request was answered."""
    play = waiting_play()
    log_in(play, lifetime_ms)
    play.broker(response(3))
    play.take()
    return play


def due() -> Playbook:
    """A connection whose next request waits for another login."""
    play = connected(60_000)
    play.now = play.connection.requests.renew_at + 1
    return play


def close_reason(play: Playbook) -> CloseReason:
    [close] = [one for one in play.commands if isinstance(one, Close)]
    return close.reason


# A token endpoint and its clients

SECRET = "s3cret/with+signs:and=more"
BASIC = base64.b64encode(f"proxy:{SECRET}".encode()).decode()


@dataclass(frozen=True)
class Asked:
    headers: Mapping[str, str]
    body: str


class Provider:
    """A token endpoint with configurable answers and numbered tokens."""

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
    tokens = EndpointTokens(
        url, client_id="proxy", client_secret=lambda: SECRET, scope=scope, header_urlencode=encoded
    )
    return retrying_soon(tokens)


def retrying_soon(tokens: EndpointTokens) -> EndpointTokens:
    tokens._cache._retry_backoff_ms, tokens._cache._retry_backoff_max_ms = 10, 20
    return tokens


@asynccontextmanager
async def with_provider() -> AsyncIterator[tuple[EndpointTokens, Provider]]:
    async with providing() as (provider, url):
        yield asking(url), provider


def provided_by(servers: str = "127.0.0.1:9092", **settings: Any) -> RenewedTokens:
    """The tokens of `upstream` with these settings `sasl.…`."""
    upstream = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **{"sasl." + key.replace("_", "."): value for key, value in settings.items()},
    }
    found = token_source(configured(Path(), PLAINTEXT, upstream).upstream, servers)
    assert isinstance(found, RenewedTokens)
    return found


async def why_none(tokens: FileTokens | RenewedTokens) -> str:
    """The reason for a missing token; asserts that it is printable and contains no secret."""
    with pytest.raises(LoginError) as caught:
        await tokens.current()
    reason = caught.value.reason
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 400
    for secret in (SECRET, SECRET[:8], BASIC, BASIC[:12], "s3cret%2Fwith"):
        assert secret.lower() not in reason.lower()
    return reason


PLAIN, SCRAM, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"


MARKER = b"what clients alone may tell brokers"


class Attacked:
    """A proxy in front of a false broker."""

    def __init__(self, proxy: ProxyProcess, broker: FalseBroker) -> None:
        self.proxy = proxy
        self.broker = broker

    def client(self) -> WireClient:
        return WireClient(self.proxy.addresses()["CLIENTS"])

    def ask(self, behaviour: type[Behaviour]) -> tuple[bytes | Outcome, Met]:
        """Send a client's request to such a broker; return the response and the broker's record."""
        self.broker.relayed = behaviour
        before = len(self.broker.met)
        with self.client() as client:
            client.raw(produce(1, records=MARKER))
            heard = client.receive()
        return heard, self.broker.met[before]

    def works(self) -> bool:
        """Whether a client of a correct broker is served."""
        heard, met = self.ask(Behaviour)
        return heard == response(1, ECHO)[4:] and MARKER in met.received


def login(mechanism: str, directory: Path) -> dict[str, Any]:
    secret = directory / "secret"
    if mechanism == OAUTHBEARER:
        secret.write_text(TOKEN)
        return {"sasl.oauthbearer.token.endpoint.url": secret.as_uri()}
    secret.write_text(PASSWORD)
    return {"sasl.username": NAME, "sasl.password": f"file:{secret}"}


def assert_clean(text: str) -> None:
    """Assert that a log contains no forged line and no secret."""
    assert "Traceback" not in text
    for line in text.split("\n"):
        assert line.isprintable()
        assert not line.startswith(FORGED)
    for secret in (PASSWORD, TOKEN, MARKER.decode()):
        assert secret not in text


def start(
    mechanism: str,
    directory: Path,
    stack: ExitStack,
    *,
    asked: type[Behaviour] = Behaviour,
    relayed: type[Behaviour] = Behaviour,
) -> Attacked:
    broker = stack.enter_context(FalseBroker())
    broker.asked, broker.relayed = asked, relayed
    port, http_port = free_ports(2)
    upstream = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **login(mechanism, directory),
    }
    listener = {**PLAINTEXT, "address": f"127.0.0.1:{port}"}
    config = mapping(listener, upstream, http={"address": f"127.0.0.1:{http_port}"})
    return Attacked(stack.enter_context(ProxyProcess(config, directory)), broker)
