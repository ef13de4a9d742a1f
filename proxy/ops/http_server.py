"""HTTP/1.1 server of read-only pages, small enough for a sidecar.

h11 knows the protocol (RFC 9112); this module has sockets and limits. A general server would take
more memory than the rest of its process. This one knows GET and HEAD, and nothing of request
bodies, upgrades or compression. Rules:

- A request's head is at most `MAX_HEAD_BYTES` long and must arrive in `HEAD_SECONDS`. Malformed
  input is answered with 400, is not logged, and ends the connection.
- No body is read: a request that announces one is answered, and its connection closed.
- Requests of a connection are answered one after the other; a client that does not read its
  responses is not read either, and is disconnected after `WRITE_SECONDS`.
- Beyond `MAX_CONNECTIONS` the oldest connection is closed: clients that keep connections open must
  not lock the kubelet out.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import h11

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 8192
"""Largest request line with all headers, in bytes."""
MAX_QUERY_FIELDS: Final = 16
"""Largest number of fields in a query."""
HEAD_SECONDS: Final = 75.0
"""Seconds in which a request must arrive, since the one before it: longer than Prometheus' usual
scrape interval of a minute."""
WRITE_SECONDS: Final = 30.0
"""Seconds in which a client must read its response."""
CLOSE_SECONDS: Final = 1.0
"""Seconds in which clients can read their responses when the server closes; then they are
disconnected."""
LINGER_SECONDS: Final = 1.0
"""Seconds for which the rest of a request that is not read is received after the response: an early
close would discard the response as well (RFC 9112 section 9.6)."""
MAX_CONNECTIONS: Final = 256
"""Largest number of connections."""


class Request(NamedTuple):
    """Request for a page."""

    method: str
    path: str
    """The path, decoded."""
    query: tuple[tuple[str, str], ...] = ()
    """The fields of the query in their order, decoded."""
    headers: Mapping[str, tuple[str, ...]] = {}
    """The values of each header, by its name in lower case."""

    def header(self, name: str) -> str:
        """Return the value of a header; several are joined by commas (RFC 9110 section 5.3)."""
        return ", ".join(self.headers.get(name, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Response to a request."""

    status: int = 200
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, *, status: int = 200, **headers: str) -> "Response":
        """Return a response of plain text."""
        kind = "text/plain; charset=utf-8"
        return cls(status=status, body=text.encode(), content_type=kind, headers=headers)

    @classmethod
    def json(
        cls, content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> "Response":
        """Return a response of JSON."""
        return cls(
            status=status,
            body=json.dumps(content).encode(),
            content_type="application/json; charset=utf-8",
            headers=headers or {},
        )


class BadRequestError(Exception):
    """The request is malformed; the text is the reason, for the client."""


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Server of `pages`, by path."""

    def __init__(
        self,
        pages: Mapping[str, Handler],
        *,
        refuse: Callable[[Request], Response | None] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Serve `pages`; `refuse` returns the refusal of a request, or None."""
        self._pages = pages
        self._refuse = refuse
        self._max_connections = max_connections
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """The open connections by the tasks that serve them, oldest first."""
        self._answering: set[asyncio.Task[None]] = set()
        """The tasks that have a request to answer."""
        self._accepting: asyncio.Server
        self._closing = False

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a listening socket."""
        self._accepting = await asyncio.start_server(
            self._serve, sock=listening, limit=MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop accepting, answer the requests that were received, and close all connections."""
        self._closing = True
        self._accepting.close()
        if self._answering:
            await asyncio.wait(self._answering, timeout=CLOSE_SECONDS)
        if tasks := list(self._connections):
            for task in tasks:
                self._end(task)
            await asyncio.wait(tasks)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._connections[task].transport.abort()
        task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._max_connections:
            oldest = next(iter(self._connections))
            self._end(oldest)
            del self._connections[oldest]
        self._connections[task] = writer
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        # Cancelled: the server closes, or has too many connections
        with suppress(OSError, TimeoutError, asyncio.CancelledError):
            while await self._serve_one(protocol, reader, writer, task):
                protocol.start_next_cycle()
            await _linger(reader, writer)
        self._connections.pop(task, None)
        self._answering.discard(task)
        writer.close()

    async def _serve_one(
        self,
        protocol: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> bool:
        """Answer a request; False if it was the last one of its connection."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await _next_request(protocol, reader)
            if head is None:
                return False
            request = parse_request(head)
            # What follows the head and is not its end is a body, which is not read
            has_body = not isinstance(protocol.next_event(), h11.EndOfMessage)
        except (h11.RemoteProtocolError, BadRequestError) as error:
            refusal = Response.text(f"{error}\n", status=400)
            writer.write(_encoded(protocol, refusal, closes=True))
            return False
        self._answering.add(task)
        response = await self._response(request)
        closes = has_body or self._closing
        is_head = request.method == "HEAD"
        writer.write(_encoded(protocol, response, closes=closes, is_head=is_head))
        async with asyncio.timeout(WRITE_SECONDS):
            await writer.drain()
        self._answering.discard(task)
        return protocol.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _response(self, request: Request) -> Response:
        if self._refuse is not None and (refusal := self._refuse(request)) is not None:
            return refusal
        page = self._pages.get(request.path)
        if page is None:
            return Response.text(
                f"404: Not Found; available: {', '.join(self._pages)}\n", status=404
            )
        if request.method not in ("GET", "HEAD"):
            return Response.text("405: Method Not Allowed\n", status=405, Allow="GET, HEAD")
        try:
            return await page(request)
        except BadRequestError as error:
            return Response.text(f"{error}\n", status=400)
        except Exception:
            log.exception("%s failed", request.path)
            return Response.text("500: Internal Server Error\n", status=500)


async def _next_request(
    protocol: h11.Connection, reader: asyncio.StreamReader
) -> h11.Request | None:
    """Return the head of the next request; None if the client closed the connection.

    Raises h11.RemoteProtocolError.
    """
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(MAX_HEAD_BYTES))
    return event if isinstance(event, h11.Request) else None


def parse_request(head: h11.Request) -> Request:
    """Return the request for a page of this server. Raises BadRequestError."""
    target = head.target.decode()
    if not target.startswith("/"):
        raise BadRequestError("a path is required")
    headers: dict[str, tuple[str, ...]] = {}
    for raw_name, value in head.headers:
        name = raw_name.decode()
        headers[name] = (*headers.get(name, ()), value.decode("latin-1"))
    path, _, query = target.partition("?")
    try:
        wanted = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise BadRequestError("too many fields in the query") from None
    return Request(
        method=head.method.decode(), path=unquote(path), query=tuple(wanted), headers=headers
    )


def _encoded(
    protocol: h11.Connection, response: Response, *, closes: bool, is_head: bool = False
) -> bytes:
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Date", formatdate(usegmt=True)),
        *response.headers.items(),
        *([("Connection", "close")] if closes else []),
    ]
    events = [
        h11.Response(
            status_code=response.status, headers=headers, reason=HTTPStatus(response.status).phrase
        ),
        *([] if is_head else [h11.Data(data=response.body)]),
        h11.EndOfMessage(),
    ]
    return b"".join(protocol.send(event) or b"" for event in events)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Receive and discard further input for a moment before the close."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_SECONDS):
        while await reader.read(MAX_HEAD_BYTES):
            pass
