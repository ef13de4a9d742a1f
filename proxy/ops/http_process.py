"""HTTP process: queries the workers, answers Prometheus, the kubelet and operators."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import __version__
from proxy.ops.admin_socket import AdminSocket
from proxy.ops.http import Report, make_pages, start_http
from proxy.ops.worker_queries import WorkerLink, WorkerPool
from proxy.scheduling.heartbeats import CHECK_EVERY, Heartbeat, Watch
from proxy.scheduling.lifeline import heed_parent
from proxy.store.interface import StoreInUse

if TYPE_CHECKING:
    from proxy.config import Http
    from proxy.ops.status.service import Conditions, StatusPage


class Health:
    """Health of the proxy's processes, from their heartbeats."""

    def __init__(self, watched: Mapping[str, Heartbeat]) -> None:
        self._watches = {name: Watch(heartbeat) for name, heartbeat in watched.items()}

    async def run(self) -> None:
        """Check the heartbeats until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            for watch in self._watches.values():
                watch.check()

    def hung(self) -> list[str]:
        """Return the names of processes that hang."""
        return [name for name, watch in self._watches.items() if watch.is_hung]


def run(
    http: socket.socket | None,
    admin: socket.socket | None,
    workers: list[socket.socket],
    store: Callable[[], StoreInUse],
    lifeline: int,
    heartbeat: Heartbeat,
    watched: Mapping[str, Heartbeat],
    settings: "Http",
    delivery: Report | None = None,
    conditions: "Conditions" = lambda _: (),
) -> int:
    """Serve on `http` and `admin` until SIGTERM, or until `lifeline` ends; return the exit status.

    `workers` are this process's ends of the socket pairs, `store` returns the store in use,
    `heartbeat` is this process's own, and `watched` are those of all processes by name, for
    `/healthz` and the counts of dropped log lines.
    `delivery` adds the metrics of the delivery of events; None: there is none. `conditions` returns
    what the status page shows beside what workers know.
    """

    async def serve() -> None:
        stopping = asyncio.Event()
        heed_parent(stopping, lifeline, heartbeat)
        health = Health(watched)
        checking = asyncio.create_task(health.run())
        pool = WorkerPool(
            [await WorkerLink.open(number, sock) for number, sock in enumerate(workers)]
        )
        operators = None if admin is None else await AdminSocket(pool, store).serve(admin)

        def others(snapshot: Snapshot, wall: float) -> None:
            for name, one in watched.items():
                snapshot.count(registry.LOG_LINES_DROPPED, one.dropped_lines, name)
            if delivery is not None:
                delivery(snapshot, wall)

        @cache
        def status() -> "StatusPage":
            from proxy.connection.frames import BUILD
            from proxy.ops.status.service import StatusPage
            from proxy.ops.status.snapshot import About

            about = About(
                version=__version__,
                build=BUILD,
                host=socket.gethostname(),
                runbooks_url=settings.runbooks_url,
                report_url=settings.report_url,
            )
            return StatusPage(pool, about, conditions)

        pages = make_pages(pool.snapshots, pool.readiness, health.hung, status, others)
        server = None if http is None else await start_http(pages, http)
        await stopping.wait()
        checking.cancel()
        if operators is not None:
            operators.close()
        if server is not None:
            await server.close()

    asyncio.run(serve())
    return 0
