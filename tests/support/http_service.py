"""An HTTP server in a thread of its own."""

import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]]
"""Maps a request and its body to a status and a JSON body."""


class HttpService:
    """Serves requests with one function while it is entered."""

    def __init__(
        self,
        answer: Answer,
        *,
        headers: Mapping[str, str] | None = None,
        certificate: Path | None = None,
    ) -> None:
        """`certificate`: PEM file with its key, for TLS; None for plain HTTP."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(
                    self, self.rfile.read(int(self.headers["Content-Length"] or 0))
                )
                self.send_response(status)
                given = {"Content-Type": "application/json", **(headers or {})}
                for name, value in {**given, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_POST = do_GET  # noqa: N815 - as its base class wants it

            def log_message(self, *_: object) -> None:
                """Do not log to stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop serving, as in an outage."""
        self._server.shutdown()
        self._server.server_close()
