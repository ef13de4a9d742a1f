"""A cluster of three that is upgraded node by node behind a gateway, while clients use it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kafka.acl_differential.comparison import Versions, offered
from tests.support.kafka.clients import User, add_users
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import KAFKA_VERSION, is_since
from tests.support.kafka.traffic import PARTITIONS, end_offset, java_traffic
from tests.support.kafka.wire_client import metadata_fields
from tests.support.proxy_process import ProxyProcess, broker_at, gateway_config

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(not is_since("4.4"), reason="to 4.4 or later"),
]

OLD = "4.1.0"
REAUTH_MS = 30_000
"""Java renews it from 85 to 95 % on: while brokers start, the rest is for the machine."""
TXN_OFFSET_COMMIT, TOPOLOGY_DESCRIPTION_UPDATE = 28, 93


def test_a_rolling_upgrade_loses_nothing(
    require_kafka: None,  # noqa: ARG001 - skips
    jwks: Path,
    carol: User,
    tmp_path: Path,
) -> None:
    """What is offered is what all brokers know: the newer versions when the last one has them."""
    done = tmp_path / "done"
    with KafkaCluster(nodes=3, release=OLD, sasl_listeners={}) as cluster:
        replicas = {index: [1, 2, 3] for index in range(PARTITIONS)}
        cluster.create_topic("topic", replicas=replicas, configs={"min.insync.replicas": "2"})
        config = gateway_config(cluster.bootstrap(), jwks, listeners={"SHORT": REAUTH_MS})
        process = ProxyProcess(config, tmp_path)
        add_users(process)
        with process as proxy, ThreadPoolExecutor(1) as pool:
            bootstrap = str(proxy.addresses()["SHORT"])
            traffic = pool.submit(java_traffic, carol, bootstrap, "topic", 1, tmp_path, until=done)
            try:
                wait_until(lambda: all(_ends(cluster)), what="traffic")
                for node_id in cluster.node_ids:
                    assert not any(map(_is_new, _announced(proxy, cluster)))
                    cluster.stop_node(node_id)
                    cluster.start_node(node_id, release=KAFKA_VERSION)
                    wait_until(lambda: _is_in_sync(cluster), what="replicas in sync")
                wait_until(
                    lambda: all(map(_is_new, _announced(proxy, cluster))),
                    what="the newer versions are not offered",
                )
                before = _ends(cluster)
                wait_until(lambda: _ends(cluster) > before, what="traffic goes on")
                wait_until(
                    lambda: proxy.metric("successful_reauthentication_total") > 0,
                    what="no session was renewed",
                )
            finally:
                done.touch()
            assert traffic.result() == _ends(cluster)
            assert proxy.metric("expired_connections_killed_total") == 0


def _ends(cluster: KafkaCluster) -> list[int]:
    return [end_offset(cluster, "topic", partition) for partition in range(PARTITIONS)]


def _is_in_sync(cluster: KafkaCluster) -> bool:
    (topic,) = cluster.ask(3, 12, **metadata_fields(["topic"])).topics
    return all(len(each.isr_nodes) == len(cluster.node_ids) for each in topic.partitions)


def _announced(proxy: ProxyProcess, cluster: KafkaCluster) -> list[Versions]:
    """At the gateway's own address, and at those of the brokers."""
    brokers = [broker_at(proxy, node_id) for node_id in cluster.node_ids]
    return [offered(address) for address in (proxy.addresses()["SHORT"], *brokers)]


def _is_new(versions: Versions) -> bool:
    is_new = versions[TXN_OFFSET_COMMIT] == (0, 6)
    assert is_new == (TOPOLOGY_DESCRIPTION_UPDATE in versions), versions
    return is_new
