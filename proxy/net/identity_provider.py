"""Client of an identity provider, over HTTP or from files, with bounded answers.

h11 implements HTTP/1.1 (RFC 9112), as in `proxy.ops.http_server`; aiohttp would take 13 MiB in each
worker and delay its start. Rules for requests over HTTP:

- Redirects are not followed: a redirect leads to an address that is not configured (RFC 9700
  section 4.12), perhaps from https to http, and the server there would provide keys or receive
  secrets.
- Responses are not decompressed: a few bytes could expand to more than the available memory.
- Neither a proxy nor a password is taken from the environment, from `~/.netrc` or from the URL.
- A connection carries one request, and the server's certificate must be issued by an authority that
  the system trusts.
"""

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import h11

from proxy.errors import ProxyError
from proxy.net.dialler import Dialler
from sasl.login import LoginError
from sasl.untrusted import fit_for_log

_dialler: Final = Dialler()
_CHUNK_BYTES = 65_536
_OF_A_TARGET: Final = "!$%&'()*+,-./:;=?@_~"
"""Characters that are not escaped in a request's target (RFC 3986 sections 3.3 and 3.4)."""


async def ask(
    method: str,
    url: str,
    *,
    max_bytes: int,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    document: Mapping[str, object] | None = None,
) -> tuple[int, bytes]:
    """Return the HTTP status and the body; a body longer than `max_bytes` is truncated somewhere
    beyond that.

    `form`, or `document` as JSON, is sent as the body of the request. Raises OSError, ValueError
    and `h11.ProtocolError`.
    """
    parts = urlsplit(url)
    protocol = h11.Connection(h11.CLIENT)
    body, sent = b"", dict(headers or {})
    if form is not None:
        body, sent["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
    elif document is not None:
        body, sent["Content-Type"] = json.dumps(document).encode(), "application/json"
    request = _request(protocol, method, parts, sent, body)
    reader, writer = await _connect(parts)
    try:
        writer.write(request)
        return await _answer(protocol, reader, max_bytes)
    finally:
        writer.transport.abort()


def _request(
    protocol: h11.Connection, method: str, parts: SplitResult, headers: dict[str, str], body: bytes
) -> bytes:
    host = parts.netloc.rpartition("@")[2]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": host.encode("idna").decode(), "Connection": "close", **headers}
    headers |= {"Accept-Encoding": "identity", "User-Agent": "reauth-proxy"}
    if body:
        headers["Content-Length"] = str(len(body))
    head = h11.Request(
        method=method, target=quote(target, safe=_OF_A_TARGET), headers=list(headers.items())
    )
    sent = (head, h11.Data(data=body), h11.EndOfMessage())
    return b"".join(protocol.send(event) or b"" for event in sent)


async def _connect(parts: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    is_secure, host = parts.scheme == "https", parts.hostname or ""
    # In a thread, because it may read all of the system's authorities; each time, as they change
    context = await asyncio.to_thread(ssl.create_default_context) if is_secure else None
    return await _dialler.open_streams(host, parts.port or (443 if is_secure else 80), context)


async def _answer(
    protocol: h11.Connection, reader: asyncio.StreamReader, max_bytes: int
) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while len(body) <= max_bytes:
        match protocol.next_event():
            case h11.NEED_DATA:
                protocol.receive_data(await reader.read(_CHUNK_BYTES))
            case h11.Response() as head:
                status = head.status_code
            case h11.Data(data=data):
                body += data
            case h11.EndOfMessage():
                break
    return status, bytes(body)


class Refused(ProxyError):
    """The identity provider refused a request, or its response is invalid."""


async def failure_of(
    request: Awaitable[None], within: float, secrets: Callable[[], Iterable[str]]
) -> str | None:
    """Await a request for at most `within` seconds; return why it failed as a line for a log, or
    None if it succeeded. `secrets` returns texts that the line must not repeat."""
    try:
        async with asyncio.timeout(within):
            await request
    except TimeoutError:
        return f"no answer within {within:g} seconds"
    except (ProxyError, LoginError) as error:
        return str(error)
    except Exception as error:  # whatever fails in the network, the caller tries again
        return f"{type(error).__name__}: {fit_for_log(str(error), secrets())}"
    return None


def without_secrets(url: str) -> str:
    """Return a URL for a log, without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def describe_status(status: int) -> str:
    """Return the text of an HTTP status that means failure, for a log line."""
    if 300 <= status < 400:
        return f"HTTP status {status}: redirects are not followed, configure where it is"
    return f"HTTP status {status}"


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return a file's content, truncated to one byte more than `max_bytes`. Raises OSError.

    Symbolic links are followed: Kubernetes replaces the files of a volume by changing links.
    """
    # Non-blocking: opening a named pipe without a writer would otherwise block forever.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = bytearray()
        while missing := max_bytes + 1 - len(content):
            if not (piece := os.read(file, missing)):
                break
            content += piece
        return bytes(content)
    finally:
        os.close(file)
