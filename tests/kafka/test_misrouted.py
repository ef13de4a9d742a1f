"""Clients that reach another broker than they mean (KIP-1242), through a real load balancer."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import go, java
from tests.support.kafka.clients import User, add_users, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import is_since
from tests.support.kafka.load_balancer import HOST, LoadBalancer
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.traffic import PARTITIONS, end_offset, java_traffic
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
"""Run with the clients of the release under test, which the tools of others are not."""


class Gateway:
    """A gateway in front of three brokers, which clients reach through a load balancer."""

    def __init__(self, proxy: ProxyProcess, cluster: KafkaCluster, balancer: LoadBalancer) -> None:
        self.proxy, self.cluster, self.balancer = proxy, cluster, balancer
        at = proxy.addresses()[LISTENER]
        self.bootstrap = f"{HOST}:{at.port}"
        self.ports = {node: broker_at(proxy, node).port for node in cluster.node_ids}

    def swap(self, one: int, other: int) -> None:
        """Send clients of each of these brokers to the other one's port; twice: as it was."""
        mine, yours = self.ports[one], self.ports[other]
        self.balancer.swap(mine, yours)

    def misrouted(self) -> float:
        return self.proxy.metric("misrouted_total")


@pytest.fixture(scope="module")
def gateway(
    require_kafka: None,  # noqa: ARG001 - skips
    jwks: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    with KafkaCluster(nodes=3, controllers=1, sasl_listeners={}) as cluster:
        config = gateway_config(cluster.bootstrap(), jwks, listeners={LISTENER: 3_600_000})
        config["listeners"][0]["advertised.host"] = HOST
        process = ProxyProcess(config, tmp_path_factory.mktemp("gateway"))
        add_users(process)
        with process:
            at = process.addresses()[LISTENER]
            known = [Address("127.0.0.1", broker_at(process, node).port) for node in range(1, 5)]
            with LoadBalancer({one.port: one for one in (at, *known)}) as balancer:
                yield Gateway(process, cluster, balancer)


def spread_topic(cluster: KafkaCluster) -> str:
    """On all three brokers, so that two of them suffice."""
    name = f"misrouted-{uuid.uuid4()}"
    replicas = {index: [index % 3 + 1, (index + 1) % 3 + 1] for index in range(PARTITIONS)}
    cluster.create_topic(name, replicas=replicas, configs={"min.insync.replicas": "1"})
    return name


def written(cluster: KafkaCluster, topic: str) -> list[int]:
    return [end_offset(cluster, topic, partition) for partition in range(PARTITIONS)]


@pytest.mark.skipif(not is_since("4.4"), reason="Java's clients have ApiVersions v5 since 4.4")
def test_java_bootstraps_anew_where_ports_are_swapped(
    gateway: Gateway, carol: User, tmp_path: Path
) -> None:
    """Nothing is lost or doubled while its connections lead to other brokers."""
    topic, done, before = spread_topic(gateway.cluster), tmp_path / "done", gateway.misrouted()
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(
            java_traffic, carol, gateway.bootstrap, topic, 1, tmp_path, until=done
        )
        try:
            wait_until(lambda: any(written(gateway.cluster, topic)), what="traffic")
            gateway.swap(1, 2)
            wait_until(lambda: gateway.misrouted() > before, what="who is misrouted is told")
            gateway.swap(1, 2)
        finally:
            done.touch()
        records = traffic.result()
    assert written(gateway.cluster, topic) == records
    events = [event for event in gateway.proxy.events() if event["kind"] == "misrouted"]
    assert {(event["meant_node_id"], event["node_id"]) for event in events} <= {(1, 2), (2, 1)}
    assert {event["meant_cluster_id"] for event in events} == {
        event["cluster_id"] for event in events
    }


def test_franz_go_bootstraps_anew_where_ports_are_swapped(gateway: Gateway, tmp_path: Path) -> None:
    """It says whom it means before it logs in."""
    topic, done, before = spread_topic(gateway.cluster), tmp_path / "done", gateway.misrouted()
    arguments = (gateway.bootstrap, "carol", password_of("carol"), topic, str(done))
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(go.run, "produce", arguments)
        try:
            wait_until(lambda: all(written(gateway.cluster, topic)), what="traffic")
            gateway.swap(1, 2)
            wait_until(lambda: gateway.misrouted() > before, what="who is misrouted is told")
            gateway.swap(1, 2)
        finally:
            done.touch()
        acknowledged, rebootstraps = map(int, traffic.result().split())
    assert sum(written(gateway.cluster, topic)) == acknowledged
    assert rebootstraps > 0


@pytest.mark.skipif(not is_since("4.4"), reason="Java's clients have ApiVersions v5 since 4.4")
def test_java_follows_a_broker_that_has_another_id(
    gateway: Gateway, carol: User, tmp_path: Path
) -> None:
    """The port of the old id leads nowhere, rather than to the other one."""
    topic, done = spread_topic(gateway.cluster), tmp_path / "done"
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(
            java_traffic, carol, gateway.bootstrap, topic, 1, tmp_path, until=done
        )
        try:
            wait_until(lambda: all(written(gateway.cluster, topic)), what="traffic")
            gateway.cluster.stop_node(3)
            assert gateway.cluster.add_node(instead_of=3) == 4
            old = broker_at(gateway.proxy, 3)
            wait_until(lambda: not _listens(old), what="the port of broker 3 is closed")
            wait_until(lambda: _listens(broker_at(gateway.proxy, 4)), what="broker 4 is shown")
            before = written(gateway.cluster, topic)
            wait_until(lambda: written(gateway.cluster, topic) > before, what="traffic goes on")
        finally:
            done.touch()
        records = traffic.result()
    assert written(gateway.cluster, topic) == records


def _listens(address: Address) -> bool:
    try:
        with WireClient(address):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.skipif(not is_since("4.4"), reason="Java's clients have ApiVersions v5 since 4.4")
def test_java_finds_another_cluster_behind_the_same_address(
    require_kafka: None,  # noqa: ARG001 - skips
    jwks: Path,
    carol: User,
    tmp_path: Path,
) -> None:
    """Of a sidecar, which tells who means the old one."""
    shown, behind = free_ports(2)
    options: dict[str, Any] = {"sasl_listeners": {}, "sidecar_port": shown}
    client = carol.java(tmp_path, acks="all", enable_idempotence="false")
    where = ("--bootstrap-server", f"127.0.0.1:{shown}", "--command-config", client.properties)
    what = ("--topic", "topic", "--num-records", RECORDS, "--record-size", 10)
    arguments = [str(each) for each in (*where, *what)]
    with KafkaCluster(**options) as old, KafkaCluster(**options) as new:
        for cluster in (old, new):
            cluster.create_topic("topic")
        config = sidecar_config(f"{HOST}:{behind}", jwks, listeners={LISTENER: 0}, port=shown)
        process = ProxyProcess(config, tmp_path)
        add_users(process)
        with (
            LoadBalancer({behind: old.address(listener=BEHIND)}) as balancer,
            process as proxy,
            ThreadPoolExecutor(1) as pool,
        ):
            address, ids = proxy.addresses()[LISTENER], [_id(old), _id(new)]
            wait_until(lambda: answered(address, *ids) == [RIGHT, MISROUTED], what="the old one")
            traffic = pool.submit(java.run_java, PERF_TEST, [*arguments, "--throughput", "100"])
            wait_until(lambda: end_offset(old, "topic", 0) > 100, what="traffic")
            balancer.route({behind: new.address(listener=BEHIND)})
            wait_until(lambda: answered(address, *ids) == [MISROUTED, RIGHT], what="the new one")
            wait_until(lambda: end_offset(new, "topic", 0) > 100, what="traffic goes on")
            done = traffic.result()
        both = end_offset(old, "topic", 0) + end_offset(new, "topic", 0)
    assert f"{RECORDS} records sent" in done.stdout, done
    assert both >= RECORDS, "what was under way may be in both"


def _id(cluster: KafkaCluster) -> str:
    return str(cluster.ask(METADATA, 12, **metadata_fields()).cluster_id)


def answered(address: Address, *cluster_ids: str) -> list[int]:
    """The error codes of ApiVersions from who means node 1 of each of these clusters."""
    codes = []
    for cluster_id in cluster_ids:
        meant = {"cluster_id": cluster_id, "node_id": 1, **api_versions_fields()}
        with closing(WireClient(address)) as client:
            client.send_frame(API_VERSIONS, 5, 1, "app", request_body(API_VERSIONS, 5, **meant))
            frame = client.receive()
        assert isinstance(frame, bytes), frame
        codes.append(int(read_response(API_VERSIONS, 5, frame)[1].error_code))
    return codes
