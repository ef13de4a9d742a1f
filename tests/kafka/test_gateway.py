"""Three KRaft nodes behind a gateway: clients only see its addresses, and follow the brokers."""

import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.kafka import go
from tests.support.kafka.clients import JavaClient, User, add_users, confluent_admin, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.load_balancer import HOST, LoadBalancer
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, end_offset, java_traffic
from tests.support.kafka.wire_client import Address, Outcome, WireClient
from tests.support.processes import free_port_range
from tests.support.proxy_process import (
    GATEWAY_BROKERS,
    ProxyProcess,
    Serve,
    broker_at,
    gateway_config,
    relaying_logins,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEADLINE = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Only node 1 is a controller, so the others may stop without losing the quorum."""
    with KafkaCluster(nodes=3, controllers=1, sasl_listeners={}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    """Never restarted while brokers come and go."""
    config = gateway_config(cluster.bootstrap(), jwks, listeners={"LONG": 3_600_000})
    return serve(config)


def spread_topic(cluster: KafkaCluster, **replicas: list[int]) -> str:
    name = f"gateway-{uuid.uuid4()}"
    by_partition = {int(key[1:]): ids for key, ids in replicas.items()}
    cluster.create_topic(name, replicas=by_partition)
    return name


# --- addresses


def test_clients_use_the_proxy_alone(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str
) -> None:
    """Checks advertised addresses and the sockets open after using every broker."""
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
        except OSError:  # of the temporary directory, closed by now
            continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return {
        int(row[2].split(":")[1], 16)
        for row in rows
        if row[3] == established and f"socket:[{row[9]}]" in mine
    }


# --- brokers that move


def test_brokers_are_followed_without_a_restart(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: User, bootstrap: str, tmp_path: Path
) -> None:
    """A broker stops and returns at another address, another one joins; clients lose nothing."""
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
    """Produce with a new client, which must reach the leader."""
    producer = confluent.Producer(who.confluent(bootstrap))
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(DEADLINE) == 0


# --- replaced gateways, which do not know the brokers yet

ZERO = "ZERO"
"""The brokers' listener; it announces no lifetime."""
RECORDS = 50
"""Records per partition that prove progress."""


@pytest.fixture
def two_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=2, controllers=1, sasl_listeners={ZERO: 0}) as two_brokers:
        two_brokers.add_scram_user("alice", password_of("alice"))
        yield two_brokers


@dataclass(frozen=True, kw_only=True)
class Loyal(User):
    """Its Java clients never rebootstrap, like those before 4.0 (KIP-899)."""

    def java(self, directory: Path, **more: str) -> JavaClient:
        """A properties file for Java's clients."""
        return super().java(directory, metadata_recovery_strategy="none", **more)


class Replica(ProxyProcess):
    """A gateway that starts without state each time, like a new pod."""

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
        """The load balancer's target for each port."""
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


def progress(two_brokers: KafkaCluster, topic: str) -> Callable[[], bool]:
    """Return a check for new records in all partitions."""
    before = [end_offset(two_brokers, topic, one) for one in range(PARTITIONS)]

    def made() -> bool:
        now = [end_offset(two_brokers, topic, one) for one in range(PARTITIONS)]
        return all(end - begin >= RECORDS for begin, end in zip(before, now, strict=True))

    return made


def test_clients_return_to_brokers_of_gateways_that_do_not_know_them(
    two_brokers: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """After a restart in place and a rolling update of two replicas behind a load balancer.

    No client begins at the bootstrap address meanwhile, from which the gateway would learn brokers.
    """
    port = free_port_range(GATEWAY_BROKERS + 2)
    upstream = str(two_brokers.address(listener=ZERO))
    one, two = (
        Replica(upstream, jwks, host, port, tmp_path / host) for host in ("127.0.0.3", "127.0.0.4")
    )
    who = Loyal(name="alice", mechanism="SCRAM-SHA-256", issuer=issuer)
    done = tmp_path / "done"
    places = {"proxy": f"{HOST}:{port}", "direct": upstream}
    topics = {name: f"{name}-{uuid.uuid4()}" for name in places}
    for topic in topics.values():
        two_brokers.create_topic(topic, partitions=PARTITIONS)
    running: dict[str, Future[list[int]]] = {}

    def go_on() -> None:
        made = [progress(two_brokers, topic) for topic in topics.values()]
        wait_until(
            lambda: any(one.done() for one in running.values()) or all(more() for more in made),
            what="clients do not go on",
            details=lambda: one.log() + two.log(),
        )
        assert not [one.result() for one in running.values() if one.done()]

    with one, two, LoadBalancer(one.targets) as balancer, ThreadPoolExecutor(len(topics)) as pool:
        try:
            for name, bootstrap in places.items():
                arguments = (who, bootstrap, topics[name], 1, tmp_path)
                running[name] = pool.submit(java_traffic, *arguments, until=done)
            go_on()
            one.stop()
            one.start()
            go_on()
            for new, old in ((two, one), (one, two)):
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


# --- clients that connect to the wrong broker (KIP-1242), through a load balancer

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


def written(cluster: KafkaCluster, topic: str) -> list[int]:
    return [end_offset(cluster, topic, partition) for partition in range(PARTITIONS)]


def test_franz_go_bootstraps_anew_where_ports_are_swapped(gateway: Gateway, tmp_path: Path) -> None:
    """It names the intended broker before it logs in."""
    topic = spread_topic(gateway.cluster, p0=[1, 2], p1=[2, 1], p2=[1, 2], p3=[2, 1])
    before, until, rebootstrapped = gateway.misrouted(), tmp_path / "done", tmp_path / "again"
    arguments = (gateway.bootstrap, "carol", password_of("carol"), topic, until, rebootstrapped)
    with ThreadPoolExecutor(1) as pool:
        traffic = pool.submit(go.run, "produce", [*map(str, arguments)])
        try:
            wait_until(lambda: all(written(gateway.cluster, topic)), what="traffic")
            gateway.swap(1, 2)
            wait_until(rebootstrapped.exists, what="a new bootstrap")
            gateway.swap(1, 2)
        finally:
            until.touch()
        acknowledged = int(traffic.result())
    assert sum(written(gateway.cluster, topic)) == acknowledged
    assert gateway.misrouted() > before
