"""The status page as a browser shows it."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.ops.status.page import render
from proxy.ops.status.session_facts import EVERY_SESSION
from tests.support.proxy_process import Proxy, running
from tests.support.status import ABOUT, Browser, browsing, busy, program

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(autouse=True)
def _chromium() -> None:
    if program() is None:
        assert os.environ.get("CI") != "true", "CI needs Chromium"
        pytest.skip("apt-get install chromium")


@asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[tuple[Proxy, Browser]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with (
            asyncio.timeout(900),
            running(directory) as proxy,
            browsing(Path(profile)) as browser,
        ):
            yield proxy, browser


def with_browser(directory: Path, test: Callable[[Proxy, Browser], Awaitable[None]]) -> None:
    async def run() -> None:
        async with watched(directory) as (proxy, browser):
            await test(proxy, browser)

    asyncio.run(run())


def url(proxy: Proxy, query: str = "") -> str:
    return f"http://127.0.0.1:{proxy.http_port}/{query}"


def test_it_shows_on_any_screen_and_nothing_of_a_client_runs(tmp_path: Path) -> None:
    async def test(proxy: Proxy, browser: Browser) -> None:
        for number in range(6):
            await proxy.log_in(f"team-{number}-with-a-name-that-is-rather-long", HOSTILE)
        await proxy.log_in(HOSTILE, HOSTILE, version=0)
        backgrounds = set()
        for width, dark in ((1_400, False), (1_100, True), (800, False), (360, False), (360, True)):
            await browser.look(width, 900, dark=dark)
            for query in ("", "?principal=User:team-1-with-a-name-that-is-rather-long"):
                await browser.open(url(proxy, query))
                wide = await browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, "nothing sticks out"
                backgrounds.add(
                    (
                        dark,
                        await browser.evaluate("getComputedStyle(document.body).backgroundColor"),
                    )
                )
            assert await browser.evaluate("document.images.length") == 0
            assert await browser.evaluate("document.scripts.length") == 1
            assert "owned" not in await browser.evaluate("document.title")
        assert backgrounds == {(False, "rgb(245, 246, 248)"), (True, "rgb(17, 20, 24)")}
        assert browser.complaints() == []
        assert {one for one in browser.requested() if not one.startswith(url(proxy))} <= {"data:,"}

    with_browser(tmp_path, test)


def test_it_renews_itself_and_says_when_it_cannot(tmp_path: Path) -> None:
    """Old facts must not be taken for new ones."""

    async def test(proxy: Proxy, browser: Browser) -> None:
        await browser.open(url(proxy))
        assert "No connection." in await browser.evaluate("document.body.innerText")
        await proxy.log_in("latecomer")
        await browser.until("document.body.innerText.includes('User:latecomer')")
        stale = "getComputedStyle(document.querySelector('#stale')).display != 'none'"
        await browser.until(f"!({stale})")
        await asyncio.to_thread(proxy.stop)
        await browser.until(stale)
        assert "User:latecomer" in await browser.evaluate("document.body.innerText")

    with_browser(tmp_path, test)


async def test_a_phone_shows_a_short_page_unless_asked_for_everything(tmp_path: Path) -> None:
    """Long states, as of a broker that refuses the proxy, do not stick out."""
    file = tmp_path / "page.html"
    file.write_text(render(busy(400, 38), EVERY_SESSION, ABOUT))
    height = "document.documentElement.scrollHeight"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with asyncio.timeout(900), browsing(Path(profile)) as browser:
            await browser.look(360, 900)
            await browser.open(file.as_uri())
            assert await browser.evaluate("document.documentElement.scrollWidth") <= 360
            short = await browser.evaluate(height)
            await browser.evaluate("document.querySelector('label').click()")
            assert short < 0.25 * await browser.evaluate(height)
            assert await browser.evaluate("document.documentElement.scrollWidth") <= 360
            await browser.look(1_300, 900)
            label = "getComputedStyle(document.querySelector('label')).display"
            assert await browser.evaluate(label) == "none"
