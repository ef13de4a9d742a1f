"""The HTTP server's reading of requests."""

import asyncio
import re
import socket
from contextlib import suppress

import h11
import pytest

from proxy.ops.http_server import (
    MAX_QUERY_FIELDS,
    BadRequestError,
    HttpServer,
    Request,
    Response,
    parse_request,
)
from tests.support.tables import table

HOST = "Host: localhost\r\n"


def parsed(text: str) -> Request:
    protocol = h11.Connection(h11.SERVER)
    protocol.receive_data(f"{text}\r\n".encode("latin-1"))
    head = protocol.next_event()
    assert isinstance(head, h11.Request)
    return parse_request(head)


async def hello(request: Request) -> Response:
    return Response.text(f"{request.method}\n")


def answer_to(sent: bytes) -> bytes:
    """The whole answer of a server until it closes, or until the end of the request."""

    async def run() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        server = HttpServer({"/": hello})
        await server.start(listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(sent)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        await server.close()
        return answer

    return asyncio.run(run())


def status_lines(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 \d+ [ \w]+", answer)


def test_a_request_is_decoded() -> None:
    target = "/sessions%2Ejson?principal=User%3Aa+b&limit="
    request = parsed(f"GET {target} HTTP/1.1\r\n{HOST}X-A: 1 \r\nx-a:2\r\n")
    assert (request.method, request.path) == ("GET", "/sessions.json")
    assert request.query == (("principal", "User:a b"), ("limit", ""))
    assert request.header("x-a") == "1, 2"
    assert request.header("accept") == ""


@pytest.mark.parametrize("target", ["http://localhost/", "*", f"/?{'&'.join('a' * 20)}"])
def test_what_is_no_path_with_a_short_query_is_refused(target: str) -> None:
    assert len(target.split("&")) in (1, MAX_QUERY_FIELDS + 4)
    with pytest.raises(BadRequestError):
        parsed(f"GET {target} HTTP/1.1\r\n{HOST}")


@pytest.mark.parametrize(
    ("version", "headers", "closes"),
    [
        ("1.1", "", False),
        ("1.1", "Connection: Close\r\n", True),
        ("1.1", "Connection: upgrade, close\r\n", True),
        ("1.1", "Content-Length: 0\r\n", False),
        ("1.1", "Content-Length: 4\r\n", True),
        ("1.1", "Content-Length: 4\r\nExpect: 100-continue\r\n", True),
        ("1.1", "Content-Length: 4\r\nContent-Encoding: gzip\r\n", True),
        ("1.0", "", True),
    ],
)
def test_a_connection_is_closed_after_what_may_have_a_body(
    version: str, headers: str, closes: bool
) -> None:
    one = f"GET / HTTP/{version}\r\n{HOST}{headers}\r\n".encode()
    answer = answer_to(one + f"HEAD / HTTP/1.1\r\n{HOST}\r\n".encode())
    assert status_lines(answer) == [b"HTTP/1.1 200 OK"] * (1 if closes else 2)
    assert (b"connection: close" in answer.lower()) is closes
    assert answer.count(b"GET\n") == 1  # the response to HEAD has no body


@pytest.mark.parametrize(
    "text", [*table(__file__, "no_requests"), f"GET / HTTP/1.1\r\n{HOST}X: {'a' * 20_000}\r\n"]
)
def test_what_is_no_request_is_refused_and_the_connection_closed(text: str) -> None:
    answer = answer_to(f"{text}\r\nGET / HTTP/1.1\r\n{HOST}\r\n".encode("latin-1"))
    assert status_lines(answer) == [b"HTTP/1.1 400 Bad Request"]
    assert b"connection: close" in answer.lower()


def test_a_request_that_is_cut_short_is_refused() -> None:
    assert status_lines(answer_to(b"GET / HTTP/1.1\r\nHo")) == [b"HTTP/1.1 400 Bad Request"]


def test_a_client_that_sends_nothing_is_answered_nothing() -> None:
    assert answer_to(b"") == b""
