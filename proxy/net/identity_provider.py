"""Answers of an identity provider, over HTTP or from a file, up to a length.

Rules of a request over HTTP:

- No redirect is followed. It would lead to an address that nobody configured (RFC 9700 section
  4.12), perhaps from https to http, and whoever answers there would hand out keys or get secrets.
- Nothing is unpacked: a few bytes could become more than there is memory.
- Neither a proxy nor a password is taken from the environment or from `~/.netrc`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

_CHUNK_BYTES = 65_536


async def ask(
    method: str,
    url: str,
    *,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return the HTTP status and the body; a longer body than `most_bytes` is cut after them."""
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
            if len(body) > most_bytes:
                break
        return response.status, bytes(body)


def describe_status(status: int) -> str:
    """Say what an HTTP status that brings nothing means, for a log."""
    if 300 <= status < 400:
        return f"HTTP status {status}: redirects are not followed, configure where it is"
    return f"HTTP status {status}"


def read_file(path: Path, most_bytes: int) -> bytes:
    """Return a file's content; of more than `most_bytes` one byte more. Raises OSError.

    Symbolic links are followed: a volume of Kubernetes replaces its files by them.
    """
    # Not blocking: a pipe that nobody writes to would hold the thread for ever.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = bytearray()
        while missing := most_bytes + 1 - len(content):
            if not (piece := os.read(file, missing)):
                break
            content += piece
        return bytes(content)
    finally:
        os.close(file)
