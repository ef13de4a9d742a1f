"""The HTTP server's reading of requests, strict as RFC 9112 has it."""

import pytest

from proxy.ops.http_server import BadRequestError, parse_head

HOST = "Host: localhost\r\n"


def head(text: str) -> bytes:
    return f"{text}\r\n".encode("latin-1")


def test_a_request_is_decoded() -> None:
    target = "/sessions%2Ejson?principal=User%3Aa+b&limit="
    request = parse_head(head(f"GET {target} HTTP/1.1\r\n{HOST}X-A: 1 \r\nx-a:2\r\n"))
    assert (request.method, request.path) == ("GET", "/sessions.json")
    assert request.query == (("principal", "User:a b"), ("limit", ""))
    assert request.header("x-a") == "1, 2"
    assert request.header("accept") == ""
    assert not request.closes


@pytest.mark.parametrize(
    ("version", "headers", "closes"),
    [
        ("1.1", "", False),
        ("1.1", "Connection: Close\r\n", True),
        ("1.1", "Connection: upgrade, close\r\n", True),
        ("1.1", "Content-Length: 0\r\n", False),
        ("1.1", "Content-Length: 4\r\n", True),
        ("1.1", "Content-Length: 0\r\nContent-Length: 4\r\n", True),
        ("1.0", "", True),
    ],
)
def test_a_connection_is_closed_after_what_may_have_a_body(
    version: str, headers: str, closes: bool
) -> None:
    assert parse_head(head(f"GET / HTTP/{version}\r\n{HOST}{headers}")).closes is closes


@pytest.mark.parametrize(
    "text",
    [
        f"GET  / HTTP/1.1\r\n{HOST}",
        f"GET / HTTP/1.1 \r\n{HOST}",
        f"GET / HTTP/2.0\r\n{HOST}",
        f"GET / http/1.1\r\n{HOST}",
        f"GET /\r\n{HOST}",
        f"GET http://localhost/ HTTP/1.1\r\n{HOST}",
        f"GET * HTTP/1.1\r\n{HOST}",
        f"GET /\x80 HTTP/1.1\r\n{HOST}",
        f"GET /\x00 HTTP/1.1\r\n{HOST}",
        f"G\x00T / HTTP/1.1\r\n{HOST}",
        f"\r\nGET / HTTP/1.1\r\n{HOST}",
        f"GET / HTTP/1.1\n{HOST}",
        f"GET / HTTP/1.1\r\n{HOST}X : 1\r\n",
        f"GET / HTTP/1.1\r\n{HOST}X\r\n",
        f"GET / HTTP/1.1\r\n{HOST} folded\r\n",
        f"GET / HTTP/1.1\r\n{HOST}X: a\x00b\r\n",
        f"GET / HTTP/1.1\r\n{HOST}X: a\rb\r\n",
        f"GET / HTTP/1.1\r\n{HOST}X: a\nb\r\n",
        f"GET / HTTP/1.1\r\n{HOST}Transfer-Encoding: identity\r\n",
        f"GET / HTTP/1.1\r\n{HOST}{HOST}",
        "GET / HTTP/1.1\r\n",
        f"GET /?{'&'.join('abcdefghijklmnopqr')} HTTP/1.1\r\n{HOST}",
    ],
)
def test_what_is_not_strictly_a_request_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_head(head(text))
