"""Endpoints of a worker, kept in line with the brokers as they join, move and leave."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.brokers.access import Access
from proxy.brokers.discovery import ClusterDiscovery, DiscoveredBroker, Discovery, SidecarDiscovery
from proxy.brokers.gateway import Gateway
from proxy.brokers.transparent import (
    DestinationRefused,
    RedirectedClient,
    TransparentDiscovery,
    check_destination,
)
from proxy.config.values import Address
from proxy.connection.commands import CloseReason
from proxy.errors import BrokerFault, ConfigError, host_port
from proxy.net.ports import BrokerPorts
from proxy.net.sockets import BACKLOG
from proxy.scheduling.lifeline import supervised
from proxy.store import Store
from proxy.store.interface import StoreError
from proxy.wire.metadata import BrokerAddress
from proxy.worker.acceptor_link import AcceptedConnections, Served
from proxy.worker.endpoint import Endpoint
from proxy.worker.listener import Listener


class StoredBrokers:
    """Memory of one cluster's brokers, a `proxy.brokers.discovery.BrokerMemory`.

    All workers share it, and it outlives a restart.
    """

    def __init__(self, store: Store, bootstrap_servers: Sequence[tuple[str, int]]) -> None:
        """Keep the brokers of the cluster that these servers belong to."""
        self._store = store
        self._cluster = ",".join(sorted(f"{host}:{port}" for host, port in bootstrap_servers))

    async def exchange(self, learned: Mapping[int, BrokerAddress]) -> dict[int, BrokerAddress]:
        """Store the learned brokers, and return all brokers. Raises BrokerFault."""
        addresses = {id_: (broker.host, broker.port) for id_, broker in learned.items()}
        try:
            found = await asyncio.to_thread(self._exchange, addresses)
        except StoreError as error:
            raise BrokerFault(str(error)) from None
        return {id_: BrokerAddress(host=host, port=port) for id_, (host, port) in found.items()}

    def _exchange(self, learned: Mapping[int, tuple[str, int]]) -> Mapping[int, tuple[str, int]]:
        if learned:
            self._store.keep_brokers(self._cluster, learned)
        return self._store.brokers(self._cluster)


log = logging.getLogger(__name__)


class Endpoints:
    """Endpoints of all listeners, and the discovery of their brokers."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        settings: config.Config,
        listeners: list[Listener],
        access: Access,
        broker_ports: Mapping[str, BrokerPorts],
        accepted: AcceptedConnections | None = None,
        store: Store | None = None,
    ) -> None:
        """Discover brokers by `access`, and connect clients of `listeners` to them.

        `broker_ports` has the ports of each gateway, by listener name. `accepted` receives the
        connections from the acceptor; None if this process accepts them itself. `store` keeps the
        brokers that a gateway without a login has learned.
        """
        self._accepted = accepted
        self._spawn = spawn
        self._identity = access.identity
        self._listeners = listeners
        self._broker_ports = broker_ports
        self._endpoints: dict[
            tuple[str, int | None], asyncio.Server | Served | socket.socket | None
        ] = {}
        """What serves an endpoint, by listener name and broker id, or the socket on which its
        clients wait until it is served; None is the acceptor's socket."""
        self._accepts = False
        """True when clients may be accepted."""
        self._closed = False
        self._learns = access.clients_log_in
        """True if brokers are learned from responses to clients."""
        self._sidecar: SidecarDiscovery | None = None
        self._cluster: ClusterDiscovery | None = None
        self._transparent: TransparentDiscovery | None = None
        self._allowed = settings.upstream.allowed
        self._own_ports = settings.ports()
        upstream = settings.upstream
        servers = [(server.host, server.port) for server in upstream.bootstrap_servers]
        if any(one.settings.routing is config.Routing.SIDECAR for one in listeners):
            host, port = servers[0]
            self._sidecar = SidecarDiscovery(
                host, port, access=access, on_versions=self._apply_versions
            )
        if any(one.settings.routing is config.Routing.GATEWAY for one in listeners):
            self._cluster = ClusterDiscovery(
                servers,
                metadata_max_age=upstream.metadata_max_age_ms / 1000,
                access=access,
                on_versions=self._apply_versions,
                on_broker_joined=self._broker_joined,
                on_broker_left=self._broker_left,
                on_round=self._open_remaining,
                memory=StoredBrokers(store, servers)
                if self._learns and store is not None
                else None,
            )
        if any(one.settings.routing is config.Routing.TRANSPARENT for one in listeners):
            self._transparent = TransparentDiscovery(
                access=access, on_versions=self._apply_versions
            )

    async def open(
        self, listening: Mapping[str, socket.socket], may_accept: Callable[[], Awaitable[None]]
    ) -> None:
        """Discover brokers once, open every listener's own address, and keep discovering.

        `listening` has the sockets of these addresses, if this process accepts connections.
        `may_accept` returns when clients may be accepted on them.
        """
        if self._identity is not None:
            self._spawn(supervised(self._identity.run))
        now = asyncio.get_running_loop().time()
        for listener in self._listeners:
            self._make_gateway(listener)
        for discovery in self._discoveries():
            await discovery.look(now)
            self._spawn(supervised(discovery.run))
        await may_accept()
        self._accepts = True
        for listener in self._listeners:
            for name, broker_id in tuple(self._endpoints):
                if name == listener.name and broker_id is not None:
                    await self._serve_broker(listener, broker_id)
            sock = self._endpoints[listener.name, None] = listening.get(listener.name)
            await self._serve(listener, None, sock, self._protocol_factory(listener))
        if self._accepted is not None:
            self._accepted.begin()  # last: connections for all of these endpoints may wait

    def _redirected_client(self, listener: Listener) -> RedirectedClient:
        """Return the protocol of a redirected client."""

        def admit(destination: Address, local: Address) -> "asyncio.Task[asyncio.BaseProtocol]":
            check_destination(destination, local, self._allowed, self._own_ports)
            return asyncio.get_running_loop().create_task(
                self._connect_redirected(listener, destination)
            )

        def refuse(peer: str, refused: DestinationRefused) -> None:
            listener.observer.refused(refused.reason)
            if refused.reason is CloseReason.DESTINATION_REFUSED:
                listener.warn(str(refused), f"{peer} refused: {refused}")

        return RedirectedClient(admit, refuse, listener.admit, listener.open_connections.closed)

    async def _connect_redirected(
        self, listener: Listener, destination: Address
    ) -> asyncio.BaseProtocol:
        assert self._transparent is not None
        broker = await self._transparent.broker(destination)
        return Endpoint(listener, lambda: broker).client()

    def _make_gateway(self, listener: Listener) -> None:
        settings = listener.settings
        if settings.routing is config.Routing.GATEWAY:
            assert self._cluster is not None
            if (hosts := settings.broker_hosts) is not None:
                port = hosts.port or settings.address.port
                listener.gateway = self._cluster.gateway(hosts, port)
                return
            assert settings.advertised_host is not None
            assert settings.broker_ports is not None
            listener.gateway = self._cluster.gateway(
                settings.advertised_host, settings.broker_ports
            )
            if self._learns:
                for broker_id, _ in settings.broker_ports.by_broker():
                    self._open(listener, listener.gateway, broker_id)

    def _protocol_factory(self, listener: Listener) -> Callable[[], asyncio.BaseProtocol]:
        """Return the factory of protocols for clients of the listener's own address."""
        if listener.settings.routing is config.Routing.TRANSPARENT:
            return lambda: self._redirected_client(listener)
        named = None
        if listener.settings.broker_hosts is not None:
            assert self._cluster is not None
            named = self._cluster.broker_at_port_of
        return Endpoint(listener, self._broker_source(listener), named=named).client

    def _broker_source(self, listener: Listener) -> Callable[[], DiscoveredBroker | None]:
        """Return the function that names the broker of the next client."""
        if listener.gateway is not None:
            assert self._cluster is not None
            return self._cluster.bootstrap_broker
        assert self._sidecar is not None
        broker = self._sidecar.broker
        return lambda: broker

    def _apply_versions(self, broker: DiscoveredBroker) -> None:
        """Apply the changed versions of a broker."""
        assert broker.versions is not None
        for listener in self._listeners:
            listener.view(broker).offer(broker.versions)

    def _broker_joined(self, broker: DiscoveredBroker) -> None:
        """Open the broker's port before clients are given it, unless it is open from the start."""
        assert broker.broker_id is not None
        for listener in self._listeners:
            if listener.gateway is not None:
                listener.gateway.unopened.pop(broker.broker_id, None)
                self._open(listener, listener.gateway, broker.broker_id)

    def _open_remaining(self) -> None:
        """Open the ports that could not be opened when their brokers joined.

        Ports that an earlier process has listened on, and whose brokers have left, are closed.
        """
        assert self._cluster is not None
        for listener in self._listeners:
            if listener.gateway is not None:
                for broker_id in tuple(listener.gateway.unopened):
                    self._open(listener, listener.gateway, broker_id)
                if listener.gateway.listens and self._cluster.is_reached and not self._closed:
                    self._broker_ports[listener.name].settle()

    def _open(self, listener: Listener, gateway: Gateway, broker_id: int) -> None:
        """Listen on a broker's port, and serve it as soon as clients may be accepted."""
        assert self._cluster is not None
        port = gateway.port_of(broker_id)
        if port is None or self._closed or not gateway.listens:
            return
        key, is_known = (listener.name, broker_id), broker_id in self._cluster.brokers
        if key not in self._endpoints:
            try:
                self._endpoints[key] = self._broker_ports[listener.name].listen(port)
            except ConfigError as error:
                if is_known and broker_id not in gateway.unopened:
                    log.error(
                        "listener %s: broker %d is not shown: %s", listener.name, broker_id, error
                    )
                gateway.unopened[broker_id] = error.problem
                return
            if gateway.unopened.pop(broker_id, None) is not None and is_known:
                log.info("listener %s: broker %d is shown now", listener.name, broker_id)
        if self._accepts:
            self._spawn(self._serve_broker(listener, broker_id))

    async def _serve_broker(self, listener: Listener, broker_id: int) -> None:
        """Serve a broker's endpoint, or report to the acceptor that the broker is known now."""
        cluster = self._cluster
        assert cluster is not None
        waiting = self._endpoints.get((listener.name, broker_id))
        if isinstance(waiting, socket.socket | Served):
            endpoint = Endpoint(listener, lambda: cluster.broker_at_port_of(broker_id), broker_id)
            is_known = broker_id in cluster.brokers
            await self._serve(listener, broker_id, waiting, endpoint.client, is_known=is_known)

    async def _serve(
        self,
        listener: Listener,
        broker_id: int | None,
        waiting: socket.socket | Served | None,
        accept: Callable[[], asyncio.BaseProtocol],
        *,
        is_known: bool = True,
    ) -> None:
        server: asyncio.Server | Served
        if self._accepted is None:
            assert isinstance(waiting, socket.socket)
            server = await asyncio.get_running_loop().create_server(
                accept, sock=waiting, backlog=BACKLOG
            )
        else:
            server = self._accepted.serve(listener, broker_id, accept, is_known=is_known)
            if isinstance(waiting, socket.socket):
                waiting.close()  # the acceptor has its own
        key = listener.name, broker_id
        if key in self._endpoints and self._endpoints[key] is waiting:
            self._endpoints[key] = server
        else:
            server.close()  # the broker has left, or the proxy drains

    def _broker_left(self, broker: DiscoveredBroker) -> None:
        assert broker.broker_id is not None
        for listener in self._listeners:
            if listener.gateway is None or not listener.gateway.listens or self._learns:
                continue
            listener.gateway.unopened.pop(broker.broker_id, None)
            server = self._endpoints.pop((listener.name, broker.broker_id), None)
            if server is not None:
                server.close()
            port = listener.gateway.port_of(broker.broker_id)
            if port is not None and not self._closed:
                self._broker_ports[listener.name].leave(port)

    def any_broker(self) -> tuple[DiscoveredBroker, bool] | None:
        """Return a broker to query about the cluster, and whether it is the only one.

        None: none is ready.
        """
        if self._cluster is not None:
            broker = self._cluster.bootstrap_broker()
            return None if broker is None else (broker, False)
        if self._sidecar is not None and self._sidecar.broker.ready:
            return self._sidecar.broker, True
        known = [] if self._transparent is None else list(self._transparent.brokers.values())
        ready = next((one for one in known if one.ready), None)
        return None if ready is None else (ready, False)

    def query_soon(self, broker: DiscoveredBroker) -> None:
        """Query a broker soon that could not be reached: it may have moved, or changed."""
        for discovery in self._discoveries():
            if discovery.knows(broker):
                discovery.wake(broker)

    def not_ready(self) -> list[str]:
        """Return why clients of some listener cannot be connected to brokers; empty if all can."""
        reasons = self._refusals()
        if reasons:
            return reasons
        if self._sidecar is not None and not self._sidecar.broker.ready:
            broker = self._sidecar.broker
            reasons.append(f"broker {host_port(broker.host, broker.port)} was never reached")
        if self._cluster is not None and not self._cluster.is_reached:
            reasons.append("no broker of the cluster was ever reached")
        return reasons + [
            f"listener {one.name}: no broker is shown: {why}"
            for one in self._listeners
            if one.gateway is not None and (why := one.gateway.why_none_is_shown) is not None
        ]

    def collect(self, snapshot: Snapshot) -> None:
        """Add whether brokers can be reached, and accept the proxy's login."""
        unreachable = any(one.unreachable is not None for one in self._discoveries())
        snapshot.gauge(registry.UPSTREAM_UNREACHABLE, unreachable)
        if self._identity is not None:
            snapshot.gauge(registry.UPSTREAM_LOGIN_REFUSED, bool(self._refusals()))

    def _refusals(self) -> list[str]:
        refusals = (one.refusal for one in self._discoveries())
        return [refusal for refusal in refusals if refusal is not None]

    def _discoveries(self) -> list[Discovery]:
        """Return the discoveries that listeners need."""
        possible = (self._sidecar, self._cluster, self._transparent)
        return [one for one in possible if one is not None]

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        for server in self._endpoints.values():
            if server is not None:
                server.close()
        self._endpoints.clear()
        for ports in self._broker_ports.values():
            ports.close()
