"""Which doors a worker has: opens and closes addresses as brokers come, move and go."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from proxy import config
from proxy.errors import ConfigError
from proxy.listener import Door, Listener
from proxy.routing.discovery import ClusterDiscovery, SidecarDiscovery, Target
from proxy.sockets import listen

log = logging.getLogger(__name__)


class Routing:
    """The way from every listener's addresses to the brokers."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        settings: config.Config,
        listeners: list[Listener],
    ) -> None:
        self._spawn = spawn
        self._listeners = listeners
        self._doors: dict[tuple[str, int | None], asyncio.Server] = {}
        self._closed = False
        self._sidecar: SidecarDiscovery | None = None
        self._cluster: ClusterDiscovery | None = None
        upstream = settings.upstream
        timeout_s = upstream.socket_connection_setup_timeout_ms / 1000
        servers = [(server.host, server.port) for server in upstream.bootstrap_servers]
        if any(one.settings.routing is config.Routing.SIDECAR for one in listeners):
            host, port = servers[0]
            self._sidecar = SidecarDiscovery(
                host, port, timeout_s=timeout_s, on_versions=self._offer
            )
        if any(one.settings.routing is config.Routing.GATEWAY for one in listeners):
            self._cluster = ClusterDiscovery(
                servers,
                metadata_max_age=upstream.metadata_max_age_ms / 1000,
                timeout_s=timeout_s,
                on_versions=self._offer,
                on_broker_joined=self._joined,
                on_broker_left=self._left,
            )

    async def open(self, listening: Mapping[str, socket.socket]) -> None:
        """Look once for brokers, open every listener's own address, and keep looking."""
        now = asyncio.get_running_loop().time()
        for listener in self._listeners:
            self._map(listener)
        for discovery in (self._sidecar, self._cluster):
            if discovery is not None:
                await discovery.round(now)
                self._spawn(discovery.run())
        for listener in self._listeners:
            await self._serve(listener, None, listening[listener.name], self._entrance(listener))

    def _map(self, listener: Listener) -> None:
        settings = listener.settings
        if settings.routing is config.Routing.GATEWAY:
            assert self._cluster is not None
            assert settings.advertised_host is not None
            assert settings.broker_ports is not None
            listener.gateway = self._cluster.gateway(
                settings.advertised_host, settings.broker_ports
            )

    def _entrance(self, listener: Listener) -> Callable[[], Target | None]:
        """Where a client of the listener's own address goes."""
        if listener.gateway is not None:
            assert self._cluster is not None
            return self._cluster.bootstrap_target
        assert self._sidecar is not None
        broker = self._sidecar.target
        return lambda: broker

    def _offer(self, broker: Target) -> None:
        """A broker offers other versions than before."""
        assert broker.versions is not None
        for listener in self._listeners:
            listener.view(broker).offer(broker.versions)

    def _joined(self, broker: Target) -> None:
        """Open the broker's port before a client can be told of it."""
        assert broker.broker_id is not None
        for listener in self._listeners:
            if listener.gateway is None or self._closed:
                continue
            port = listener.gateway.port_of(broker.broker_id)
            if port is None:
                continue
            try:
                sock = listen(listener.settings.address.host, port)
            except ConfigError as error:
                log.error("broker %d of listener %s: %s", broker.broker_id, listener.name, error)
                continue
            self._spawn(self._serve(listener, broker.broker_id, sock, lambda: broker))

    async def _serve(
        self,
        listener: Listener,
        broker_id: int | None,
        sock: socket.socket,
        broker: Callable[[], Target | None],
    ) -> None:
        door = Door(listener, broker)
        server = await asyncio.get_running_loop().create_server(door.client, sock=sock)
        if self._closed:
            server.close()
        else:
            self._doors[listener.name, broker_id] = server

    def _left(self, broker: Target) -> None:
        for listener in self._listeners:
            server = self._doors.pop((listener.name, broker.broker_id), None)
            if server is not None:
                server.close()

    def suspect(self, broker: Target) -> None:
        """A broker could not be reached: look soon where it is and what it is."""
        discovery = self._sidecar if broker.broker_id is None else self._cluster
        if discovery is not None:
            discovery.wake(broker)

    def not_ready(self) -> list[str]:
        """Why there is no way to a broker; empty: there is one for every listener."""
        reasons = []
        if self._sidecar is not None and not self._sidecar.target.ready:
            target = self._sidecar.target
            reasons.append(f"broker {target.host}:{target.port} was never reached")
        if self._cluster is not None and not any(
            target.ready for target in self._cluster.targets.values()
        ):
            reasons.append("no broker of the cluster was ever reached")
        return reasons

    def close(self) -> None:
        """Accept nobody any more."""
        self._closed = True
        for server in self._doors.values():
            server.close()
