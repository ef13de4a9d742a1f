"""Signing keys read from files and over HTTP, on a real event loop."""

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.worker import identity_services as keys_module
from proxy.worker.identity_services import KeyService
from sasl.jwks import KeyCache, KeyCacheSettings, KeyMissing
from tests.support.certificates import Authority
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.sasl import document, ec_key, rsa_key
from tests.support.tls import server_context

RSA, EC = document(rsa_key().jwk()), document(ec_key().jwk())


class Provider:
    """An identity provider whose answers can be changed."""

    def __init__(self) -> None:
        self.status, self.body = 200, RSA
        self.headers: dict[str, str] = {}
        self.asked = self.elsewhere = 0
        self.asked_with: list[tuple[str | None, str | None]] = []
        self.port = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.asked_with.append((request.headers.get("Authorization"), request.headers["Accept"]))
        await self.answering.wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)

    async def other(self, _: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response(body=EC)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/jwks", self.answer)
        app.router.add_get("/other", self.other)
        return app


@asynccontextmanager
async def serving(**ms: int) -> AsyncIterator[tuple[KeyService, Provider]]:
    provider = Provider()
    async with TestServer(provider.app()) as server, asyncio.timeout(PATIENCE_SECONDS):
        provider.port = server.port or 0
        yield service(str(server.make_url("/jwks")), **ms), provider


def service(source: Path | str, **ms: int) -> KeyService:
    return KeyService(KeyCache(KeyCacheSettings(**ms)), source)


def knows(keys: KeyService, kid: str, *, later: float = 0.0) -> bool:
    algorithm = {"rsa": "RS256", "ec": "ES256"}[kid]
    found = keys.cache.find(algorithm, kid, asyncio.get_running_loop().time() + later)
    return not isinstance(found, KeyMissing)


async def test_a_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    keys = service(path)
    await keys.refresh()
    assert keys.cache.last_error is not None
    path.write_bytes(RSA)
    await keys.refresh()
    assert knows(keys, "rsa")
    path.write_bytes(EC)
    await keys.refresh()
    assert knows(keys, "ec")
    assert not knows(keys, "rsa")


async def test_a_file_behind_symbolic_links_is_read_where_they_lead_now(tmp_path: Path) -> None:
    """Kubernetes replaces the files of a volume by one link to another directory."""
    for name, content in (("1", RSA), ("2", EC)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jwks.json").write_bytes(content)
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "jwks.json").symlink_to("data/jwks.json")
    keys = service(tmp_path / "jwks.json")
    await keys.refresh()
    assert knows(keys, "rsa")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "data")
    await keys.refresh()
    assert knows(keys, "ec")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise an attacker could choose the trusted keys, and log in as anyone."""
    async with serving() as (keys, provider):
        await keys.refresh()
        provider.status = status
        for location in ("/other", "https://127.0.0.1:9/" + "x" * 5_000, "file:///dev/zero"):
            provider.headers = {"Location": location}
            await keys.refresh()
        assert provider.elsewhere == 0
        assert knows(keys, "rsa")
        assert not knows(keys, "ec")
        assert keys.cache.refresh_failures == 3
        why = f"HTTP status {status}: redirects are not followed, configure where it is"
        assert caplog.messages == [f"JWKS http://127.0.0.1:{provider.port}/jwks: {why}"]


async def test_a_token_is_sent_to_the_endpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server of Kubernetes wants the pod's token, which is replaced every hour."""
    authority, provider = Authority(), Provider()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write(tmp_path)))
    path = tmp_path / "token"
    server = TestServer(provider.app())
    await server.start_server(ssl=server_context(authority.issue()))
    keys = KeyService(KeyCache(), str(server.make_url("/jwks")), path)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await keys.refresh()
        assert keys.cache.last_error == f"{path} cannot be read: No such file or directory"
        for token in ("first", "second"):
            path.write_text(f"{token}\n")
            await keys.refresh()
        assert knows(keys, "rsa")
        provider.status = 302
        provider.headers = {"Location": str(server.make_url("/other"))}
        await keys.refresh()
        await server.close()
    assert provider.elsewhere == 0
    sent = [authorization for authorization, _ in provider.asked_with]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]
    assert {accept.split(",")[0] for _, accept in provider.asked_with if accept} == {
        "application/jwk-set+json"
    }


async def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs it would hand out the keys, and the environment is not what was configured."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving() as (keys, provider):
        await keys.refresh()
        assert (provider.asked, knows(keys, "rsa")) == (1, True)


async def test_what_is_packed_is_not_unpacked() -> None:
    """A thousand bytes could become a million."""
    async with serving() as (keys, provider):
        provider.headers = {"Content-Encoding": "gzip"}
        provider.body = gzip.compress(RSA)
        await keys.refresh()
        assert keys.cache.last_error == "the JWKS is not a JSON object"


async def test_a_failure_keeps_the_old_keys() -> None:
    async with serving() as (keys, provider):
        await keys.refresh()
        for status, body in ((500, b""), (404, EC), (200, b"{"), (200, b"x" * 3_000_000)):
            provider.status, provider.body = status, body
            await keys.refresh()
            assert knows(keys, "rsa")
            assert keys.cache.last_error is not None
        assert keys.cache.refresh_failures == 4
        provider.status, provider.body = 200, EC
        await keys.refresh()
        assert knows(keys, "ec")
        assert keys.cache.last_error is None


async def test_what_a_url_may_hold_is_not_in_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """`/readyz` shows it to every client."""
    async with serving() as (_, provider):
        provider.status = 503
        url = f"http://user:hidden-word@127.0.0.1:{provider.port}/jwks?key=hidden-key"
        keys = service(url)
        await keys.refresh()
        assert keys.cache.last_error is not None
        assert keys.cache.last_error == "HTTP status 503"
        assert f"JWKS http://127.0.0.1:{provider.port}/jwks: HTTP status 503" in caplog.messages
        assert "hidden" not in caplog.text


async def test_keys_that_become_too_old_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, keys_module.__name__)

    def lines() -> list[str]:
        return [line.partition("/jwks: ")[2] for line in caplog.messages]

    async with serving(refresh_ms=600_000, max_age_ms=600_000) as (keys, provider):
        now = asyncio.get_running_loop().time()
        keys.cache.loaded(RSA, now - 500)
        provider.status = 503
        await keys.refresh()
        assert (keys.not_ready(now), lines()) == (None, ["HTTP status 503"])
        keys.cache.loaded(RSA, now - 601)
        keys.cache.failed("HTTP status 503", now)
        for _ in range(2):
            await keys.refresh()
        assert lines()[1:] == [
            "the keys are too old, every token is refused until they are read again"
        ]
        assert keys.not_ready(now) == "signing keys are too old, read 601 s ago: HTTP status 503"
        provider.status = 200
        await keys.refresh()
        assert (keys.not_ready(now), lines()[2:]) == (None, ["read again"])


async def test_the_schedule_backs_off_and_recovers() -> None:
    async with serving(retry_backoff_ms=10, retry_backoff_max_ms=20) as (keys, provider):
        provider.status = 500
        running = asyncio.create_task(keys.run())
        await until(lambda: provider.asked >= 3)
        provider.status = 200
        await until(lambda: knows(keys, "rsa"))
        now = asyncio.get_running_loop().time()
        assert keys.cache.next_refresh(now) == pytest.approx(now + 3_600, abs=60)
        running.cancel()


async def test_nobody_listens() -> None:
    keys = service("http://127.0.0.1:9/jwks")
    await keys.refresh()
    assert keys.cache.last_error is not None
    assert keys.cache.refresh_failures == 1
