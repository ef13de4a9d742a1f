"""Signing keys read from files and over HTTP, on a real event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.keys import KeyService
from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache, KeyCacheSettings, KeyMissing
from tests.proxy.waiting import PATIENCE_SECONDS, until
from tests.sasl.given import document, ec_key, rsa_key

RSA, EC = document(rsa_key().jwk()), document(ec_key().jwk())


class Provider:
    """An identity provider whose answers can be changed."""

    def __init__(self) -> None:
        self.status, self.body = 200, RSA
        self.asked = 0
        self.port = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        await self.answering.wait()
        return web.Response(status=self.status, body=self.body)


def with_provider(test: Callable[[KeyService, Provider], Awaitable[None]], **ms: int) -> None:
    async def run() -> None:
        provider = Provider()
        app = web.Application()
        app.router.add_get("/jwks", provider.answer)
        async with TestServer(app) as server, asyncio.timeout(PATIENCE_SECONDS):
            provider.port = server.port or 0
            await test(service(str(server.make_url("/jwks")), **ms), provider)

    asyncio.run(run())


def service(source: Path | str, **ms: int) -> KeyService:
    return KeyService(KeyCache(KeyCacheSettings(**ms)), source)


def knows(keys: KeyService, kid: str, *, later: float = 0.0) -> bool:
    algorithm = {"rsa": "RS256", "ec": "ES256"}[kid]
    found = keys.cache.find(algorithm, kid, asyncio.get_running_loop().time() + later)
    return not isinstance(found, KeyMissing)


def test_a_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"

    async def run() -> None:
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

    asyncio.run(run())


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    async def run() -> None:
        keys = service(Path("/dev/zero"))
        await keys.refresh()
        assert keys.cache.last_error is not None
        assert str(MAX_DOCUMENT_BYTES) in keys.cache.last_error

    asyncio.run(run())


def test_http() -> None:
    async def test(keys: KeyService, provider: Provider) -> None:
        await keys.refresh()
        assert knows(keys, "rsa")
        assert provider.asked == 1

    with_provider(test)


def test_those_who_ask_at_once_share_one_fetch() -> None:
    """A thousand clients with a new key ask the identity provider once."""

    async def test(keys: KeyService, provider: Provider) -> None:
        provider.answering.clear()
        asking = [asyncio.create_task(keys.refresh()) for _ in range(50)]
        await until(lambda: provider.asked > 0)
        provider.answering.set()
        await asyncio.gather(*asking)
        assert provider.asked == 1
        assert knows(keys, "rsa")

    with_provider(test)


def test_one_who_gives_up_does_not_stop_the_fetch_of_the_others() -> None:
    async def test(keys: KeyService, provider: Provider) -> None:
        provider.answering.clear()
        impatient = asyncio.create_task(keys.refresh())
        patient = asyncio.create_task(keys.refresh())
        await until(lambda: provider.asked > 0)
        impatient.cancel()
        await asyncio.sleep(0)
        provider.answering.set()
        await patient
        assert knows(keys, "rsa")

    with_provider(test)


def test_a_failure_keeps_the_old_keys() -> None:
    async def test(keys: KeyService, provider: Provider) -> None:
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

    with_provider(test)


def test_what_a_url_may_hold_is_not_in_the_reason() -> None:
    """Which is told at `/readyz`, to whoever asks."""

    async def test(_: KeyService, provider: Provider) -> None:
        provider.status = 503
        url = f"http://user:hidden-word@127.0.0.1:{provider.port}/jwks?key=hidden-key"
        keys = service(url)
        await keys.refresh()
        assert keys.cache.last_error is not None
        assert keys.cache.last_error.startswith("ClientResponseError: ")
        assert "hidden" not in keys.cache.last_error

    with_provider(test)


def test_keys_that_are_too_old_are_believed_no_longer() -> None:
    """An outage is survived for a time, then nobody is let in: fail closed."""

    async def test(keys: KeyService, provider: Provider) -> None:
        await keys.refresh()
        provider.status = 503
        await keys.refresh()
        assert knows(keys, "rsa")
        assert not knows(keys, "rsa", later=600)

    with_provider(test, refresh_ms=600_000, max_age_ms=600_000)


def test_the_schedule_backs_off_and_recovers() -> None:
    async def test(keys: KeyService, provider: Provider) -> None:
        provider.status = 500
        running = asyncio.create_task(keys.run())
        await until(lambda: provider.asked >= 3)
        provider.status = 200
        await until(lambda: knows(keys, "rsa"))
        asked = provider.asked
        await asyncio.sleep(0.05)
        assert provider.asked == asked, "the next one is an hour away"
        running.cancel()

    with_provider(test, retry_backoff_ms=10, retry_backoff_max_ms=20)


def test_nobody_listens() -> None:
    async def run() -> None:
        keys = service("http://127.0.0.1:9/jwks")
        await keys.refresh()
        assert keys.cache.last_error is not None
        assert keys.cache.refresh_failures == 1

    asyncio.run(run())
