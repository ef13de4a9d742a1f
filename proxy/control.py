"""Questions from the HTTP process to the workers, and their answers.

Between the HTTP process and each worker runs a Unix stream socket pair, made before the fork, which
outlives both. A message is a line of JSON, so that half a line, left by a process that was killed
while it wrote, spoils the line after it and no more:

    question   {"id": 7, "kind": "snapshot", "arguments": {}}
    answer     {"id": 7, "answer": {…}}    or    {"id": 7, "error": "why not"}

Kinds: `snapshot` is answered with `Snapshot.to_json()`, `ready` with `{"reasons": [why not, …]}`.
An answer that comes after its question was given up is dropped by its id.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, cast

from metrics.snapshot import Snapshot
from proxy.errors import ProxyError

logger = logging.getLogger(__name__)

Answer = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Answers a question of a kind with arguments, at once; a ProxyError becomes an error answer."""

ANSWER_SECONDS = 1.0
"""A worker that takes longer counts as down for this scrape."""

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Far above the sessions of 100,000 connections; what claims more is no message of ours."""


class ControlError(ProxyError):
    """A worker did not answer, or answered that it cannot."""


class _Messages:
    """Cuts a stream into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Add what was read and give the messages that are whole; lines that are none are left."""
        self._data += data
        *lines, rest = self._data.split(b"\n")
        self._data = rest if len(rest) <= MAX_MESSAGE_BYTES else bytearray()
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                logger.warning("half a control message was passed over")
                continue
            if isinstance(message, dict):
                yield message


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class _Worker(asyncio.Protocol):
    """The worker's end: answers each question as it comes."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._messages = _Messages()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        for question in self._messages.feed(data):
            self._transport.write(_encode(self._reply(question)))

    def _reply(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._answer(question["kind"], question["arguments"])
        except ProxyError as error:
            return {"id": question["id"], "error": str(error)}
        return {"id": question["id"], "answer": answer}


async def serve_control(sock: socket.socket, answer: Answer) -> asyncio.BaseTransport:
    """Answer questions on a worker's end of the pair until the returned transport is closed."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: _Worker(answer), sock=sock)
    return transport


class WorkerLink(asyncio.Protocol):
    """The HTTP process's end of the pair with one worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self._messages = _Messages()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = count(1)

    @classmethod
    async def open(cls, worker: int, sock: socket.socket) -> "WorkerLink":
        """Take over this end of the pair."""
        link = cls(worker)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
        return link

    def close(self) -> None:
        """Close this end; questions under way fail."""
        if self._transport is not None:
            self._transport.close()

    async def ask(
        self, kind: str, *, within: float = ANSWER_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """Ask the worker; raises ControlError if it does not answer `within` so many seconds."""
        if self._transport is None:
            raise ControlError(f"worker {self.worker} is gone")
        number = next(self._ids)
        pending = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        try:
            question = {"id": number, "kind": kind, "arguments": arguments}
            self._transport.write(_encode(question))
            async with asyncio.timeout(within):
                message = await pending
        except TimeoutError:
            raise ControlError(f"worker {self.worker} does not answer") from None
        finally:
            del self._pending[number]
        if "error" in message:
            raise ControlError(message["error"])
        answer: dict[str, Any] = message["answer"]
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (called by the event loop)."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand each answer to who waits for it (called by the event loop)."""
        for message in self._messages.feed(data):
            pending = self._pending.get(message["id"])
            if pending is not None and not pending.done():
                pending.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Tell everybody who waits (called by the event loop)."""
        self._transport = None
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(ControlError(f"worker {self.worker} is gone"))


class Fleet:
    """All workers, asked at once."""

    def __init__(self, links: list[WorkerLink]) -> None:
        self.links = links

    async def snapshots(self) -> dict[int, Snapshot | None]:
        """Ask each worker for its values; None: it did not answer."""
        answers = await self._ask_all("snapshot")
        return {
            worker: None if isinstance(answer, ControlError) else Snapshot.from_json(answer)
            for worker, answer in answers.items()
        }

    async def readiness(self) -> dict[int, list[str]]:
        """Ask each worker why it is not ready; an empty list: it is."""
        answers = await self._ask_all("ready")
        return {
            worker: [str(answer)] if isinstance(answer, ControlError) else answer["reasons"]
            for worker, answer in answers.items()
        }

    async def _ask_all(self, kind: str) -> dict[int, dict[str, Any] | ControlError]:
        answers = await asyncio.gather(*(_try_ask(link, kind) for link in self.links))
        return {link.worker: answer for link, answer in zip(self.links, answers, strict=True)}


async def _try_ask(link: WorkerLink, kind: str) -> dict[str, Any] | ControlError:
    try:
        return await link.ask(kind)
    except ControlError as error:
        return error
