"""Several proxies with one block list, and clients that work while one principal is blocked.

The clocks of two thirds of the proxies are an hour ahead or behind.
"""

import asyncio
import json
import os
import random
import signal
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proxy.config import load
from proxy.connection.blocks import Block
from proxy.store.block_file import BlockFile
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, client_initial_response
from tests.support.fake_broker import FakeBroker
from tests.support.frames import read_authenticated, request, response
from tests.support.proxy_process import Proxy
from tests.support.relay import read_frame
from tests.support.sasl import claims, ed_key, token

USERS = 10
HOUR_S = 3_600
WRONG_CLOCK = """
import time
right = time.time
time.time = lambda: right() + {}
from proxy.cli import main
main()
"""
METADATA = 3


@dataclass(eq=False)
class Broker(FakeBroker):
    """Records when it last had a request of each client id."""

    last: dict[str, float] = field(default_factory=dict)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await read_frame(reader)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                if key == METADATA:
                    self.last[frame[10 : 10 + length].decode()] = time.monotonic()
                    writer.write(response(correlation_id, self.metadata))
                else:
                    body = self.respond(key, version, b"")
                    writer.write(response(correlation_id, body or b""))
        writer.close()

    def __post_init__(self) -> None:
        self.metadata = self._metadata(1)


@dataclass
class Session:
    """A client of one user, that asks for Metadata again and again."""

    proxy: Proxy
    user: int
    name: str
    answers: int = 0
    ended_at: float | None = None

    async def log_in(self, bearers: list[bytes]) -> bool:
        """Connect and log in; return whether the login succeeded."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        bearer = bearers[self.user]
        self.writer.write(request(SASL_HANDSHAKE, 1, 2, b"\0\x0bOAUTHBEARER", self.name))
        body = struct.pack(">i", len(bearer)) + bearer
        self.writer.write(request(SASL_AUTHENTICATE, 1, 3, body, self.name))
        await read_frame(self.reader)
        error, *_ = read_authenticated(await read_frame(self.reader), 1)
        return bool(error == 0)

    async def work(self, pause: float) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.writer.write(request(METADATA, 1, 9, b"\0\0\0\0", self.name))
                await read_frame(self.reader)
                self.answers += 1
                await asyncio.sleep(random.uniform(0, 2 * pause))  # noqa: S311 - no secret
        self.ended_at = time.monotonic()


@dataclass
class Fleet:
    """Running proxies, the sessions of their clients, and their list."""

    broker: Broker
    proxies: list[Proxy]
    sessions: list[Session]
    bearers: list[bytes]
    file: Path

    def of(self, *, user: int) -> list[Session]:
        return [one for one in self.sessions if one.user == user]

    def block(self, **criteria: Any) -> None:
        file = BlockFile(load(self.proxies[0].path))
        file.change(lambda _: ([Block(**criteria)], []))

    async def may_log_in(self, user: int) -> list[bool]:
        """Whether a user may log in, at each proxy."""
        tries = [Session(one, user, "late") for one in self.proxies]
        allowed = [await one.log_in(self.bearers) for one in tries]
        for one in tries:
            one.writer.close()
        return allowed


@asynccontextmanager
async def fleet(
    directory: Path,
    proxies: int,
    sessions: int,
    *,
    pause: float,
    workers: int = 1,
    signals: Mapping[str, object] | None = None,
) -> AsyncIterator[Fleet]:
    """Run proxies; each session sends a request every `pause` seconds. `signals` are settings of
    the first proxy."""
    path = directory / "blocks"
    path.write_text(json.dumps({"version": 0, "entries": 0}) + "\n")
    now = time.time()
    tokens = [
        token(
            claims(sub=f"u{number}", iat=now - 2 * HOUR_S, exp=now + 2 * HOUR_S, jti=f"t{number}"),
            ed_key(),
        )
        for number in range(USERS)
    ]
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker())
        running = []
        for number in range(proxies):
            own = directory / str(number)
            own.mkdir()
            proxy = Proxy(own, workers, broker)
            if wrong := (0, HOUR_S, -HOUR_S)[number % 3]:
                proxy.program = ["-c", WRONG_CLOCK.format(wrong)]
            polls = signals if number == 0 and signals is not None else {}
            proxy.settings["block"] = {"file": str(path), "signals": dict(polls)}
            proxy.settings["listeners"][0] |= {
                "revoke.sessions": "at-once",
                "sasl.oauthbearer.jwks.endpoint.refresh.ms": 500,
            }
            proxy.write()
            stack.push_async_callback(asyncio.to_thread, proxy.stop)
            running.append(proxy)
            await asyncio.to_thread(proxy.start)
        for proxy in running:
            await proxy.until(proxy.is_ready)
        made = Fleet(
            broker,
            running,
            [
                Session(running[number % proxies], number // proxies % USERS, f"c{number}")
                for number in range(sessions)
            ],
            [client_initial_response(one) for one in tokens],
            path,
        )
        for one in made.sessions:
            assert await one.log_in(made.bearers)
        tasks = [asyncio.create_task(one.work(pause)) for one in made.sessions]
        try:
            yield made
        finally:
            for one in made.sessions:
                one.writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


# Faults: the body is run while, or right after, something is wrong


@asynccontextmanager
async def with_list(content: bytes | None, problem: str, running: Fleet) -> AsyncIterator[None]:
    """The list has another content until all proxies have noticed it; None if it is away."""
    aside = running.file.rename(running.file.with_name("aside"))
    if content is not None:
        running.file.write_bytes(content)
    for proxy in running.proxies:
        await proxy.until(logged(proxy, problem))
    aside.replace(running.file)
    yield


@asynccontextmanager
async def killed_worker(running: Fleet) -> AsyncIterator[None]:
    """A worker of the first proxy is killed."""
    os.kill(running.proxies[0].children()[0], signal.SIGKILL)
    yield


@asynccontextmanager
async def killed_proxy(running: Fleet) -> AsyncIterator[None]:
    """The last proxy is killed, and started again after the body."""
    proxy = running.proxies[-1]
    for pid in (proxy.process.pid, *proxy.children()):
        os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(proxy.stop)
    yield
    await asyncio.to_thread(proxy.start)
    await proxy.until(proxy.is_ready)


def logged(proxy: Proxy, text: str) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return text in proxy.log()

    return found


FAULTS: dict[str, Callable[[Fleet], AbstractAsyncContextManager[None]]] = {
    "half of the file": partial(with_list, b'{"version": 9, "entries": 2}\n', "is incomplete"),
    "a million entries": partial(
        with_list, b'{"id": "1", "jti": "x"}\n' * 1_000_000, "is larger than"
    ),
    "the store is away": partial(with_list, None, "is missing"),
    "a worker is killed": killed_worker,
    "a proxy is killed": killed_proxy,
}
"""Faults; each is tried with a user of its own, from the first on."""
