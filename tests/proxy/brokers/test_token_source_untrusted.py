"""What a token endpoint can do to us, or whoever stands between."""

import asyncio
import json

import pytest

from proxy.brokers import token_source
from proxy.brokers.token_source import EndpointTokens
from sasl.token_cache import MAX_ANSWER_BYTES
from tests.support.certificates import Authority
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.tls import server_context
from tests.support.upstream import (
    BASIC,
    SECRET,
    Provider,
    asking,
    providing,
    why_none,
    with_provider,
)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    """Or whoever can make the endpoint redirect is sent our secret, or hands out tokens."""

    async def test(tokens: EndpointTokens, provider: Provider) -> None:
        provider.status, provider.headers = status, {"Location": "/other"}
        assert "redirects are not followed" in await why_none(tokens)
        assert provider.elsewhere == 0

    with_provider(test)


@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        SECRET.upper(),
        SECRET[:10],
        BASIC,
        "s3cret%2Fwith%2Bsigns%3Aand%3Dmore",
        "x" * 190 + SECRET,
        "x" * 10_000,
        "line\r\nWARNING all is lost\x1b[2J \u202e \u00fc",
    ],
)
def test_what_a_refusal_says_is_made_safe(said: str, caplog: pytest.LogCaptureFixture) -> None:
    """An answer that repeats the request is common, and logs are read by many."""

    async def test(tokens: EndpointTokens, provider: Provider) -> None:
        provider.status = 401
        for body in (
            {"error": "invalid_client", "error_description": said},
            {"error": said},
        ):
            provider.body = json.dumps(body).encode()
            await why_none(tokens)
            await until(lambda: tokens._cache.wants_refresh(asyncio.get_running_loop().time()))
        provider.body = said.encode()
        assert "HTTP status 401" in await why_none(tokens)
        assert all(len(line) < 400 and line.isprintable() for line in caplog.messages)
        assert "s3cret" not in caplog.text.lower()
        assert BASIC not in caplog.text

    with_provider(test)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + f"{SECRET}\r\n\r\n".encode(),
        f"{SECRET} {BASIC}\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nX: " + SECRET.encode() * 3_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + SECRET.encode() + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"\x00\xff\x1b[2J" * 50,
        b"",
    ],
)
def test_what_is_no_http_is_made_safe(answer: bytes) -> None:
    """The errors of HTTP libraries quote what they could not read."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run() -> None:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            await asyncio.start_server(talk, "127.0.0.1", 0) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            tokens = asking(f"http://127.0.0.1:{port}/token")
            assert "no token from http://127.0.0.1:" in await why_none(tokens)

    asyncio.run(run())


def test_a_body_without_end_is_not_read_to_its_end() -> None:
    async def run() -> None:
        async with providing() as (_, url):
            tokens = asking(url.replace("/token", "/endless"))
            assert str(MAX_ANSWER_BYTES) in await why_none(tokens)

    asyncio.run(run())


def test_what_is_packed_is_not_unpacked() -> None:
    """A thousand bytes could become a million."""

    async def test(tokens: EndpointTokens, provider: Provider) -> None:
        provider.headers, provider.body = {"Content-Encoding": "gzip"}, b"\x1f\x8b\x08"
        assert "not a JSON object" in await why_none(tokens)
        assert provider.asked[0].headers["Accept-Encoding"] == "identity"

    with_provider(test)


def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 0.2)

    async def test(tokens: EndpointTokens, provider: Provider) -> None:
        provider.answering.clear()
        assert "no answer within 0.2 seconds" in await why_none(tokens)
        provider.answering.set()

    with_provider(test)


def test_nobody_listens() -> None:
    assert "Connect" in asyncio.run(why_none(asking("http://127.0.0.1:9/token")))


def test_an_endpoint_with_a_certificate_of_nobody_is_told_nothing() -> None:
    async def run() -> None:
        async with providing(server_context(Authority().issue())) as (provider, url):
            assert url.startswith("https:")
            assert "CERTIFICATE_VERIFY_FAILED" in await why_none(asking(url))
            assert provider.asked == []

    asyncio.run(run())


def test_people_are_not_shown_what_a_url_may_hold() -> None:
    tokens = asking("http://user:hidden@127.0.0.1:9/token?key=hidden")
    reason = asyncio.run(why_none(tokens))
    assert "no token from http://127.0.0.1:9/token:" in reason
    assert "hidden" not in reason
