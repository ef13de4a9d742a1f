"""HTTP server of the webhook, by aiohttp: reviews have bodies, and come by TLS.

It logs no request, however malformed, and does not name its software.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MAX_HEADER_BYTES: Final = 4096
"""Largest request line, and largest header, in bytes."""
MAX_HEADERS: Final = 64
"""Largest number of headers of a request."""
KEEPALIVE_SECONDS: Final = 75.0
"""Seconds for which an idle connection is kept."""
CLOSE_SECONDS: Final = 1.0
"""Seconds in which clients can read their responses when the server closes; after as many more, the
others are disconnected."""
HANDSHAKE_SECONDS: Final = 10.0
"""Seconds in which a TLS handshake must be complete."""
FULL_SECONDS: Final = 1.0
"""Seconds until it accepts again when there is no descriptor left."""
MAX_CONNECTIONS: Final = 256
"""Largest number of connections; a further one closes the oldest: clients that keep connections
open must not lock the kubelet out."""


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

    def __init__(self, runner: web.AppRunner, accepting: asyncio.Task[None]) -> None:
        self._runner = runner
        self._accepting = accepting

    async def close(self) -> None:
        """Stop accepting, and answer the requests that were received."""
        self._accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting
        await self._runner.cleanup()


async def start_http(
    app: web.Application,
    listening: socket.socket,
    *,
    max_connections: int = MAX_CONNECTIONS,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """Serve `app` on a listening socket."""
    app.on_response_prepare.append(_hide_software)
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
    assert runner.server is not None
    accepting = asyncio.create_task(_accept(runner.server, listening, max_connections, tls))
    return HttpServer(runner, accepting)


async def _accept(
    server: web.Server, listening: socket.socket, max_connections: int, tls: ssl.SSLContext | None
) -> None:
    """Accept connections; those in a TLS handshake count, too, and are closed before others."""
    loop = asyncio.get_running_loop()
    handshakes: dict[asyncio.Task[None], None] = {}  # in order; their loop refers to them weakly

    timeout = None if tls is None else HANDSHAKE_SECONDS

    async def shake_hands(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # of TLS, or a time-out
            await loop.connect_accepted_socket(server, sock, ssl=tls, ssl_handshake_timeout=timeout)

    try:
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:  # descriptors are exhausted
                await asyncio.sleep(FULL_SECONDS)
                continue
            if len(handshakes) + len(server.connections) >= max_connections:
                if handshakes:
                    first = next(iter(handshakes))
                    del handshakes[first]
                    first.cancel()
                elif (oldest := server.connections[0].transport) is not None:
                    oldest.abort()
            task = asyncio.create_task(shake_hands(sock))
            handshakes[task] = None
            task.add_done_callback(lambda done: handshakes.pop(done, None))
    finally:
        for task in [*handshakes]:
            task.cancel()
        listening.close()
