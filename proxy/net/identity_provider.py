"""Client of an identity provider, over HTTP or by reading its files, with bounded answers.

Rules of a request over HTTP:

- No redirect is followed. It would lead to an address that nobody configured (RFC 9700 section
  4.12), perhaps from https to http, and a server there would provide keys or receive secrets.
- No response is decompressed: a few bytes could become more than there is memory.
- Neither a proxy nor a password is taken from the environment or from `~/.netrc`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

_CHUNK_BYTES = 65_536


async def ask(
    method: str,
    url: str,
    *,
    max_bytes: int,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return the HTTP status and the body; a body longer than `max_bytes` is cut somewhere later.

    `form` is sent as the body of the request. Raises OSError and aiohttp's errors.
    """
    import aiohttp  # 12 MiB that a proxy with files alone never needs

    async with (
        aiohttp.ClientSession(auto_decompress=False, trust_env=False) as session,
        session.request(
            method,
            url,
            data=form,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            allow_redirects=False,
        ) as response,
    ):
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > max_bytes:
                break
        return response.status, bytes(body)


def without_secrets(url: str) -> str:
    """Return a URL for a log, without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def describe_status(status: int) -> str:
    """Return an HTTP status that means failure as a log line has it."""
    if 300 <= status < 400:
        return f"HTTP status {status}: redirects are not followed, configure where it is"
    return f"HTTP status {status}"


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return a file's content, cut to `max_bytes` and one byte more. Raises OSError.

    Symbolic links are followed: a volume of Kubernetes replaces its files by changing links.
    """
    # Not blocking: a named pipe without a writer would block the thread for ever.
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
