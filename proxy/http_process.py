"""The HTTP process: asks the workers, answers Prometheus and the kubelet."""

import asyncio
import signal
import socket

from proxy.control import Fleet, WorkerLink
from proxy.http import make_app, start_http


def run(listening: socket.socket, workers: list[socket.socket], lifeline: int) -> int:
    """Serve on a listening socket until SIGTERM, or until `lifeline` ends; return the status."""
    asyncio.run(_serve(listening, workers, lifeline))
    return 0


async def _serve(listening: socket.socket, workers: list[socket.socket], lifeline: int) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the parent decides
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # nothing here can be reloaded
    loop.add_reader(lifeline, stopping.set)
    fleet = Fleet([await WorkerLink.open(number, sock) for number, sock in enumerate(workers)])
    runner = await start_http(make_app(fleet.snapshots, fleet.readiness), listening)
    await stopping.wait()
    await runner.cleanup()
