"""Server of the report: a listening socket, a thread that looks at the report, and signals."""

import asyncio
import logging
import signal
import socket

from proxy.errors import host_port
from proxy.net.sockets import Claim
from proxy.ops.http import start_http
from proxy.report.pages import make_pages
from proxy.report.place import Place
from proxy.report.watcher import Watcher

log = logging.getLogger(__name__)


def serve(place: Place, host: str, port: int) -> None:
    """Serve the report of a place until SIGTERM. Raises ConfigError if it cannot listen."""
    claim = Claim(host, port)  # no other process may share the port
    try:
        with claim.listen() as listening:
            asyncio.run(_serve(place, listening))
    finally:
        claim.close()


async def _serve(place: Place, listening: socket.socket) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    watcher = Watcher(place)
    watcher.start()
    server = await start_http(make_pages(watcher, place), listening)
    log.info("listening on http://%s", host_port(*listening.getsockname()[:2]))
    await stopping.wait()
    watcher.stop()
    await server.close()
