"""Status page: state of a fictitious proxy, its workers, and a browser.

python -m tests.support.status DIRECTORY: screenshots
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from metrics.registry import EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from proxy.ops.status.page import render
from proxy.ops.status.recent import COUNTED, Incident, IncidentCounts, RecentCounts
from proxy.ops.status.session_facts import EVERY_SESSION, Condition, Selector, SessionFacts
from proxy.ops.status.snapshot import About, Overview, WorkerFacts
from proxy.ops.worker_queries import ControlError, Sessions, WorkerPool

# A fictitious overview of a proxy

NOW_MS = 1_760_000_000_000
ABOUT = About(version="1.2.3", build="compiled", host="broker-1")

_CLIENTS = (
    ("apache-kafka-java", "3.9.0"),
    ("librdkafka", "2.6.1"),
    ("kafka-python", "2.0.2"),
    ("sarama", "1.43.3"),
)


def session(number: int = 1, **changes: Any) -> SessionFacts:
    """A session of alice with half an hour left."""
    facts: dict[str, Any] = {
        "connection_id": f"00c0ffee00c0ffee-{number}",
        "worker": 0,
        "listener": "clients",
        "client_host": "10.0.0.7",
        "state": "authenticated",
        "connected_s": 5_400.0,
        "principal": "User:alice",
        "upstream_principal": None,
        "mechanism": "OAUTHBEARER",
        "enforcement": "enforce",
        "client_id": "app-1",
        "client_software_name": "librdkafka",
        "client_software_version": "2.6.1",
        "lifetime_announced": True,
        "reauthentications": 2,
        "session_lifetime_ms": 3_600_000,
        "authenticated_s": 1_800.0,
        "lifetime_left_s": 1_800.0,
        "requests": 1_000,
        "request_bytes": 2_000_000,
        "response_bytes": 30_000_000,
        "idle_s": 0.5,
        "throttle_left_s": None,
    }
    return SessionFacts(**facts | changes)


def incident(**changes: Any) -> Incident:
    """A failed re-authentication of alice a minute ago."""
    facts: dict[str, Any] = {
        "kind": "failed",
        "what": "expired",
        "listener": "clients",
        "principal": "User:alice",
        "client_id": "app-1",
        "client_host": "10.0.0.7",
        "mechanism": "OAUTHBEARER",
        "times": 1,
        "first_ms": NOW_MS - 60_000,
        "last_ms": NOW_MS - 60_000,
    }
    return Incident(**facts | changes)


def listener(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": "clients",
        "address": "0.0.0.0:9094",
        "routing": "gateway",
        "enforcement": "enforce",
        "overrides": 0,
        "max_reauth_ms": 3_600_000,
        "enforces_token_expiry": True,
        "mechanisms": ["OAUTHBEARER", "SCRAM-SHA-256"],
        "connections": 3,
        "max_connections": 10_000,
        "terms_changed_s": 86_400.0,
    }
    return facts | changes


def recent(seconds: float = 630.0, **counts: float) -> RecentCounts:
    return RecentCounts(seconds, dict.fromkeys(COUNTED, 0.0) | counts)


def overview(*sessions: SessionFacts, **workers: WorkerFacts) -> Overview:
    reported = {int(name.removeprefix("worker")): facts for name, facts in workers.items()}
    return Overview(
        taken_ms=NOW_MS,
        workers=reported or {0: WorkerFacts(listeners=[listener()])},
        sessions=sessions,
    )


def busy(sessions: int = 5_000, principals: int = 250) -> Overview:
    """State of a proxy with many problems."""
    found = [_of_crowd(number, principals) for number in range(sessions)]
    troubles = WorkerFacts(
        listeners=[
            listener(connections=sessions * 4 // 5, overrides=2),
            listener(
                name="legacy",
                address="0.0.0.0:9095",
                enforcement="probe",
                connections=sessions // 5,
                max_reauth_ms=0,
                mechanisms=["SCRAM-SHA-512"],
                routing="sidecar",
            ),
        ],
        conditions=[
            Condition("mode", "authorizer.mode", "audit", good=True),
            Condition("broker", "broker-0.example:9092", "reachable for 3 h 2 min", good=True),
            Condition("broker", "broker-1.example:9092", "Connection refused", good=False),
            Condition("signing keys", "clients", "3 read 12 min ago", good=True),
        ],
        incidents=_incidents(),
        principals={
            "User:billing-batch-007": {
                "denied": IncidentCounts(42, NOW_MS - 5_000),
                "failed": IncidentCounts(3, NOW_MS - 60_000),
            },
            "User:orders-013": {"expired-killed": IncidentCounts(7, NOW_MS - 200_000)},
            "User:audit-002": {"would-be-killed": IncidentCounts(1, NOW_MS - 86_400_000)},
        },
        recent=recent(
            requests=2_400_000,
            request_bytes=9e9,
            response_bytes=2.4e10,
            logins=1_200,
            reauthentications=4_000,
            failures=31,
            kills=7,
            would_be_kills=1,
        ),
    )
    silent = WorkerFacts(reasons=["worker 1 does not answer"])
    taken = overview(*found, worker0=troubles, worker1=silent)
    waits = "all delivered 14 min 5 s ago; 12 MiB wait, the oldest for 14 min 20 s"
    return replace(
        taken, conditions=[Condition("delivery", "kafka:session-events", waits, good=False)]
    )


def migrating() -> Overview:
    """State of a proxy that works, with clients that do not re-authenticate."""
    troubled = busy(30, 9)
    conditions = [
        Condition("broker", "broker-0.example:9092", "reachable for 3 h 2 min", good=True),
        Condition("broker", "broker-1.example:9092", "reachable for 3 h 2 min", good=True),
        Condition("configuration", "last reload", "loaded 12 min ago", good=True),
        Condition("event log", "/var/lib/reauth-proxy/events", "no event lost", good=True),
    ]
    listeners = [listener(overrides=2, connections=27, terms_changed_s=720.0)]
    facts = replace(troubled.workers[0], conditions=conditions, listeners=listeners)
    delivered = Condition("delivery", "kafka:session-events", "all delivered 1 s ago", good=True)
    return replace(troubled, workers={0: facts}, conditions=[delivered])


def _of_crowd(number: int, principals: int) -> SessionFacts:
    team = ("orders", "billing-batch", "audit")[number % 3]
    software = _CLIENTS[number * 7 % len(_CLIENTS)]
    old = number % 11 == 0
    return session(
        number,
        worker=number % 4,
        listener="legacy" if old else "clients",
        client_host=f"10.{number % 7}.{number % 251}.{number % 253}",
        principal=None if number % 97 == 0 else f"User:{team}-{number % principals:03}",
        enforcement="probe" if old else "enforce",
        mechanism="SCRAM-SHA-512" if old else "OAUTHBEARER",
        client_id=f"{team}-{number % 40}",
        client_software_name=software[0],
        client_software_version=software[1],
        lifetime_announced=not old,
        reauthentications=0 if old else number % 9,
        lifetime_left_s=None if number % 53 == 0 else float(number * 37 % 3_700 - 100),
        throttle_left_s=float(number % 100 - 90) if number % 13 == 0 else None,
        requests=number * number % 1_000_003,
        request_bytes=number * 9_973,
        response_bytes=number * number * 13,
    )


def _incidents() -> list[Incident]:
    return [
        incident(
            kind="denied",
            what="WRITE on TOPIC invoices.v2",
            principal="User:billing-batch-007",
            client_id="billing-batch-7",
            times=42,
            first_ms=NOW_MS - 900_000,
            last_ms=NOW_MS - 5_000,
        ),
        incident(principal="User:billing-batch-007", client_id="billing-batch-7", times=3),
        incident(kind="expired-killed", what="Produce", principal="User:orders-013", times=7),
        incident(kind="failed", what="bad_credentials", principal=None, client_id="legacy-loader"),
        incident(kind="would-be-killed", what="Fetch", principal="User:audit-002"),
        incident(kind="closed", what="broker_unreachable", principal="User:orders-001"),
        incident(kind="closed", what="killed", principal="User:orders-001"),
    ]


# Workers with configurable answers, for the HTTP process


class Workers(WorkerPool):
    """Workers with configurable answers."""

    def __init__(self) -> None:
        super().__init__([])
        self.written: dict[int, int | None] = {0: 5, 1: 3}
        self.reasons: dict[int, list[str]] = {0: [], 1: []}
        self.hanging: list[str] = []
        self.rounds = 0
        self.queries = 0
        self.open: dict[int, list[SessionFacts] | ControlError] = {
            0: [session(1), session(2, client_id="app-2")],
            1: [session(3, principal="User:bob")],
        }

    async def snapshots(self) -> dict[int, Snapshot | None]:
        self.rounds += 1
        return {worker: self._snapshot(count) for worker, count in self.written.items()}

    async def readiness(self) -> dict[int, list[str]]:
        return self.reasons

    def hung(self) -> list[str]:
        return self.hanging

    async def status(self) -> dict[int, dict[str, Any] | ControlError]:
        self.queries += 1
        return {
            worker: {
                "reasons": self.reasons[worker],
                "listeners": [listener()],
                "incidents": [],
                "principals": {},
                "recent": recent(),
            }
            for worker in self.open
        }

    async def sessions(self, selector: Selector, kind: str = "sessions") -> Sessions:
        assert (selector, kind) == (Selector(), "sessions")
        return self.open

    def _snapshot(self, written: int | None) -> Snapshot | None:
        if written is None:
            return None
        snapshot = Snapshot(run="a")
        snapshot.count(EVENTS_WRITTEN, written)
        return snapshot


# Headless Chromium, driven through its DevTools protocol, and screenshots of the status page

# Headless Chromium, driven through its DevTools protocol

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser tab."""

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
        """Emulate a screen of this size in CSS pixels."""
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
        """Errors in the browser's log, and exceptions of scripts."""
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
            "--no-sandbox",  # unavailable to root
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
    """Run the browser with an empty profile in `directory`."""
    process = _start(directory)
    try:
        port = await _port(directory / "DevToolsActivePort")
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            url = await _tab(session)
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


async def _tab(session: ClientSession) -> str:
    """WebSocket address of the first tab, which opens shortly after the port."""
    async with asyncio.timeout(180):
        while True:
            async with session.get("/json/list") as answer:
                tabs = [one for one in await answer.json() if one["type"] == "page"]
            if tabs:
                url: str = tabs[0]["webSocketDebuggerUrl"]
                return url
            await asyncio.sleep(0.05)


def _lines(file: Path) -> list[str]:
    """Complete lines of a file that may not exist yet."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


# Screenshots of the status page with thirty sessions, for inspection

SCREENS = {"desktop": 1_280, "phone": 390}
SHOWN = {"all": EVERY_SESSION, "one": Selector(principal="User:orders-003")}


async def take(directory: Path) -> list[Path]:
    """Take a screenshot of each screen, light and dark; return the files."""
    taken = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browsing(Path(profile)) as browser:
            for what, selector in SHOWN.items():
                file = directory / f"{what}.html"
                file.write_text(render(migrating().of(selector), selector, ABOUT))
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
