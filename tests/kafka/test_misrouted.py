"""Clients that connect to the wrong broker (KIP-1242), through a real load balancer."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import go, java
from tests.support.kafka.clients import User, add_users, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import is_since
from tests.support.kafka.load_balancer import HOST, LoadBalancer
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.traffic import PARTITIONS, end_offset
from tests.support.kafka.wire_client import (
    Address,
    WireClient,
    api_versions_fields,
    metadata_fields,
)
from tests.support.messages import read_response, request_body
from tests.support.processes import free_ports
from tests.support.proxy_process import ProxyProcess, broker_at, gateway_config, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
API_VERSIONS, METADATA = 18, 3
RIGHT, MISROUTED = 0, 129
PERF_TEST, RECORDS = java.TOOLS["kafka-producer-perf-test"], 2_000
"""Runs with the clients of the release under test."""


class Gateway:
    """A gateway in front of three brokers, which clients reach through a load balancer."""

    def __init__(self, proxy: ProxyProcess, cluster: KafkaCluster, balancer: LoadBalancer) -> None:
        self.proxy, self.cluster, self.balancer = proxy, cluster, balancer
        at = proxy.addresses()[LISTENER]
        self.bootstrap = f"{HOST}:{at.port}"
        self.ports = {node: broker_at(proxy, node).port for node in cluster.node_ids}

    def swap(self, one: int, other: int) -> None:
        """Swap the ports of two brokers at the load balancer; a second call restores them."""
        mine, yours = self.ports[one], self.ports[other]
        self.balancer.swap(mine, yours)

    def misrouted(self) -> float:
        return self.proxy.metric("misrouted_total")


@pytest.fixture(scope="module")
def gateway(jwks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with KafkaCluster(nodes=3, controllers=1, sasl_listeners={}) as cluster:
        config = gateway_config(cluster.bootstrap(), jwks, listeners={LISTENER: 3_600_000})
        config["listeners"][0]["advertised.host"] = HOST
        process = ProxyProcess(config, tmp_path_factory.mktemp("gateway"))
        add_users(process)
        with process:
            at = process.addresses()[LISTENER]
            known = [Address("127.0.0.1", broker_at(process, node).port) for node in range(1, 6)]
            with LoadBalancer({one.port: one for one in (at, *known)}) as balancer:
                yield Gateway(process, cluster, balancer)


def spread_topic(gateway: Gateway) -> str:
    """A topic replicated to two of the three brokers."""
    name = f"misrouted-{uuid.uuid4()}"
    one, other, third = gateway.cluster.node_ids
    pairs = ([one, other], [other, third], [third, one])
    replicas = {index: pairs[index % 3] for index in range(PARTITIONS)}
    gateway.cluster.create_topic(name, replicas=replicas, configs={"min.insync.replicas": "1"})
    return name


def written(cluster: KafkaCluster, topic: str) -> list[int]:
    return [end_offset(cluster, topic, partition) for partition in range(PARTITIONS)]


def test_franz_go_bootstraps_anew_where_ports_are_swapped(gateway: Gateway, tmp_path: Path) -> None:
    """It names the intended broker before it logs in."""
    topic, before, files = spread_topic(gateway), gateway.misrouted(), GoFiles(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(go_traffic, gateway.bootstrap, topic, files)
        try:
            wait_until(lambda: all(written(gateway.cluster, topic)), what="traffic")
            gateway.swap(1, 2)
            wait_until(files.rebootstrapped.exists, what="it bootstraps anew")
            gateway.swap(1, 2)
        finally:
            files.until.touch()
        acknowledged = traffic.result()
    assert sum(written(gateway.cluster, topic)) == acknowledged
    assert gateway.misrouted() > before


class GoFiles:
    """Files that end the Go program and record its rebootstraps."""

    def __init__(self, directory: Path) -> None:
        self.until = directory / "done"
        self.rebootstrapped = directory / "rebootstrapped"


def go_traffic(bootstrap: str, topic: str, files: GoFiles) -> int:
    """Return the number of acknowledged records."""
    ends = (str(files.until), str(files.rebootstrapped))
    return int(go.run("produce", (bootstrap, "carol", password_of("carol"), topic, *ends)))


class Replaceable:
    """A cluster at an address, and the one that takes its place."""

    def __init__(self, shown: int) -> None:
        options: dict[str, Any] = {"sasl_listeners": {}, "sidecar_port": shown}
        self.old, self.new = KafkaCluster(**options), KafkaCluster(**options)
        self.address = Address("127.0.0.1", shown)
        """The address that brokers advertise."""

    @contextmanager
    def behind_a_sidecar(self, jwks: Path, directory: Path) -> Iterator[Callable[[], None]]:
        """Run two clusters behind a sidecar; the yielded function replaces the first one."""
        behind = Address(HOST, free_ports(1)[0])
        config = sidecar_config(str(behind), jwks, listeners={LISTENER: 0}, port=self.address.port)
        process = ProxyProcess(config, directory)
        add_users(process)
        with self.old, self.new:
            for cluster in (self.old, self.new):
                cluster.create_topic("topic")
            target = self.old.address(listener=BEHIND)
            with LoadBalancer({behind.port: target}, host=behind.host) as balancer, process:
                yield lambda: self._replace(balancer, behind.port)

    def _replace(self, balancer: LoadBalancer, port: int) -> None:
        """Replace the cluster under traffic; return when traffic continues."""
        ids = [_id(self.old), _id(self.new)]
        wait_until(lambda: answered(self.address, *ids) == [RIGHT, MISROUTED], what="the old one")
        wait_until(lambda: self.written()[0] > 100, what="traffic")
        # The client stays where it is until it is known who means the old one: before that a
        # sidecar would let it continue at the new one, which a client may find out by itself.
        balancer.route_others({port: self.new.address(listener=BEHIND)})
        wait_until(lambda: answered(self.address, *ids) == [MISROUTED, RIGHT], what="the new one")
        balancer.cut()
        wait_until(lambda: self.written()[1] > 100, what="traffic goes on")

    def written(self) -> list[int]:
        """Numbers of records in the old and the new cluster."""
        return [end_offset(cluster, "topic", 0) for cluster in (self.old, self.new)]


@pytest.fixture
def replaceable() -> Replaceable:
    return Replaceable(*free_ports(1))


@pytest.mark.skipif(not is_since("4.4"), reason="Java's clients have ApiVersions v5 since 4.4")
def test_java_finds_another_cluster_behind_the_same_address(
    replaceable: Replaceable, jwks: Path, carol: User, tmp_path: Path
) -> None:
    """Behind a sidecar, which makes clients of the old cluster rebootstrap."""
    client = carol.java(tmp_path, acks="all", enable_idempotence="false")
    where = ("--bootstrap-server", replaceable.address, "--command-config", client.properties)
    what = ("--topic", "topic", "--num-records", RECORDS, "--record-size", 10)
    arguments = [str(each) for each in (*where, *what, "--throughput", 100)]
    with (
        replaceable.behind_a_sidecar(jwks, tmp_path) as replace,
        ThreadPoolExecutor(1) as pool,
    ):
        traffic = pool.submit(java.run_java, PERF_TEST, arguments)
        replace()
        done = traffic.result()
        both = sum(replaceable.written())
    assert f"{RECORDS} records sent" in done.stdout, done
    assert both >= RECORDS, "what was under way may be in both"


def _id(cluster: KafkaCluster) -> str:
    return str(cluster.ask(METADATA, 12, **metadata_fields()).cluster_id)


def answered(address: Address, *cluster_ids: str) -> list[int]:
    """Error codes of ApiVersions requests that name node 1 of each cluster."""
    codes = []
    for cluster_id in cluster_ids:
        meant = {"cluster_id": cluster_id, "node_id": 1, **api_versions_fields()}
        with closing(WireClient(address)) as client:
            client.send_frame(API_VERSIONS, 5, 1, "app", request_body(API_VERSIONS, 5, **meant))
            frame = client.receive()
        assert isinstance(frame, bytes), frame
        codes.append(int(read_response(API_VERSIONS, 5, frame)[1].error_code))
    return codes
