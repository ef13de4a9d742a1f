"""Ports of brokers: opened as brokers come, tried again where another program is in the way."""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.config import from_mapping
from proxy.connection.interfaces import NoAuthorizer
from proxy.net.inherited import Inherited
from proxy.net.ports import BrokerPorts
from proxy.net.sockets import listen
from proxy.upstream.access import open_access
from proxy.worker.endpoints import Endpoints
from proxy.worker.listener import Listener
from tests.support.fake_broker import FakeBroker
from tests.support.processes import free_port_range, until
from tests.support.relay import Services, room_for
from tests.support.sasl import FAKE_SECRET, alice

HOST = "127.0.0.1"


def routed(broker: FakeBroker, first: int) -> tuple[Endpoints, Listener]:
    """A gateway whose brokers 0 and 1 have the ports from `first` on."""
    listener = {
        "name": "gate",
        "address": f"{HOST}:{first + 2}",
        "routing": "gateway",
        "advertised.host": HOST,
        "broker.ports": f"{first}-{first + 1}",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
    }
    upstream = {"bootstrap.servers": f"{HOST}:{broker.port}"}
    config = from_mapping({"upstream": upstream, "listeners": [listener]}, base_dir=Path())
    services = Services(access=open_access(config.upstream, None))
    front = Listener(
        config.listeners[0],
        services=services,
        credentials=alice(),
        fake_secret=FAKE_SECRET,
        rights=NoAuthorizer(),
        open_connections=room_for(100),
    )
    (settings,) = config.listeners
    assert settings.broker_ports is not None
    ports = BrokerPorts("broker.ports", HOST, settings.broker_ports, 1, Inherited())
    routing = Endpoints(services.spawn, config, [front], services.access, {"gate": ports})
    routing._make_gateway(front)
    return routing, front


def answers(port: int) -> Callable[[], bool]:
    def try_it() -> bool:
        try:
            socket.create_connection((HOST, port)).close()
        except ConnectionRefusedError:
            return False
        return True

    return try_it


def test_a_port_that_another_program_has_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its broker is not shown as long as clients would be sent to that program."""
    caplog.set_level(logging.INFO)
    first = free_port_range(3)

    async def run() -> None:
        async with FakeBroker() as broker:
            broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
            routing, front = routed(broker, first)
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

    asyncio.run(run())
    reported = [one.getMessage() for one in caplog.records if "shown" in one.getMessage()]
    assert [text.partition(": ")[2][:24] for text in reported] == [
        "broker 1 is not shown: c",
        "broker 1 is shown now",
    ]


def test_a_gateway_that_shows_no_broker_is_not_ready() -> None:
    first = free_port_range(3)

    async def run() -> None:
        async with FakeBroker() as broker:
            broker.brokers = {1: (HOST, broker.port)}
            routing, _ = routed(broker, first)
            assert routing._cluster is not None
            with socket.create_server((HOST, first + 1)):
                await routing._cluster.round(0.0)
                said = f"cannot listen on {HOST}:{first + 1}: Address already in use"
                assert routing.not_ready() == [f"listener gate: no broker is shown: {said}"]
            await routing._cluster.round(10.0)
            assert routing.not_ready() == []
            await until(answers(first + 1))
            routing.close()

    asyncio.run(run())


def test_brokers_ports_accept_nobody_before_the_listener_does() -> None:
    """Another process serves them, which is taken over from when this one is ready."""
    first = free_port_range(3)

    async def run() -> None:
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
            assert not routing._endpoints, "clients wait in the queue of the port"
            ready.set()
            await opening
            await until(lambda: routing._endpoints.keys() == {("gate", None), ("gate", 0)})
            assert not answers(first + 1)(), "its broker has left"
            routing.close()

    asyncio.run(run())
