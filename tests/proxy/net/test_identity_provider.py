"""Requests to an identity provider, byte by byte; what its answers cause: `test_key_service`."""

import asyncio
from collections.abc import Mapping

import h11
import pytest

from proxy.net.identity_provider import ask
from tests.support.processes import PATIENCE_SECONDS

OK = b"HTTP/1.1 200 OK\r\n"
SIZE = b"Content-Length: 4\r\n\r\n"


def exchanged(
    answer: bytes,
    path: str = "/jwks",
    *,
    method: str = "GET",
    form: Mapping[str, str] | None = None,
    max_bytes: int = 10,
) -> tuple[bytes, tuple[int, bytes]]:
    """The requests sent, and their parsed answers."""
    sent = b""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        sent = await reader.readuntil(b"\r\n\r\n")
        if form is not None:
            sent += await reader.read(1_000)
        writer.write(answer)
        writer.close()

    async def run() -> tuple[int, bytes]:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            await asyncio.start_server(talk, "127.0.0.1", 0) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            return await ask(
                method, f"http://127.0.0.1:{port}{path}", max_bytes=max_bytes, form=form
            )

    answered = asyncio.run(run())
    return sent, answered


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", b"/"),
        ("?a=b", b"/?a=b"),
        ("/realms/a%2Fb/certs;v=1?x=%20&y=a+b#part", b"/realms/a%2Fb/certs;v=1?x=%20&y=a+b"),
        ("/a b/\u00fc", b"/a%20b/%C3%BC"),
    ],
)
def test_what_is_asked(path: str, target: bytes) -> None:
    sent, _ = exchanged(OK + SIZE + b"keys", path)
    line, *headers = sent.rstrip().split(b"\r\n")
    assert line == b"GET " + target + b" HTTP/1.1"
    assert headers[0].startswith(b"Host: 127.0.0.1:")
    assert headers[1:] == [
        b"Connection: close",
        b"Accept-Encoding: identity",
        b"User-Agent: reauth-proxy",
    ]


def test_a_form() -> None:
    sent, _ = exchanged(OK + SIZE + b"keys", method="POST", form={"scope": "a b&c", "x": ""})
    head, _, body = sent.partition(b"\r\n\r\n")
    assert {b"Content-Type: application/x-www-form-urlencoded", b"Content-Length: 16"} <= {
        *head.split(b"\r\n")
    }
    assert body == b"scope=a+b%26c&x="


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (OK + SIZE + b"keys", (200, b"keys")),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nke\r\n2\r\nys\r\n0\r\n\r\n", (200, b"keys")),
        (b"HTTP/1.0 200 OK\r\n\r\nkeys", (200, b"keys")),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK + SIZE + b"keys", (200, b"keys")),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", (404, b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", (302, b"")),
        (OK + SIZE + b"keys, and what nobody asked for", (200, b"keys")),
    ],
)
def test_answers(answer: bytes, result: tuple[int, bytes]) -> None:
    assert exchanged(answer)[1] == result


def test_a_body_is_cut_where_it_is_too_long() -> None:
    _, (_, body) = exchanged(b"HTTP/1.0 200 OK\r\n\r\n" + b"k" * 500_000, max_bytes=100_000)
    assert 100_000 < len(body) < 300_000


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK,
        OK + SIZE + b"ke",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nke\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nkeys",
        OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + b"\0" * 100,
        b"PRI * HTTP/2.0\r\n\r\n",
        b"\x16\x03\x03\0\x02\x02\x50",
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        exchanged(answer)
