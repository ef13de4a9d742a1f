"""The HTTP process: asks the workers, answers Prometheus, the kubelet and operators."""

import asyncio
import socket
from collections.abc import Callable
from importlib.metadata import version

from proxy.admin_socket import AdminSocket
from proxy.child import heed_parent
from proxy.control import Fleet, WorkerLink
from proxy.http import make_app, start_http
from proxy.status.picture import About
from proxy.status.service import StatusPage
from proxy.store.in_use import StoreInUse


def run(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
) -> int:
    """Serve on listening sockets until SIGTERM, or until `lifeline` ends; return the status."""
    asyncio.run(_serve(http, admin, workers, store, lifeline))
    return 0


async def _serve(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
) -> None:
    stopping = asyncio.Event()
    heed_parent(stopping, lifeline)
    fleet = Fleet([await WorkerLink.open(number, sock) for number, sock in enumerate(workers)])
    operators = None if admin is None else await AdminSocket(fleet, store).serve(admin)
    about = About(version=version("kafka-reauth-proxy"), host=socket.gethostname())
    app = make_app(fleet.snapshots, fleet.readiness, StatusPage(fleet, about))
    server = None if http is None else await start_http(app, http)
    await stopping.wait()
    if operators is not None:
        operators.close()
    if server is not None:
        await server.close()
