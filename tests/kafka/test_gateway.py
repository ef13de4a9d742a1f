"""Three KRaft nodes behind a gateway: clients know its addresses alone, and follow the brokers."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import User, add_users, confluent_admin
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic
from tests.support.kafka.wire_client import (
    Address,
    Outcome,
    WireClient,
    metadata_fields,
    record_batch,
)
from tests.support.messages import request_body
from tests.support.proxy_process import ProxyProcess, broker_at, gateway_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

DEADLINE = 120.0
_PRODUCE, _FETCH, _METADATA, _FIND_COORDINATOR, _DESCRIBE_CLUSTER = 0, 1, 3, 10, 60
_NOT_LEADER = 6


@pytest.fixture(scope="module")
def cluster(require_kafka: None) -> Iterator[KafkaCluster]:  # noqa: ARG001 - skips
    """Node 1 alone is a controller: the others may stop without losing the quorum."""
    with KafkaCluster(nodes=3, controllers=1, sasl_listeners={}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """Never restarted, whatever the brokers do."""
    config = gateway_config(cluster.bootstrap(), jwks, listeners={"LONG": 3_600_000})
    process = ProxyProcess(config, tmp_path_factory.mktemp("gateway"))
    add_users(process)
    with process:
        yield process


def spread_topic(cluster: KafkaCluster, **replicas: list[int]) -> str:
    name = f"gateway-{uuid.uuid4()}"
    by_partition = {int(key[1:]): ids for key, ids in replicas.items()}
    cluster.create_topic(name, replicas=by_partition)
    return name


# --- addresses


def test_clients_use_the_proxy_alone(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str
) -> None:
    """In what they are told, and in the sockets they have open after using every broker."""
    topic = spread_topic(cluster, p0=[1], p1=[2], p2=[3])
    shown = {node_id: broker_at(proxy, node_id) for node_id in cluster.node_ids}

    admin = confluent_admin.AdminClient(carol.confluent(bootstrap))
    reported = admin.list_topics(timeout=DEADLINE).brokers.values()
    assert {one.id: Address(one.host, one.port) for one in reported} == shown
    nodes = admin.describe_cluster(request_timeout=DEADLINE).result().nodes
    assert {node.id: Address(node.host, node.port) for node in nodes} == shown

    producer = confluent.Producer(carol.confluent(bootstrap))
    consumer = confluent.Consumer(
        carol.confluent(bootstrap, group_id=topic, auto_offset_reset="earliest")
    )
    consumer.subscribe([topic])
    try:
        for partition in range(3):
            producer.produce(topic, f"at {partition}", partition=partition)
        assert producer.flush(DEADLINE) == 0
        messages = consumer.consume(3, timeout=DEADLINE)
        assert {message.value() for message in messages} == {b"at 0", b"at 1", b"at 2"}
        connected = ports_connected_to()
    finally:
        consumer.close()
    assert {address.port for address in shown.values()} <= connected
    assert not connected & {cluster.address(node_id).port for node_id in cluster.node_ids}


def ports_connected_to() -> set[int]:
    """Remote ports of this process's TCP connections, which include librdkafka's."""
    mine = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            mine.add(str(entry.readlink()))
        except OSError:  # the directory's own, closed by now
            continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return {
        int(row[2].split(":")[1], 16)
        for row in rows
        if row[3] == established and f"socket:[{row[9]}]" in mine
    }


def logged_in(address: Address, issuer: Issuer) -> Actor:
    """A raw client; close its `client`."""
    actor = Actor(WireClient(address), issuer)
    actor.scram("carol", password="carol-secret")
    assert actor.lines[-1] == "< server signature right: True", actor.lines
    return actor


def asked(address: Address, issuer: Issuer, api_key: int, version: int, **fields: Any) -> Any:
    """One answer, decoded."""
    actor = logged_in(address, issuer)
    with actor.client:
        return actor.ask(api_key, version, request_body(api_key, version, **fields))


def test_every_api_that_tells_addresses_tells_the_proxys(
    cluster: KafkaCluster, proxy: ProxyProcess, issuer: Issuer
) -> None:
    at = proxy.addresses()["LONG"]
    shown = {node_id: broker_at(proxy, node_id) for node_id in cluster.node_ids}
    for version in (0, 1):
        found = asked(
            at,
            issuer,
            _DESCRIBE_CLUSTER,
            version,
            include_cluster_authorized_operations=False,
            endpoint_type=1,
        )
        brokers = {one.broker_id: Address(one.host, one.port) for one in found.brokers}
        assert brokers == shown
    for version in range(7):
        found = asked(
            at,
            issuer,
            _FIND_COORDINATOR,
            version,
            key="some group",
            key_type=0,
            coordinator_keys=("some group",),
        )
        (coordinator,) = getattr(found, "coordinators", (found,))
        address = Address(coordinator.host, coordinator.port)
        assert address == shown[coordinator.node_id], version


def test_leader_end_points_are_rewritten(
    cluster: KafkaCluster, proxy: ProxyProcess, issuer: Issuer
) -> None:
    """KIP-951: a broker that does not lead says who does, and where."""
    topic = spread_topic(cluster, p0=[2])
    wrong, leader = broker_at(proxy, 1), broker_at(proxy, 2)
    produced = asked(
        wrong,
        issuer,
        _PRODUCE,
        10,
        transactional_id=None,
        acks=-1,
        timeout=60_000,
        topic_data=[
            {"name": topic, "partition_data": [{"index": 0, "records": record_batch(b"x")}]}
        ],
    )
    assert produced.responses[0].partition_responses[0].error_code == _NOT_LEADER
    assert {Address(one.host, one.port) for one in produced.node_endpoints} == {leader}

    described = asked(wrong, issuer, _METADATA, 12, **metadata_fields([topic]))
    fetched = asked(
        wrong,
        issuer,
        _FETCH,
        16,
        cluster_id=None,
        max_wait=100,
        min_bytes=1,
        max_bytes=1_000_000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            {
                "topic_id": described.topics[0].topic_id,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": -1,
                        "fetch_offset": 0,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1_000_000,
                    }
                ],
            }
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
    assert fetched.responses[0].partitions[0].error_code == _NOT_LEADER
    assert {Address(one.host, one.port) for one in fetched.node_endpoints} == {leader}


# --- brokers that come and go


def test_brokers_are_followed_without_a_restart(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str, tmp_path: Path
) -> None:
    """One stops, comes back elsewhere, another joins; the clients go on and lose nothing."""
    topic = spread_topic(cluster, p0=[1, 2], p1=[2, 3], p2=[3, 1], p3=[2, 1])
    with ThreadPoolExecutor() as pool:
        enough = tmp_path / "enough"
        traffic = pool.submit(
            confluent_traffic, carol, bootstrap, topic, 5.0, pause_seconds=0.005, until=enough
        )
        try:
            cluster.stop_node(2)
            cluster.start_node(2, move=True)
            joined = cluster.add_node()
        finally:
            enough.touch()
        records = traffic.result()
    assert len(records) == PARTITIONS
    assert min(records) > 100

    produced_at(carol, bootstrap, spread_topic(cluster, p0=[joined]))
    produced_at(carol, bootstrap, spread_topic(cluster, p0=[2]))
    with WireClient(broker_at(proxy, joined)) as client:
        assert client.receive(0.1) is Outcome.SILENT


def produced_at(who: User, bootstrap: str, topic: str) -> None:
    """A new client reaches the one broker that leads."""
    producer = confluent.Producer(who.confluent(bootstrap))
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(DEADLINE) == 0


# --- brokers in trouble


def test_broker_that_is_killed(cluster: KafkaCluster, proxy: ProxyProcess, issuer: Issuer) -> None:
    """Its clients' connections close; new ones close once they have something to ask."""
    address = broker_at(proxy, 3)
    actor = logged_in(address, issuer)
    with actor.client:
        actor.ask(_METADATA, 12)
        cluster.kill_node(3)
        try:
            actor.ends()
            assert actor.lines[-1] == "< closed"
            newcomer = logged_in(address, issuer)
            with newcomer.client:
                newcomer.ask(_METADATA, 12)
                assert newcomer.lines[-1] == "< closed"
            assert proxy.metric("upstream_connect_failures_total") >= 1
        finally:
            cluster.start_node(3)

    def answers() -> bool:
        returned = logged_in(address, issuer)
        with returned.client:
            return returned.ask(_METADATA, 12) is not None

    wait_until(answers, what="broker 3 is not found again")


def test_broker_that_hangs(cluster: KafkaCluster, proxy: ProxyProcess, issuer: Issuer) -> None:
    """It holds up its own clients alone, and no answer is made up for it."""
    hanging, other = (logged_in(broker_at(proxy, node_id), issuer) for node_id in (3, 2))
    with hanging.client, other.client:
        hanging.ask(_METADATA, 12)
        cluster.pause_node(3)
        try:
            hanging.send(_METADATA, 12)
            assert hanging.hear(_METADATA, 12, 1.0) is None
            assert hanging.lines[-1] == "< silent"
            assert other.ask(_METADATA, 12) is not None
        finally:
            cluster.resume_node(3)
        assert hanging.hear(_METADATA, 12) is not None
