"""Three nodes that want SASL behind a gateway: found, followed and used by who has logged in."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import User, add_users, confluent_admin
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic
from tests.support.kafka.upstream import (
    BUSY,
    BUSY_MS,
    EXPIRED_CHANNEL,
    PASSWORD,
    add_proxys_users,
    by_password,
    sasl_properties,
)
from tests.support.kafka.wire_client import Address
from tests.support.proxy_process import ProxyProcess, broker_at, gateway_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEADLINE = 120.0
SCRAM = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def cluster(require_kafka: None, jwks: Path) -> Iterator[KafkaCluster]:  # noqa: ARG001 - skips
    """Node 1 alone is a controller: the others may stop without losing the quorum."""
    listeners = {BUSY: BUSY_MS}
    with KafkaCluster(
        nodes=3,
        controllers=1,
        jwks=jwks,
        sasl_listeners=listeners,
        properties=sasl_properties(listeners, jwks),
    ) as cluster:
        add_proxys_users(cluster)
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """Two workers, never restarted."""
    directory = tmp_path_factory.mktemp("gateway")
    upstream = cluster.bootstrap(BUSY)
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000}) | {"workers": 2}
    config["upstream"] |= by_password(SCRAM, directory)
    process = ProxyProcess(config, directory)
    add_users(process)
    with process:
        yield process
    assert "Traceback" not in process.log()
    assert PASSWORD not in process.log()


def spread_topic(cluster: KafkaCluster, replicas: dict[int, list[int]]) -> str:
    name = f"upstream-{uuid.uuid4()}"
    cluster.create_topic(name, replicas=replicas)
    return name


def test_brokers_are_found_and_shown_at_the_proxys_addresses(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str
) -> None:
    shown = {node_id: broker_at(proxy, node_id) for node_id in cluster.node_ids}
    admin = confluent_admin.AdminClient(carol.confluent(bootstrap))
    reported = admin.list_topics(timeout=DEADLINE).brokers.values()
    assert {one.id: Address(one.host, one.port) for one in reported} == shown
    nodes = admin.describe_cluster(request_timeout=DEADLINE).result().nodes
    assert {node.id: Address(node.host, node.port) for node in nodes} == shown

    topic = spread_topic(cluster, {0: [1], 1: [2], 2: [3]})
    producer = confluent.Producer(carol.confluent(bootstrap))
    for partition in range(3):
        producer.produce(topic, f"at {partition}", partition=partition)
    assert producer.flush(DEADLINE) == 0
    settings = {"group_id": topic, "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(carol.confluent(bootstrap, **settings))
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(3, timeout=DEADLINE)
    finally:
        consumer.close()
    assert {message.value() for message in messages} == {b"at 0", b"at 1", b"at 2"}


def test_brokers_are_followed_while_sessions_are_renewed(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str, tmp_path: Path
) -> None:
    """One stops and comes back elsewhere, leadership moves: the clients go on and lose nothing."""
    topic = spread_topic(cluster, {0: [1, 2], 1: [2, 3], 2: [3, 1], 3: [2, 1]})
    enough = tmp_path / "enough"
    renewed = "upstream_successful_reauthentication_total"
    with ThreadPoolExecutor() as pool:
        traffic = pool.submit(
            confluent_traffic, carol, bootstrap, topic, 5.0, pause_seconds=0.005, until=enough
        )
        try:
            cluster.stop_node(2)
            cluster.start_node(2, move=True)
            before = proxy.metric(renewed)
            wait_until(
                lambda: traffic.done() or proxy.metric(renewed) >= before + 3, what="not renewed"
            )
        finally:
            enough.touch()
        records = traffic.result()
    assert len(records) == PARTITIONS
    assert min(records) > 100
    for node_id in cluster.node_ids:
        assert EXPIRED_CHANNEL not in cluster.log(node_id)
    assert proxy.readiness() == 200
