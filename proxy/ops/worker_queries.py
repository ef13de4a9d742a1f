"""Control protocol between the HTTP process and the workers.

The HTTP process and each worker share a Unix stream socket pair, made before the fork, which
outlives both. A message is a line of JSON, so that half a line, left by a process that was killed
while it wrote, spoils only the line after it:

    request    {"id": 7, "kind": "snapshot", "arguments": {}}
    part       {"id": 7, "part": […]}      any number of them, before the answer
    answer     {"id": 7, "answer": {…}}    or    {"id": 7, "error": "reason"}

    kind        arguments                 parts                      answer
    snapshot                              one `Snapshot.to_json()`   {}
    ready                                                            {"reasons": [reason, …]}
    status                                                           `WorkerFacts.from_json()`
    sessions    Selector.arguments()      rows of SessionFacts       {}
    kill        Selector.arguments()      rows of those killed       {}
    drain       Selector.arguments()      rows of those that end     {}

An answer to a request that has timed out is dropped by its id. Long answers are sent in parts,
between which the worker's event loop serves clients.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar, cast

from metrics.snapshot import Snapshot
from proxy.errors import ProxyError
from proxy.ops.status.session_facts import Selector, SessionFacts

log = logging.getLogger(__name__)

T = TypeVar("T")

Answer = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | Iterator[Any]]
"""Function that answers a request (kind, arguments): at once, or part by part.

None as a part is not sent: it only lets the event loop run. An exception, also of the
iterator, becomes an error response.
"""

ANSWER_SECONDS = 1.0
"""Seconds in which a worker must answer a request."""

SCRAPE_SECONDS = 5.0
"""Seconds in which a worker must answer a scrape: half of Prometheus' default `scrape_timeout`. A
worker that first closes thousands of connections is not down."""

PARTS_SECONDS = 3.0
"""Seconds in which a worker must have sent all parts of an answer."""

KILL_SECONDS = 15.0
"""Seconds in which a worker must have killed sessions."""

PART_PAUSE = 0.001
"""Seconds between two parts, so that at least half of the worker's time is left for clients."""

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Largest message in bytes, far above the sessions of 100,000 connections; longer ones are
dropped."""


class ControlError(ProxyError):
    """A worker did not answer, or answered with an error."""


class _Messages:
    """Splitter of a stream into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Add bytes, and yield the complete messages; invalid lines are dropped."""
        self._data += data
        *lines, rest = self._data.split(b"\n")
        self._data = rest if len(rest) <= MAX_MESSAGE_BYTES else bytearray()
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                log.warning("an incomplete control message was dropped")
                continue
            if isinstance(message, dict):
                yield message


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class _WorkerEnd(asyncio.Protocol):
    """Worker's end of the pair: answers each request as it comes."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._messages = _Messages()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for request in self._messages.feed(data):
            number = request["id"]
            try:
                answer = self._answer(request["kind"], request["arguments"])
            except Exception as error:
                self._refuse(number, error)
                continue
            if isinstance(answer, Iterator):
                self._go_on(number, answer)
            else:
                self._write({"id": number, "answer": answer})

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None

    def _go_on(self, number: int, parts: Iterator[Any]) -> None:
        """Write the next part, and schedule the one after it; stop if the pair is closed."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            part = next(parts)
        except StopIteration:
            self._write({"id": number, "answer": {}})
        except Exception as error:
            self._refuse(number, error)
        else:
            loop = asyncio.get_running_loop()
            if part is None:
                loop.call_soon(self._go_on, number, parts)  # after clients' requests
                return
            self._write({"id": number, "part": part})
            loop.call_later(PART_PAUSE, self._go_on, number, parts)

    def _refuse(self, number: int, error: Exception) -> None:
        if not isinstance(error, ProxyError):
            log.error("a request of the HTTP process could not be answered", exc_info=error)
        reason = str(error) if isinstance(error, ProxyError) else "internal error"
        self._write({"id": number, "error": reason})

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(_encode(message))


async def serve_control(sock: socket.socket, answer: Answer) -> asyncio.BaseTransport:
    """Answer requests on a worker's end of the pair until the returned transport is closed."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: _WorkerEnd(answer), sock=sock)
    return transport


class WorkerLink(asyncio.Protocol):
    """HTTP process's end of the pair with one worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self._messages = _Messages()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._parts: dict[int, list[Any]] = {}
        self._ids = count(1)

    @classmethod
    async def open(cls, worker: int, sock: socket.socket) -> "WorkerLink":
        """Make a link of this end of the pair."""
        link = cls(worker)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
        return link

    def close(self) -> None:
        """Close this end; pending requests fail."""
        if self._transport is not None:
            self._transport.close()

    async def ask(
        self, kind: str, *, within: float = ANSWER_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """Return the worker's answer. Raises ControlError after `within` seconds without one."""
        return await self._ask(next(self._ids), kind, arguments, within)

    async def ask_for_parts(
        self, kind: str, *, within: float = PARTS_SECONDS, **arguments: Any
    ) -> list[Any]:
        """Return all parts of the worker's answer; `within` bounds the time of all of them."""
        number = next(self._ids)
        parts = self._parts[number] = []
        try:
            await self._ask(number, kind, arguments, within)
        finally:
            del self._parts[number]
        return parts

    async def _ask(
        self, number: int, kind: str, arguments: Mapping[str, Any], within: float
    ) -> dict[str, Any]:
        if self._transport is None:
            raise ControlError(f"worker {self.worker} is gone")
        pending = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        try:
            request = {"id": number, "kind": kind, "arguments": arguments}
            self._transport.write(_encode(request))
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
        """Assign answers and parts to their requests (called by the event loop)."""
        for message in self._messages.feed(data):
            pending = self._pending.get(message["id"])
            if "part" in message:
                self._parts.get(message["id"], []).append(message["part"])
            elif pending is not None and not pending.done():
                pending.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Fail all pending requests (called by the event loop)."""
        self._transport = None
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(ControlError(f"worker {self.worker} is gone"))


Sessions = Mapping[int, list[SessionFacts] | ControlError]
"""Sessions by worker; an error: the reason why a worker did not answer."""


class WorkerPool:
    """Links to all workers, which are queried concurrently."""

    def __init__(self, links: list[WorkerLink]) -> None:
        self.links = links

    async def snapshots(self) -> dict[int, Snapshot | None]:
        """Return the metrics of each worker; None if it did not answer."""
        answers = await self._all(
            link.ask_for_parts("snapshot", within=SCRAPE_SECONDS) for link in self.links
        )
        return {
            worker: None if isinstance(answer, ControlError) else Snapshot.from_json(answer[0])
            for worker, answer in answers.items()
        }

    async def readiness(self) -> dict[int, list[str]]:
        """Return why each worker is not ready; empty if it is."""
        answers = await self._all(link.ask("ready") for link in self.links)
        return {
            worker: [str(answer)] if isinstance(answer, ControlError) else answer["reasons"]
            for worker, answer in answers.items()
        }

    async def status(self) -> dict[int, dict[str, Any] | ControlError]:
        """Return the state of each worker without its sessions."""
        return await self._all(link.ask("status") for link in self.links)

    async def sessions(self, selector: Selector, kind: str = "sessions") -> Sessions:
        """Return the selected sessions of each worker.

        With `kill` as `kind`, they are closed; with `drain`, they end when their requests in flight
        are answered.
        """
        within = PARTS_SECONDS if kind == "sessions" else KILL_SECONDS
        arguments = selector.arguments()
        answers = await self._all(
            link.ask_for_parts(kind, within=within, **arguments) for link in self.links
        )
        return {
            worker: answer
            if isinstance(answer, ControlError)
            else [SessionFacts._make(row) for part in answer for row in part]
            for worker, answer in answers.items()
        }

    async def _all(self, asking: Iterable[Awaitable[T]]) -> dict[int, T | ControlError]:
        answers = await asyncio.gather(*map(_tried, asking))
        return {link.worker: answer for link, answer in zip(self.links, answers, strict=True)}


async def _tried(asking: Awaitable[T]) -> T | ControlError:
    try:
        return await asking
    except ControlError as error:
        return error
