"""Unix socket on which an operator of this machine lists and kills sessions.

The command line also queries here which store the proxy uses, before it changes one.

Rules: only the socket's owner can open it (mode 0600), and a client must run as root or as the
proxy's own user, according to the kernel (SO_PEERCRED). Each kill is logged with the user who
requested it. Sessions are never killed over a network address.

    request    {"kind": "sessions", "arguments": {"principal": "User:alice"}}
    response   {"sessions": [row, …], "silent": ["worker 1 does not answer", …]}
          or   {"error": "reason"}

Kinds are `sessions`, `kill` and `drain`, with the parts of a `Selector` as arguments, whose rows
are `SessionFacts`; and `store`, without arguments, whose response is {"store": a `StoreInUse`}. A
request and a response are one line of JSON each, and the response ends the connection.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from proxy.errors import ProxyError
from proxy.net.sockets import peer_of
from proxy.ops.status.session_facts import EVERY_SESSION, Selector
from proxy.ops.worker_queries import Sessions, WorkerPool
from proxy.store.interface import StoreInUse
from sasl.untrusted import read_object

log = logging.getLogger(__name__)

MAX_QUESTION_BYTES: Final = 2_097_152
"""Largest request in bytes: enough for a name of half a megabyte, escaped."""
QUESTION_SECONDS: Final = 5.0
"""Seconds in which the request must arrive."""
ANSWER_SECONDS: Final = 25.0
"""Seconds in which the response must be made and read; longer than workers may take to kill."""
MAX_AT_ONCE: Final = 4
"""Largest number of requests that are answered at once; others wait."""
ROWS_AT_ONCE: Final = 200
"""Number of rows that are written in one iteration of the event loop."""


class AdminSocket:
    """Server of operators' requests."""

    def __init__(self, workers: WorkerPool, store: Callable[[], StoreInUse]) -> None:
        """Answer from `workers`; `store` returns the store that the proxy uses."""
        self._workers = workers
        self._store = store
        self._requests = asyncio.Semaphore(MAX_AT_ONCE)

    async def serve(self, listening: socket.socket) -> asyncio.Server:
        """Answer requests until the returned server is closed.

        `start_unix_server` cannot be used: since Python 3.13 it removes the path that the socket
        was bound to, which may be a temporary short name for a long path.
        """
        return await asyncio.start_server(self._client, sock=listening, limit=MAX_QUESTION_BYTES)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._requests, asyncio.timeout(ANSWER_SECONDS):
                await self._answer(reader, writer)
        except (OSError, TimeoutError):
            log.info("an operator did not wait for the answer")
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, uid = peer_of(writer.get_extra_info("socket"))
        who = f"uid {uid} (pid {pid})"
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                line = await reader.readline()  # before any response: unread bytes would reset it
            if not line:
                return  # the peer has only found out whether anybody listens
            if uid not in (0, os.geteuid()):
                log.warning("sessions: %s is refused", who)
                raise ValueError("only root and the user of the proxy may send requests")
            kind, selector = _parse(line)
        except ValueError as error:
            await _reply(writer, {"error": str(error)})
            return
        if kind == "store":
            await _reply(writer, {"store": self._store()})
        else:
            await _reply_sessions(writer, await self._list_or_kill(kind, selector, who))

    async def _list_or_kill(self, kind: str, selector: Selector, who: str) -> Sessions:
        if kind != "sessions":
            log.info("sessions: %s requests a %s of those of %s", who, kind, selector)
        answers = await self._workers.sessions(selector, kind)
        if kind != "kill":
            return answers
        killed = sum(len(rows) for rows in answers.values() if not isinstance(rows, ProxyError))
        log.warning("sessions: %s killed %d sessions of %s", who, killed, selector)
        return answers


def _parse(line: bytes) -> tuple[str, Selector]:
    """Return the kind and the selector of a request. Raises ValueError."""
    match read_object(line):
        case {"kind": "sessions" | "kill" | "drain" as kind, "arguments": dict(arguments)}:
            selector = Selector.from_arguments(arguments)
        case {"kind": "store" as kind}:
            selector = EVERY_SESSION
        case _:
            raise ValueError("unknown request")
    if kind in ("kill", "drain") and selector == EVERY_SESSION:
        raise ValueError(f"name the sessions to {kind}")
    return kind, selector


async def _reply(writer: asyncio.StreamWriter, answer: Mapping[str, object]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()


async def _reply_sessions(writer: asyncio.StreamWriter, answers: Sessions) -> None:
    silent = [str(answer) for answer in answers.values() if isinstance(answer, ProxyError)]
    rows = [row for found in answers.values() if not isinstance(found, ProxyError) for row in found]
    writer.write(b'{"silent": %b, "sessions": [' % json.dumps(silent).encode())
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = json.dumps(rows[first : first + ROWS_AT_ONCE])[1:-1]
        writer.write((", " if first else "").encode() + some.encode())
        await writer.drain()
    writer.write(b"]}\n")
    await writer.drain()
