"""Clients that connect to the wrong broker (KIP-1242), through a real load balancer."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kafka import go
from tests.support.kafka.clients import add_users, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.load_balancer import HOST, LoadBalancer
from tests.support.kafka.traffic import PARTITIONS, end_offset
from tests.support.kafka.wire_client import Address
from tests.support.proxy_process import ProxyProcess, broker_at, gateway_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"


class Gateway:
    """A gateway in front of two brokers, which clients reach through a load balancer."""

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
    with KafkaCluster(nodes=2, controllers=1, sasl_listeners={}) as cluster:
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
    """A topic replicated to both brokers."""
    name = f"misrouted-{uuid.uuid4()}"
    one, other = gateway.cluster.node_ids
    replicas = {index: [[one, other], [other, one]][index % 2] for index in range(PARTITIONS)}
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
