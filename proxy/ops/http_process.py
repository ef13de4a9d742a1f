"""HTTP process: asks the workers, answers Prometheus, the kubelet and operators."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from importlib.metadata import version

from proxy.child_process.heartbeats import LOOK_EVERY, Heartbeat, Watch
from proxy.child_process.lifeline import heed_parent
from proxy.ops.admin_socket import AdminSocket
from proxy.ops.http import make_app, start_http
from proxy.ops.status.service import StatusPage
from proxy.ops.status.snapshot import About
from proxy.ops.worker_queries import WorkerLink, WorkerPool
from proxy.store.in_use import StoreInUse


def run(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
    heartbeat: Heartbeat,
    watched: Mapping[str, Heartbeat],
) -> int:
    """Serve on listening sockets until SIGTERM, or until `lifeline` ends; return the status.

    `heartbeat`: its own; `watched`: those that `/healthz` reports, by the names of processes.
    """
    asyncio.run(_serve(http, admin, workers, store, lifeline, heartbeat, watched))
    return 0


class Health:
    """Heartbeats of the processes, and which of them hang."""

    def __init__(self, watched: Mapping[str, Heartbeat]) -> None:
        self._watches = {name: Watch(heartbeat) for name, heartbeat in watched.items()}

    async def run(self) -> None:
        """Look at them until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for watch in self._watches.values():
                watch.look()

    def hung(self) -> list[str]:
        """Name those that have been silent for too long."""
        return [name for name, watch in self._watches.items() if watch.is_hung]


async def _serve(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
    heartbeat: Heartbeat,
    watched: Mapping[str, Heartbeat],
) -> None:
    stopping = asyncio.Event()
    heed_parent(stopping, lifeline, heartbeat)
    health = Health(watched)
    looking = asyncio.create_task(health.run())
    fleet = WorkerPool([await WorkerLink.open(number, sock) for number, sock in enumerate(workers)])
    operators = None if admin is None else await AdminSocket(fleet, store).serve(admin)
    about = About(version=version("kafka-reauth-proxy"), host=socket.gethostname())
    app = make_app(fleet.snapshots, fleet.readiness, health.hung, StatusPage(fleet, about))
    server = None if http is None else await start_http(app, http)
    await stopping.wait()
    looking.cancel()
    if operators is not None:
        operators.close()
    if server is not None:
        await server.close()
