"""Gateways without a login of their own that are replaced, and forget their brokers each time."""

import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.kafka.clients import JavaClient, User, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.load_balancer import HOST, LoadBalancer
from tests.support.kafka.traffic import PARTITIONS, end_offset, java_traffic
from tests.support.kafka.wire_client import Address
from tests.support.processes import free_port_range
from tests.support.proxy_process import (
    GATEWAY_BROKERS,
    ProxyProcess,
    gateway_config,
    relaying_logins,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ZERO = "ZERO"
"""The brokers' listener, which announces no lifetime."""
RECORDS = 200
"""So many more in each partition show that clients go on."""


@pytest.fixture(scope="module")
def cluster(require_kafka: None) -> Iterator[KafkaCluster]:  # noqa: ARG001 - skips
    with KafkaCluster(nodes=2, controllers=1, sasl_listeners={ZERO: 0}) as cluster:
        cluster.add_scram_user("alice", password_of("alice"))
        yield cluster


@dataclass(frozen=True, kw_only=True)
class Loyal(User):
    """Its clients of Java return to a broker's port for ever, as those before 4.0 (KIP-899)."""

    def java(self, directory: Path, **more: str) -> JavaClient:
        """A properties file for Java's clients."""
        return super().java(directory, metadata_recovery_strategy="none", **more)


class Replica(ProxyProcess):
    """One of several gateways, of which each start is that of another pod."""

    def __init__(self, upstream: str, jwks: Path, host: str, port: int, directory: Path) -> None:
        directory.mkdir()
        config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000})
        self.ports = range(port + 1, port + 2 + GATEWAY_BROKERS)
        self.host, self.port = host, port
        config["listeners"][0] |= {
            "address": f"{host}:{port}",
            "advertised.host": HOST,
            "broker.ports": f"{self.ports[0]}-{self.ports[-1]}",
        }
        self._state = directory
        super().__init__(relaying_logins(config) | {"workers": 2}, directory)

    @property
    def targets(self) -> dict[int, Address]:
        """Where a load balancer forwards each of its ports."""
        return {port: Address(self.host, port) for port in (self.port, *self.ports)}

    def start(self) -> None:
        """Start it without state; return when it is ready."""
        for left in self._state.glob("state.db*"):
            left.unlink()
        shutil.rmtree(self._state / "events", ignore_errors=True)
        super().start()
        wait_until(lambda: self.readiness() == 200, what="not ready", details=self.log)
        for port in self.ports:
            socket.create_connection((self.host, port)).close()  # no port is closed now


def progress(cluster: KafkaCluster, topic: str) -> Callable[[], bool]:
    """Whether clients have written more to all partitions since now."""
    before = [end_offset(cluster, topic, one) for one in range(PARTITIONS)]

    def made() -> bool:
        now = [end_offset(cluster, topic, one) for one in range(PARTITIONS)]
        return all(end - begin >= RECORDS for begin, end in zip(before, now, strict=True))

    return made


def test_clients_return_to_brokers_of_gateways_that_do_not_know_them(
    cluster: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """After a restart in place, and over a rolling update of two replicas behind a balancer.

    No client begins at the bootstrap address meanwhile, from which the gateway would learn brokers.
    """
    port = free_port_range(GATEWAY_BROKERS + 2)
    upstream = str(cluster.address(listener=ZERO))
    one, two = (
        Replica(upstream, jwks, host, port, tmp_path / host) for host in ("127.0.0.3", "127.0.0.4")
    )
    who = Loyal(name="alice", mechanism="SCRAM-SHA-256", issuer=issuer)
    done = tmp_path / "done"
    places = {"proxy": f"{HOST}:{port}", "direct": upstream}
    topics = {name: f"{name}-{uuid.uuid4()}" for name in places}
    for topic in topics.values():
        cluster.create_topic(topic, partitions=PARTITIONS)
    running: dict[str, Future[list[int]]] = {}

    def go_on() -> None:
        made = [progress(cluster, topic) for topic in topics.values()]
        wait_until(
            lambda: any(one.done() for one in running.values()) or all(more() for more in made),
            what="clients do not go on",
            details=lambda: one.log() + two.log(),
        )
        assert not [one.result() for one in running.values() if one.done()]

    with (
        one,
        two,
        LoadBalancer(one.targets) as balancer,
        ThreadPoolExecutor(len(topics)) as pool,
    ):
        try:
            for name, bootstrap in places.items():
                arguments = (who, bootstrap, topics[name], 1, tmp_path)
                running[name] = pool.submit(java_traffic, *arguments, until=done)
            go_on()
            one.stop()
            one.start()
            go_on()
            for new, old in ((two, one), (one, two), (two, one)):
                new.stop()
                new.start()
                balancer.route_others(new.targets)
                old.stop()
                go_on()
                assert new.metric("connections_closed_total", reason="broker_unknown") > 0
                assert new.metric("brokers_not_shown") == 0
        finally:
            done.touch()
        for name, traffic in running.items():
            assert min(traffic.result()) > 0, name
    assert "Traceback" not in one.log() + two.log()
