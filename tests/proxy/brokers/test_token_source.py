"""The proxy's own token, read from files and asked of endpoints, on a real event loop."""

import asyncio
import base64
import json
import logging
import os
import time
from functools import partial
from pathlib import Path

import pytest

from proxy.brokers import token_source
from proxy.brokers.token_source import EndpointTokens, FileTokens, read_secret
from proxy.config.values import Secret
from sasl.token_cache import MAX_ANSWER_BYTES
from tests.support.certificates import Authority
from tests.support.processes import PATIENCE_SECONDS, turns, until
from tests.support.tls import server_context
from tests.support.upstream import (
    BASIC,
    SECRET,
    asking,
    providing,
    retrying_soon,
    why_none,
    with_provider,
)


async def test_what_the_endpoint_is_asked() -> None:
    """The client credentials grant, with the fields that Kafka's client sends."""

    async with providing() as (provider, url):
        assert await asking(url).current() == "token-1"
        await asking(url, scope="kafka api://x/.default").current()
        plain, scoped = provider.asked
        assert plain.headers["Authorization"] == f"Basic {BASIC}"
        assert plain.headers["Content-Type"] == "application/x-www-form-urlencoded"
        assert plain.headers["Accept"] == "application/json"
        assert plain.body == "grant_type=client_credentials"
        assert scoped.body == ("grant_type=client_credentials&scope=kafka+api%3A%2F%2Fx%2F.default")


async def test_those_who_wait_share_one_fetch() -> None:
    """A thousand clients that connect at once ask the identity provider once."""

    async with with_provider() as (tokens, provider):
        provider.answering.clear()
        waiting = [asyncio.create_task(tokens.current()) for _ in range(50)]
        await until(lambda: len(provider.asked) > 0)
        waiting[0].cancel()  # a waiter that gives up, even the first, stops no other
        provider.answering.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert found[1:] == ["token-1"] * 49
        assert len(provider.asked) == 1


async def test_the_schedule_brings_new_tokens_while_the_old_ones_hold() -> None:
    async with with_provider() as (tokens, provider):
        provider.expires_in = 1
        running = asyncio.create_task(tokens.run())
        await until(lambda: len(provider.asked) >= 3)
        provider.expires_in = 3600
        await until(lambda: (tokens.expires_at or 0) > time.time() + 600)
        asked = len(provider.asked)
        assert await tokens.current() == f"token-{asked}"
        await turns()
        assert len(provider.asked) == asked, "the next one is most of an hour away"
        running.cancel()


async def test_an_outage_is_survived_and_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    """Once when it begins, once when it ends, however long it takes."""

    async with with_provider() as (tokens, provider):
        caplog.set_level(logging.INFO, token_source.__name__)
        await tokens.current()
        for status, body in ((503, b""), (429, b"{}"), (200, b"{"), (200, b"{}"), (401, b"[]")):
            provider.status, provider.body = status, body
            await tokens.refresh()
            assert await tokens.current() == "token-1"
        assert tokens.refresh_failures == 5
        provider.status, provider.body = 200, None
        for _ in range(2):
            await tokens.refresh()
        assert await tokens.current() == "token-8"
        begun, ended = caplog.messages
        assert "HTTP status 503; the current token is used until it expires" in begun
        assert "issues tokens again" in ended


async def test_an_outage_that_outlasts_the_token() -> None:
    """Nobody logs in with an expired token, and however many try, the endpoint is not flooded."""

    async with providing() as (provider, url):
        tokens = EndpointTokens(url, client_id="proxy", client_secret=lambda: SECRET)
        then, wall_then = asyncio.get_running_loop().time() - 2, time.time() - 2
        answer = b'{"access_token":"old","expires_in":1}'
        assert tokens._cache.loaded(answer, now=then, wall_now=wall_then, jitter=0.0)
        provider.status, provider.body = 401, b'{"error":"invalid_client"}'
        for _ in range(100):
            assert "HTTP status 401: invalid_client" in await why_none(tokens)
        assert len(provider.asked) == 1, "the next one is ten seconds away"
        assert (tokens.expires_at, tokens.refresh_failures) == (wall_then + 1, 1)


async def test_a_secret_that_was_replaced_is_used(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    async with providing() as (provider, url):
        read = partial(read_secret, Secret(path, None), "client secret")
        tokens = retrying_soon(EndpointTokens(url, client_id="proxy", client_secret=read))
        for content, reason in (
            (None, "cannot be read: No such file or directory"),
            (b"", "holds no client secret"),
            (b"\xff\xfe", "not text"),
        ):
            if content is not None:
                path.write_bytes(content)
            assert reason in await why_none(tokens)
            await until(lambda: tokens._cache.wants_refresh(asyncio.get_running_loop().time()))
        assert provider.asked == []
        for secret in ("old", "new"):
            path.write_text(secret + "\n")
            await tokens.refresh()
            sent = provider.asked[-1].headers["Authorization"].removeprefix("Basic ")
            assert base64.b64decode(sent) == f"proxy:{secret}".encode()


def test_a_secret_that_the_environment_lacks() -> None:
    read = partial(read_secret, Secret(None, "NOT_THERE"), "client secret")
    tokens = EndpointTokens("http://127.0.0.1:9/", client_id="proxy", client_secret=read)
    assert "the environment has no NOT_THERE" in asyncio.run(why_none(tokens))


async def test_a_file_is_read_anew_for_each_login(tmp_path: Path) -> None:
    path = tmp_path / "token"
    payload = base64.urlsafe_b64encode(b'{"exp":1700000000}').decode().rstrip("=")

    tokens = FileTokens(path)
    assert "No such file" in await why_none(tokens)
    assert (tokens.refresh_failures, tokens.expires_at) == (1, None)
    path.write_text(f"  a.{payload}.c\n")
    assert await tokens.current() == f"a.{payload}.c"
    assert tokens.expires_at == 1_700_000_000
    path.write_text("opaque")
    assert await tokens.current() == "opaque"
    assert tokens.refresh_failures == 1
    path.write_text("")
    assert "holds no bearer token" in await why_none(tokens)
    assert tokens.refresh_failures == 2


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words", b"s3cret\x01auth=Bearer x", b"\xff", b"s3cret,", b"{}"]
)
def test_a_file_that_holds_no_token_is_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert asyncio.run(why_none(FileTokens(path))) == f"{path} holds no bearer token"


def test_files_that_are_none(tmp_path: Path) -> None:
    """Neither memory nor a thread is lost to them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "holds no bearer token" in asyncio.run(why_none(FileTokens(pipe)))
    assert str(MAX_ANSWER_BYTES) in asyncio.run(why_none(FileTokens(Path("/dev/zero"))))
    assert "directory" in asyncio.run(why_none(FileTokens(tmp_path)))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    """Otherwise a redirect could send our secret elsewhere, or choose the tokens."""

    async with with_provider() as (tokens, provider):
        provider.status, provider.headers = status, {"Location": "/other"}
        assert "redirects are not followed" in await why_none(tokens)
        assert provider.elsewhere == 0


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
async def test_what_a_refusal_says_is_made_safe(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer that repeats the request is common, and logs are read by many."""

    async with with_provider() as (tokens, provider):
        provider.status = 401
        for body in ({"error": "invalid_client", "error_description": said}, {"error": said}):
            provider.body = json.dumps(body).encode()
            await why_none(tokens)
            await until(lambda: tokens._cache.wants_refresh(asyncio.get_running_loop().time()))
        provider.body = said.encode()
        assert "HTTP status 401" in await why_none(tokens)
        assert all(len(line) < 400 and line.isprintable() for line in caplog.messages)
        assert "s3cret" not in caplog.text.lower()
        assert BASIC not in caplog.text


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
async def test_what_is_no_http_is_made_safe(answer: bytes) -> None:
    """The errors of HTTP libraries quote what they could not read."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        await asyncio.start_server(talk, "127.0.0.1", 0) as server,
    ):
        port = server.sockets[0].getsockname()[1]
        tokens = asking(f"http://127.0.0.1:{port}/token")
        assert "no token from http://127.0.0.1:" in await why_none(tokens)


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    async with providing() as (_, url):
        tokens = asking(url.replace("/token", "/endless"))
        assert str(MAX_ANSWER_BYTES) in await why_none(tokens)


async def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 0.2)

    async with with_provider() as (tokens, provider):
        provider.answering.clear()
        assert "no answer within 0.2 seconds" in await why_none(tokens)
        provider.answering.set()


async def test_an_endpoint_with_a_certificate_of_nobody_is_told_nothing() -> None:
    async with providing(server_context(Authority().issue())) as (provider, url):
        assert url.startswith("https:")
        assert "CERTIFICATE_VERIFY_FAILED" in await why_none(asking(url))
        assert provider.asked == []


def test_people_are_not_shown_what_a_url_may_hold() -> None:
    tokens = asking("http://user:hidden@127.0.0.1:9/token?key=hidden")
    reason = asyncio.run(why_none(tokens))
    assert "no token from http://127.0.0.1:9/token:" in reason
    assert "hidden" not in reason
