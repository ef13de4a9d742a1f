"""HTTP process: queries the workers, answers Prometheus, the kubelet and operators.

It serves `/metrics`, `/healthz`, `/readyz`, `/`, `/sessions.json` and, with minted tokens,
`/jwks.json`. The process is separate, so that a scrape costs the data path only the workers'
answers. On a loopback address, it serves pages that name users only if the request's host is an IP
address or `localhost`.
"""

import asyncio
import ipaddress
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from metrics import registry
from metrics.exposition import expose
from metrics.snapshot import Merger, Snapshot
from proxy import __version__
from proxy.errors import ProxyError
from proxy.net.sockets import peer_of
from proxy.ops.http_server import MAX_CONNECTIONS, Handler, HttpServer, Request, Response
from proxy.ops.status.session_facts import EVERY_SESSION, Selector
from proxy.ops.worker_queries import Sessions, WorkerLink, WorkerPool
from proxy.scheduling.heartbeats import CHECK_EVERY, Heartbeat, Watch
from proxy.scheduling.lifeline import heed_parent
from proxy.store.interface import StoreInUse
from sasl.login import LoginError
from sasl.untrusted import read_object

if TYPE_CHECKING:
    from proxy.config import Http
    from proxy.ops.status.service import Conditions, StatusPage

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
    """Server of the Unix socket on which an operator of this machine lists and kills sessions.

    The command line also queries here which store the proxy uses, before it changes one. Rules:
    only the socket's owner can open it (mode 0600), and a client must run as root or as the proxy's
    own user, according to the kernel (SO_PEERCRED). Each kill is logged with the user who requested
    it. Sessions are never killed over a network address.

        request    {"kind": "sessions", "arguments": {"principal": "User:alice"}}
        response   {"sessions": [row, …], "silent": ["worker 1 does not answer", …]}
              or   {"error": "reason"}

    Kinds are `sessions`, `kill` and `drain`, with the parts of a `Selector` as arguments, whose
    rows are `SessionFacts`; and `store`, without arguments, whose response is {"store": a
    `StoreInUse`}. A request and a response are one line of JSON each, and the response ends the
    connection.
    """

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
        if killed:
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


Hung = Callable[[], list[str]]
"""Function that returns the names of processes that hang."""

Report = Callable[[Snapshot, float], None]
"""Function that adds metrics of no worker to a snapshot, at a Unix time in seconds."""

Jwks = Callable[[], dict[str, Any]]
"""Function that reads the keys of minted tokens. Raises LoginError."""

MIN_SCRAPE_SECONDS = 0.1
"""Seconds in which scrapes share one response, so that scrapes cannot keep the workers busy."""


class _Scraper:
    """Handler of scrapes, which queries the workers once at a time."""

    def __init__(self, workers: WorkerPool, others: Report | None) -> None:
        self._workers = workers
        self._others = others
        self._merger = Merger()
        self._round = asyncio.Lock()
        self._merged = Snapshot()
        self._merged_at: float | None = None

    async def metrics(self, request: Request) -> Response:
        """Serve `/metrics`, as text or OpenMetrics."""
        async with self._round:
            now = asyncio.get_running_loop().time()
            if self._merged_at is None or now - self._merged_at >= MIN_SCRAPE_SECONDS:
                self._merged = self._merger.merge(await self._workers.snapshots())
                if self._others is not None:
                    self._others(self._merged, time.time())
                self._merged_at = asyncio.get_running_loop().time()
            body, content_type = expose(self._merged, request.header("accept"))
        return Response(body=body, content_type=content_type)


def make_pages(
    workers: WorkerPool,
    hung: Hung,
    status: Callable[[], "StatusPage"],
    others: Report | None = None,
    jwks: Jwks | None = None,
) -> dict[str, Handler]:
    """Return the handlers of the paths; any other is answered with 404.

    `status` returns the status page, which is loaded on its first request; `others` adds metrics
    that no worker has; `jwks` reads the keys of minted tokens, None if no tokens are minted.
    """

    async def healthz(_request: Request) -> Response:
        """Answer whether a process hangs; `/readyz` answers whether the workers are ready."""
        if names := hung():
            return Response.text(f"hangs: {', '.join(names)}\n", status=503)
        return Response.text("ok\n")

    async def readyz(_request: Request) -> Response:
        reasons_of = await workers.readiness()
        ready = bool(reasons_of) and not any(reasons_of.values())
        body = {
            "ready": ready,
            "workers": [
                {"worker": worker, "ready": not reasons, "reasons": reasons}
                for worker, reasons in sorted(reasons_of.items())
            ],
        }
        return Response.json(body, status=200 if ready else 503)

    async def keys(_request: Request) -> Response:
        assert jwks is not None
        try:
            return Response.json(await asyncio.to_thread(jwks))
        except LoginError as error:
            log.warning("/jwks.json: %s", error.reason)
            return Response.text("a signing key cannot be read; see the log\n", status=503)

    pages: dict[str, Handler] = {} if jwks is None else {"/jwks.json": keys}
    return pages | {
        "/metrics": _Scraper(workers, others).metrics,
        "/healthz": healthz,
        "/readyz": readyz,
        "/": lambda request: status().page(request),
        "/sessions.json": lambda request: status().sessions(request),
    }


_WITHOUT_USERS: Final = frozenset({"/healthz", "/readyz"})
"""Paths whose responses name no user; `/metrics` names users that have quotas of their own."""

_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z.-]+))(?::[0-9]*)?")
"""Pattern of a Host header (RFC 9110 section 7.2) with an IP address or `localhost`."""


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def refuse_other_names(request: Request) -> Response | None:
    """Answer a request whose Host header is another name with 403.

    A browser on this machine can send requests to a loopback address for the pages of any site. A
    site whose name resolves to that address could read the responses (DNS rebinding).
    """
    hosts = request.headers.get("host", ())
    if request.path in _WITHOUT_USERS or (len(hosts) == 1 and names_no_other_host(hosts[0])):
        return None
    return Response.text("only an IP address or localhost is answered here\n", status=403)


def names_no_other_host(host: str) -> bool:
    """Return whether a Host header is an IP address or `localhost`, with any port or none."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["ipv6"] or match["name"].removesuffix(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return (address.version == 6) is (match["ipv6"] is not None)


async def start_http(
    pages: Mapping[str, Handler],
    listening: socket.socket,
    *,
    max_connections: int = MAX_CONNECTIONS,
) -> HttpServer:
    """Serve `pages` on a listening socket; on a loopback address with `refuse_other_names`."""
    server = HttpServer(
        pages,
        refuse=refuse_other_names if _is_loopback(listening.getsockname()[0]) else None,
        max_connections=max_connections,
    )
    await server.start(listening)
    return server


class Health:
    """Health of the proxy's processes, from their heartbeats."""

    def __init__(self, watched: Mapping[str, Heartbeat]) -> None:
        self._watches = {name: Watch(heartbeat) for name, heartbeat in watched.items()}

    async def run(self) -> None:
        """Check the heartbeats until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            for watch in self._watches.values():
                watch.check()

    def hung(self) -> list[str]:
        """Return the names of processes that hang."""
        return [name for name, watch in self._watches.items() if watch.is_hung]


def run(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
    heartbeat: Heartbeat,
    watched: Mapping[str, Heartbeat],
    settings: "Http",
    delivery: Report | None = None,
    conditions: "Conditions" = lambda _: (),
    jwks: Jwks | None = None,
) -> int:
    """Serve on `http` and `admin` until SIGTERM, or until `lifeline` ends; return the exit status.

    `workers` are this process's ends of the socket pairs, `store` returns the store in use,
    `heartbeat` is this process's own, and `watched` are those of all processes by name, for
    `/healthz` and the counts of dropped log lines. `delivery` adds the metrics of the delivery of
    events; None if events are not delivered. `conditions` returns the conditions outside workers
    for the status page. `jwks` is that of `make_pages`.
    """

    async def serve() -> None:
        stopping = heed_parent(lifeline, heartbeat)
        health = Health(watched)
        checking = asyncio.create_task(health.run())
        pool = WorkerPool(
            [await WorkerLink.open(number, sock) for number, sock in enumerate(workers)]
        )
        operators = None if admin is None else await AdminSocket(pool, store).serve(admin)

        def others(snapshot: Snapshot, wall: float) -> None:
            for name, one in watched.items():
                snapshot.count(registry.LOG_LINES_DROPPED, one.dropped_lines, name)
            if delivery is not None:
                delivery(snapshot, wall)

        @cache
        def status() -> "StatusPage":
            from proxy.connection.frames import BUILD
            from proxy.ops.status.service import StatusPage
            from proxy.ops.status.snapshot import About

            about = About(
                version=__version__,
                build=BUILD,
                host=socket.gethostname(),
                runbooks_url=settings.runbooks_url,
                report_url=settings.report_url,
            )
            return StatusPage(pool, about, conditions)

        pages = make_pages(pool, health.hung, status, others, jwks)
        server = None if http is None else await start_http(pages, http)
        await stopping.wait()
        checking.cancel()
        if operators is not None:
            operators.close()
        if server is not None:
            await server.close()

    asyncio.run(serve())
    return 0
