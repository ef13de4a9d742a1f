"""Ports of brokers: opened as brokers come, tried again where another program is in the way."""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from proxy.brokers.access import open_access
from proxy.config import from_mapping
from proxy.net.ports import BrokerPorts
from proxy.net.sockets import Inherited, listen
from proxy.scheduling.heartbeats import Heartbeat
from proxy.store import Store, open_store
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.worker.acceptor_link import (
    LAST_OFFER,
    OFFER,
    OWN,
    RESET,
    WITHDRAW,
    AcceptedConnections,
    EndpointId,
    Link,
)
from proxy.worker.endpoints import Endpoints
from proxy.worker.listener import Listener
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.fake_broker import FakeBroker
from tests.support.frames import handshake, metadata
from tests.support.playbook import SCRAM
from tests.support.processes import free_port_range, until
from tests.support.relay import ListenerRecorder, Services, listener_of, read_frame

HOST = "127.0.0.1"


def routed(
    broker: FakeBroker, first: int, *, link: Link | None = None, store: Store | None = None
) -> tuple[Endpoints, Listener]:
    """A gateway whose brokers 0 and 1 have the ports from `first` on.

    With `link`, an acceptor accepts the connections; with `store`, brokers authenticate clients.
    """
    listener: dict[str, object] = {
        "name": "gate",
        "address": f"{HOST}:{first + 2}",
        "routing": "gateway",
        "advertised.host": HOST,
        "broker.ports": f"{first}-{first + 1}",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
    }
    upstream = {"bootstrap.servers": f"{HOST}:{broker.port}"}
    if store is not None:
        listener["sasl.termination"] = "broker"
        upstream["security.protocol"] = "SASL_PLAINTEXT"
    config = from_mapping({"upstream": upstream, "listeners": [listener]}, base_dir=Path())
    services = Services(access=open_access(config.upstream, None))
    front = listener_of(config.listeners[0], services)
    front.observer = ListenerRecorder([])  # type: ignore[assignment]  # an observer, if not that one
    (settings,) = config.listeners
    assert settings.broker_ports is not None
    ports = BrokerPorts("broker.ports", HOST, settings.broker_ports, 1, Inherited())
    accepted = None if link is None else AcceptedConnections(link, [front], Heartbeat())
    return Endpoints(
        services.spawn, config, [front], services.access, {"gate": ports}, accepted, store
    ), front


def observed(front: Listener) -> list[str]:
    assert isinstance(front.observer, ListenerRecorder)
    return front.observer.log


async def at_once() -> None:
    """Clients may be accepted."""


def answers(port: int) -> Callable[[], bool]:
    def try_it() -> bool:
        try:
            socket.create_connection((HOST, port)).close()
        except ConnectionRefusedError:
            return False
        return True

    return try_it


async def test_a_port_that_another_program_has_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its broker is not shown as long as clients would be sent to that program."""
    caplog.set_level(logging.INFO)
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
        routing, front = routed(broker, first)
        routing._make_gateway(front)
        assert routing._cluster is not None
        assert front.gateway is not None
        shown = front.gateway.resolve
        with socket.create_server((HOST, first + 1)):
            for now in (0.0, 5.0):
                assert await routing._cluster.round(now)
            assert shown(0, HOST, broker.port) == (HOST, first)
            assert shown(1, HOST, broker.port) is None
            assert front.gateway.not_shown == 1
            assert routing.not_ready() == [], "the other one is"
        await routing._cluster.round(10.0)
        assert shown(1, HOST, broker.port) == (HOST, first + 1)
        assert (front.gateway.not_shown, routing.not_ready()) == (0, [])
        await until(answers(first + 1))
        routing.close()
    reported = [one.getMessage() for one in caplog.records if "shown" in one.getMessage()]
    assert [text.partition(": ")[2][:24] for text in reported] == [
        "broker 1 is not shown: c",
        "broker 1 is shown now",
    ]


async def test_a_gateway_that_shows_no_broker_is_not_ready() -> None:
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {1: (HOST, broker.port)}
        routing, front = routed(broker, first)
        routing._make_gateway(front)
        assert routing._cluster is not None
        with socket.create_server((HOST, first + 1)):
            await routing._cluster.round(0.0)
            said = f"cannot listen on {HOST}:{first + 1}: Address already in use"
            assert routing.not_ready() == [f"listener gate: no broker is shown: {said}"]
        await routing._cluster.round(10.0)
        assert routing.not_ready() == []
        await until(answers(first + 1))
        routing.close()


async def test_brokers_ports_accept_nobody_before_the_listener_does() -> None:
    """Another process serves them, which is taken over from when this one is ready."""
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
        routing, _ = routed(broker, first)
        assert routing._cluster is not None
        ready = asyncio.Event()

        async def may_accept() -> None:
            await ready.wait()

        own = listen(HOST, first + 2)
        opening = asyncio.create_task(routing.open({"gate": own}, may_accept))
        await until(answers(first + 1))
        broker.brokers = {0: (HOST, broker.port)}
        for now in (5.0, 10.0):
            await routing._cluster.round(now)
        await until(lambda: not answers(first + 1)())
        (waiting,) = routing._endpoints.values()
        assert isinstance(waiting, socket.socket), "clients wait in the queue of the port"
        ready.set()
        await opening
        assert routing._endpoints.keys() == {("gate", None), ("gate", 0)}
        assert not answers(first + 1)(), "its broker has left"
        routing.close()


@pytest.mark.parametrize("outside", [{1001}, {7, 1001}])
def test_a_gateway_whose_brokers_have_no_port_is_not_ready(outside: set[int]) -> None:
    """It reached the cluster: the reason is the range of ports, and the one that fits is named."""
    first = free_port_range(3)

    async def run() -> None:
        async with FakeBroker() as broker:
            broker.brokers = dict.fromkeys(sorted(outside), (HOST, broker.port))
            routing, front = routed(broker, first)
            routing._make_gateway(front)
            assert routing._cluster is not None
            await routing._cluster.round(0.0)
            names = ", ".join(map(str, sorted(outside)))
            assert routing.not_ready() == [
                "listener gate: no broker is shown: no port in broker.ports,"
                f" {first}-{first + 1}, for broker {names} ({len(outside)} in all):"
                f" {first}-{first + 1001} would fit"
            ]
            assert front.gateway is not None
            assert front.gateway.not_shown == len(outside)
            broker.brokers = {0: (HOST, broker.port)}
            await routing._cluster.round(10.0)
            assert (routing.not_ready(), front.gateway.not_shown) == ([], 0)
            routing.close()

    asyncio.run(run())


def authenticating() -> Authenticator:
    return Authenticator(versions={3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)})


async def client_of(port: int) -> Client:
    return Client(*await asyncio.open_connection(HOST, port))


async def test_a_client_of_an_unknown_broker_logs_in_elsewhere_and_is_routed_when_it_returns(
    tmp_path: Path,
) -> None:
    """After a restart without a store: the proxy has no login of its own to ask brokers by."""
    first = free_port_range(3)
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    async with authenticating() as bootstrap, authenticating() as broker:
        bootstrap.brokers = broker.brokers = {1: (HOST, broker.port)}
        routing, front = routed(bootstrap, first, store=store)
        await routing.open({"gate": listen(HOST, first + 2)}, at_once)
        assert answers(first)()
        assert answers(first + 1)(), "all ports are open from the start"
        assert routing.not_ready() == []
        client = await client_of(first + 1)
        assert await client.log_in() == 0
        client.writer.write(metadata(client.next_id()))
        assert await client.is_closed()
        assert bootstrap.seen(METADATA) == 1, "the proxy's own"
        assert observed(front)[-2:] == ["authenticated User:alice", "closed broker_unknown"]
        again = await client_of(first + 1)
        await again.log_in()
        await again.metadata()
        assert (bootstrap.seen(METADATA), broker.seen(METADATA)) == (1, 1)
        assert {key for key, _ in bootstrap.requests} == {API_VERSIONS, METADATA, 17, 36}
        again.writer.close()
        routing.close()
    store.close()


async def test_the_acceptor_is_told_which_ports_have_a_known_broker(tmp_path: Path) -> None:
    """The listener's own address comes last: then the acceptor knows all that it serves."""
    first = free_port_range(3)
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    link = Link(1)

    def said() -> list[tuple[bytes, int]]:
        messages = iter(link.receive_message, None)
        return [(kind, endpoint.broker) for kind, endpoint in messages]

    async with authenticating() as bootstrap:
        routing, front = routed(bootstrap, first, link=link, store=store)
        await routing.open({}, at_once)
        assert said() == [(RESET, OWN), (LAST_OFFER, 0), (LAST_OFFER, 1), (OFFER, OWN)]
        assert front.gateway is not None
        assert front.gateway.resolve(1, HOST, bootstrap.port) == (HOST, first + 1)
        await asyncio.sleep(0)
        assert said() == [(OFFER, 1)]
        routing.close()
        assert sorted(said()) == [(WITHDRAW, OWN), (WITHDRAW, 0), (WITHDRAW, 1)]
    link.acceptor_end.close()
    link.worker_end.close()
    store.close()


async def test_brokers_without_a_port_are_noticed_in_what_clients_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy has no login of its own: before that, it cannot know of them."""
    caplog.set_level(logging.WARNING)
    first = free_port_range(3)
    misfit = (
        f"no port in broker.ports, {first}-{first + 1}, for broker 1001, 1002 (2 in all):"
        f" {first}-{first + 1002} would fit"
    )
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    async with authenticating() as bootstrap:
        bootstrap.brokers = {1001: (HOST, bootstrap.port), 1002: (HOST, 9)}
        routing, front = routed(bootstrap, first, store=store)
        await routing.open({"gate": listen(HOST, first + 2)}, at_once)
        assert routing.not_ready() == []
        client = await client_of(first + 2)
        await client.log_in()
        await client.metadata()
        assert front.gateway is not None
        assert front.gateway.not_shown == 2
        assert routing.not_ready() == [f"listener gate: no broker is shown: {misfit}"]
        await until(lambda: misfit in caplog.text)
        client.writer.close()
        routing.close()
    store.close()


def test_a_replaced_worker_serves_the_connections_that_wait_for_its_brokers() -> None:
    """It was sent them before it died, and knows its brokers before it takes them."""
    first = free_port_range(3)

    async def run() -> None:
        link = Link(1)
        async with FakeBroker() as broker:
            broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
            clients = []
            for broker_id in (0, 1, 0, 1):
                client, accepted = socket.socketpair()
                assert link.send_connection(EndpointId(0, broker_id), accepted)
                clients.append(await asyncio.open_connection(sock=client))
            routing, front = routed(broker, first, link=link)
            await routing.open({}, at_once)
            for reader, writer in clients:
                writer.write(handshake(1, SCRAM))
                assert await read_frame(reader)
                writer.close()
            client, accepted = socket.socketpair()
            assert link.send_connection(EndpointId(0, 7), accepted)
            reader, writer = await asyncio.open_connection(sock=client)
            assert await reader.read() == b""
            writer.close()
            assert "refused broker_unreachable" in observed(front), "its broker has left"
            routing.close()
        link.acceptor_end.close()
        link.worker_end.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
