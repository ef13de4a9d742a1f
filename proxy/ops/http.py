"""HTTP endpoints: `/metrics`, `/healthz`, `/readyz`, `/`.

They are served by a process of their own, so that a scrape takes no time of the data path but that
of the workers' answers. The server reads no request body, logs no request, however malformed, and
does not name its software. On a loopback address, pages that name users are served only to requests
whose host is an IP address or `localhost`.
"""

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from aiohttp.hdrs import HOST
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from metrics.exposition import expose
from metrics.merger import Merger
from metrics.snapshot import Snapshot
from proxy.ops.status.service import StatusPage

Snapshots = Callable[[], Awaitable[Mapping[int, Snapshot | None]]]
"""Function that returns the metrics of each worker; None: it did not answer."""

Readiness = Callable[[], Awaitable[Mapping[int, list[str]]]]
"""Function that returns the reasons why each worker is not ready; empty: it is."""

Hung = Callable[[], list[str]]
"""Function that returns the names of processes that hang."""

MAX_HEADER_BYTES = 4096
"""Largest request line, and largest header, in bytes."""
MAX_HEADERS = 64
"""Largest number of headers of a request."""
KEEPALIVE_SECONDS = 75.0
"""Seconds for which an idle connection is kept: longer than Prometheus' usual scrape interval of a
minute."""
CLOSE_SECONDS: Final = 1.0
"""Seconds in which clients can read their responses when the server closes; after as many more, the
others are disconnected."""
HANDSHAKE_SECONDS: Final = 10.0
"""Seconds in which a TLS handshake must be complete."""
MAX_CONNECTIONS: Final = 256
"""Largest number of connections; a further one closes the oldest: clients that keep connections
open must not lock the kubelet out."""

MIN_SCRAPE_SECONDS = 0.1
"""Seconds in which scrapes share one response, so that scrapes cannot keep the workers busy."""


class _Scraper:
    """Handler of scrapes, which queries the workers once at a time."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._merger = Merger()
        self._round = asyncio.Lock()
        self._merged = Snapshot()
        self._merged_at: float | None = None

    async def metrics(self, request: web.Request) -> web.Response:
        """Serve `/metrics`, as text or OpenMetrics."""
        async with self._round:
            now = asyncio.get_running_loop().time()
            if self._merged_at is None or now - self._merged_at >= MIN_SCRAPE_SECONDS:
                self._merged = self._merger.merge(await self._snapshots())
                self._merged_at = asyncio.get_running_loop().time()
            body, content_type = expose(self._merged, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def make_app(
    snapshots: Snapshots, readiness: Readiness, hung: Hung, status: StatusPage
) -> web.Application:
    """Build the application: five read-only paths; any other is answered with 404."""

    async def healthz(_request: web.Request) -> web.Response:
        """Answer whether a process hangs; `/readyz` answers whether the workers are ready."""
        if names := hung():
            return web.Response(status=503, text=f"does not go on: {', '.join(names)}\n")
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        workers = await readiness()
        ready = bool(workers) and not any(workers.values())
        body = {
            "ready": ready,
            "workers": [
                {"worker": worker, "ready": not reasons, "reasons": reasons}
                for worker, reasons in sorted(workers.items())
            ],
        }
        return web.json_response(body, status=200 if ready else 503)

    app = web.Application(client_max_size=1)
    app.on_response_prepare.append(_hide_software)
    app.router.add_get("/metrics", _Scraper(snapshots).metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/", status.page)
    app.router.add_get("/sessions.json", status.sessions)
    return app


_WITHOUT_USERS: Final = frozenset({"/healthz", "/readyz"})
"""Paths whose responses name no user; `/metrics` names users that have quotas of their own."""

_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z.-]+))(?::[0-9]*)?")
"""Pattern of a Host header (RFC 9110 section 7.2) with an IP address or `localhost`."""


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@web.middleware
async def refuse_other_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request whose Host header is another name with 403.

    A browser on this machine can send requests to a loopback address for the pages of any site. A
    site whose name resolves to that address could read the responses (DNS rebinding).
    """
    hosts = request.headers.getall(HOST, [])
    if request.path in _WITHOUT_USERS or (len(hosts) == 1 and names_no_other_host(hosts[0])):
        return await handler(request)
    return web.Response(status=403, text="only an IP address or localhost is answered here\n")


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


async def _hide_software(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)


_CLIENT_ERRORS: Final = (HttpProcessingError, web.RequestPayloadError)


def _is_own_error(record: logging.LogRecord) -> bool:
    """Return False for errors of clients, such as invalid HTTP, which are not logged."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _CLIENT_ERRORS)


log = logging.getLogger(__name__)
log.addFilter(_is_own_error)


class HttpServer:
    """HTTP server on a listening socket."""

    def __init__(self, runner: web.AppRunner, accepting: asyncio.Server) -> None:
        self._runner = runner
        self._accepting = accepting

    async def close(self) -> None:
        """Stop accepting, and answer the requests that were received."""
        self._accepting.close()
        await self._runner.cleanup()


async def start_http(
    app: web.Application,
    listening: socket.socket,
    *,
    max_connections: int = MAX_CONNECTIONS,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """Serve `app` on a listening socket; on a loopback address with `refuse_other_names`."""
    if _is_loopback(listening.getsockname()[0]):
        app.middlewares.append(refuse_other_names)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=log,
        handle_signals=False,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
        keepalive_timeout=KEEPALIVE_SECONDS,
        auto_decompress=False,
        shutdown_timeout=CLOSE_SECONDS,
    )
    await runner.setup()
    server = runner.server
    assert server is not None

    def accept() -> web.RequestHandler:
        current = server.connections
        for oldest in current[: max(0, len(current) - max_connections + 1)]:
            if oldest.transport is not None:
                oldest.transport.abort()
        return server()

    loop = asyncio.get_running_loop()
    handshake = None if tls is None else HANDSHAKE_SECONDS
    accepting = await loop.create_server(
        accept, sock=listening, ssl=tls, ssl_handshake_timeout=handshake
    )
    return HttpServer(runner, accepting)
