"""Headless Chromium, driven through its DevTools protocol, and screenshots of the status page.

python -m tests.support.browser DIRECTORY
"""

import asyncio
import base64
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from proxy.ops.status.page import render
from proxy.ops.status.session_facts import EVERY_SESSION, Selector
from tests.support.status import ABOUT, busy

# Headless Chromium, driven through its DevTools protocol

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=120)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        for domain in ("Page", "Log", "Runtime", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState == 'complete' && location.href == '{url}'")

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not await self.evaluate(expression):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    async def screenshot(self) -> bytes:
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def complaints(self) -> list[str]:
        """What the browser refused or could not do, and what scripts threw."""
        return [
            event["params"]["entry"]["text"]
            for event in self.events
            if event.get("method") == "Log.entryAdded"
            and event["params"]["entry"]["level"] == "error"
        ] + [
            event["params"]["exceptionDetails"]["text"]
            for event in self.events
            if event.get("method") == "Runtime.exceptionThrown"
        ]

    def requested(self) -> set[str]:
        return {
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        }


def _start(directory: Path) -> "subprocess.Popen[bytes]":
    found = program()
    assert found is not None
    return subprocess.Popen(
        [
            found,
            "--headless=new",
            "--no-sandbox",  # which root cannot have
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={directory}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@asynccontextmanager
async def browsing(directory: Path) -> AsyncIterator[Browser]:
    """Start the browser with an empty profile in `directory`; end it."""
    process = _start(directory)
    try:
        port = await _port(directory / "DevToolsActivePort")
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/json/list") as answer:
                (tab,) = [one for one in await answer.json() if one["type"] == "page"]
            url = tab["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 60)
        if process.poll() is None:
            process.kill()
            process.wait()


async def _port(file: Path) -> str:
    async with asyncio.timeout(180):
        while not (lines := _lines(file)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    return lines[0]


def _lines(file: Path) -> list[str]:
    """The whole lines of a file that may not be there yet."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


# Screenshots of the status page with thirty sessions of a bad night, to be looked at

SCREENS = {"desktop": 1_280, "phone": 390}
SHOWN = {"all": EVERY_SESSION, "one": Selector(principal="User:orders-003")}


async def take(directory: Path) -> list[Path]:
    """Take one of each screen, light and dark; return the files."""
    taken = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browsing(Path(profile)) as browser:
            for what, selector in SHOWN.items():
                file = directory / f"{what}.html"
                file.write_text(render(busy(30, 9).of(selector), selector, ABOUT))
                for screen, width in SCREENS.items():
                    for scheme in ("light", "dark"):
                        await browser.look(width, 900, dark=scheme == "dark")
                        await browser.open(file.absolute().as_uri())
                        taken.append(directory / f"{what}-{screen}-{scheme}.png")
                        taken[-1].write_bytes(await browser.screenshot())
    return taken


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for made in asyncio.run(take(Path(sys.argv[1]))):
        print(made)  # noqa: T201 - what the command is for
