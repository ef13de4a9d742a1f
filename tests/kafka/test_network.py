"""Networks that forget idle connections, drop packets, or leave DNS queries unanswered."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from socket import gethostname
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.dns import Dns, serving_dns
from tests.support.kafka.clients import User, add_users, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.properties import PLAINTEXT
from tests.support.processes import Namespace, wired
from tests.support.proxy_process import ProxyProcess, gateway_config, relaying_logins
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ZERO = "ZERO"
KERNEL = {
    "net.netfilter.nf_conntrack_tcp_timeout_established": 8,
    "net.netfilter.nf_conntrack_tcp_loose": 0,  # only a SYN starts a connection, as at a balancer
    "net.ipv4.tcp_keepalive_time": 3,
    "net.ipv4.tcp_keepalive_intvl": 1,
}

IDLE_SECONDS = 12
RECORDS = 3
TOPIC = "idle"
DELIVERED = ["delivered"] * RECORDS


@pytest.fixture
def places() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces: the proxy, its clients and the balancer; and the broker."""
    with wired(("10.97.0.1/24",), ("10.97.0.2/24",)) as (here, there):
        begins = "type filter hook {0} priority 0; {1} != lo ct state invalid drop;"
        hooks = {"input": "iifname", "output": "oifname"}
        chains = [f"chain {one} {{ {begins.format(one, at)} }}" for one, at in hooks.items()]
        here.run("nft", f"table inet balancer {{ {'; '.join(chains)}; }}")
        here.run("sysctl", "-qw", *(f"{key}={value}" for key, value in KERNEL.items()))
        yield here, there


@pytest.fixture
def cluster(places: tuple[Namespace, Namespace]) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(sasl_listeners={ZERO: 0}, host="10.97.0.2")
    with ThreadPoolExecutor(1, initializer=places[1].enter) as there:
        there.submit(cluster.__enter__).result()
        try:
            there.submit(cluster.add_scram_user, "carol", password_of("carol")).result()
            there.submit(cluster.create_topic, TOPIC).result()
            yield cluster
        finally:
            there.submit(cluster.__exit__, None, None, None).result()


def proxy_of(
    cluster: KafkaCluster, jwks: Path, directory: Path, idle_ms: int, *, relays: bool
) -> ProxyProcess:
    upstream = str(cluster.address(listener=ZERO if relays else PLAINTEXT))
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000})
    config = relaying_logins(config) if relays else config
    config["upstream"] |= {"socket.keepalive.idle.ms": idle_ms}
    config["shutdown.drain.ms"] = 0
    directory.mkdir()
    process = ProxyProcess(config, directory)
    if not relays:
        add_users(process)
    return process


def outcomes(who: User, bootstrap: str) -> list[str]:
    """Send records with pauses; return the outcome of each."""
    found: list[str] = []

    def noted(error: confluent.KafkaError | None, _: confluent.Message) -> None:
        found.append("delivered" if error is None else error.name())

    settings: dict[str, Any] = {"socket_keepalive_enable": True, "message_timeout_ms": 10_000}
    producer = confluent.Producer(who.confluent(bootstrap, **settings))
    for number in range(RECORDS):
        time.sleep(IDLE_SECONDS if number else 0)  # by the kernel's clock, which tests cannot set
        producer.produce(TOPIC, b"record", on_delivery=noted)
        producer.flush()
    return found


def test_a_balancer_that_forgets_idle_connections_stops_no_client(
    cluster: KafkaCluster,
    places: tuple[Namespace, Namespace],
    jwks: Path,
    issuer: Issuer,
    tmp_path: Path,
) -> None:
    """If the proxy probes too late, records are lost, which proves that the balancer forgets."""
    who = User(name="carol", mechanism="SCRAM-SHA-256", issuer=issuer)
    kinds = {
        name: proxy_of(cluster, jwks, tmp_path / name, idle_ms, relays=relays)
        for name, relays, idle_ms in (
            ("ends logins", False, 3_000),
            ("relays logins", True, 3_000),
            ("probes too late", True, 3_600_000),
        )
    }
    with ThreadPoolExecutor(5, initializer=places[0].enter) as here, ExitStack() as stack:
        for process in kinds.values():
            here.submit(process.start).result()
            stack.callback(process.stop)
        sent = {"direct": here.submit(outcomes, who, str(cluster.address(listener=ZERO)))} | {
            kind: here.submit(outcomes, who, str(process.addresses()["LONG"]))
            for kind, process in kinds.items()
        }
        met = {kind: one.result() for kind, one in sent.items()}
    assert met.pop("probes too late") == ["delivered", "_MSG_TIMED_OUT", "_MSG_TIMED_OUT"]
    assert met == dict.fromkeys(("direct", "ends logins", "relays logins"), DELIVERED)


# --- names

SILENT, BROKERS = "127.0.0.2", "127.0.0.6"
"""Of the first no packet arrives. The resolver puts it first: it has more bits in common with
127.0.0.1 (RFC 6724 section 6)."""

FIRST, SECOND = "kafka-1.test", "kafka-2.test"
NAMES = "names"
PRODUCE = """
import json, sys
from confluent_kafka import Producer

settings, topic, records = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
found = []
for _ in range(records):
    producer = Producer(settings)  # a connection of its own for each record
    noted = lambda error, _: found.append("delivered" if error is None else error.name())
    producer.produce(topic, b"record", partition=0, on_delivery=noted)
    producer.flush()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Namespace]:
    with wired(("10.97.1.1/24",), ("10.97.1.2/24",)) as (here, _):
        hook = "type filter hook output priority 0"
        here.run(
            "nft", f"table ip silent {{ chain output {{ {hook}; ip daddr {SILENT} drop; }}; }}"
        )
        yield here


@pytest.fixture(scope="module")
def dns(place: Namespace) -> Iterator[Dns]:
    with serving_dns(place) as dns:
        yield dns


@pytest.fixture(scope="module")
def named_brokers(
    place: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Two brokers that resolve names from a hosts file, unlike clients and proxy."""
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    hosts.write_text(f"{BROKERS} {FIRST} {SECOND} {gethostname()}\n127.0.0.1 localhost\n")
    named_brokers = KafkaCluster(
        nodes=2,
        host=BROKERS,
        advertised_host="kafka-{node_id}.test",
        jvm_options=(f"-Djdk.net.hosts.file={hosts}",),
    )
    with ThreadPoolExecutor(1, initializer=place.enter) as there:
        there.submit(named_brokers.__enter__).result()
        try:
            there.submit(named_brokers.create_topic, NAMES, replicas={0: [1], 1: [2]}).result()
            yield named_brokers
        finally:
            there.submit(named_brokers.__exit__, None, None, None).result()


@pytest.fixture
def proxy(
    place: Namespace, named_brokers: KafkaCluster, jwks: Path, tmp_path: Path
) -> Iterator[ProxyProcess]:
    """A gateway with one worker."""
    upstream = f"{FIRST}:{named_brokers.address(1, PLAINTEXT).port}"
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000})
    process = ProxyProcess(config | {"shutdown.drain.ms": 0}, tmp_path)
    process.prefix = place.prefix
    add_users(process)
    yield process
    process.stop()


@pytest.fixture
def who(issuer: Issuer) -> User:
    return User(name="carol", mechanism="SCRAM-SHA-256", issuer=issuer)


def delivered(place: Namespace, who: User, bootstrap: str) -> list[str]:
    """Send records to the first broker, each on a new connection; return the outcomes."""
    settings = who.confluent(
        bootstrap, message_timeout_ms=15_000, socket_connection_setup_timeout_ms=3_000
    )
    arguments = (sys.executable, "-c", PRODUCE, json.dumps(settings), NAMES, str(RECORDS))
    found: list[str] = json.loads(place.run(*arguments))
    return found


def test_a_silent_first_address_delays_neither_the_start_nor_clients(
    place: Namespace, dns: Dns, proxy: ProxyProcess, who: User
) -> None:
    dns.names = {FIRST: [SILENT, BROKERS], SECOND: [BROKERS]}
    proxy.start()
    assert delivered(place, who, str(proxy.addresses()["LONG"])) == DELIVERED


def test_clients_of_a_broker_whose_name_is_not_answered_delay_no_others(
    place: Namespace, dns: Dns, proxy: ProxyProcess, who: User
) -> None:
    dns.names = {FIRST: [BROKERS], SECOND: [BROKERS]}
    proxy.start()
    del dns.names[SECOND]
    dns.unanswered = 0
    settings: dict[str, Any] = who.confluent(str(proxy.addresses()["LONG"]))
    with ThreadPoolExecutor(1, initializer=place.enter) as here:
        waiting = [here.submit(confluent.Producer, settings).result() for _ in range(6)]
        for producer in waiting:
            producer.produce(NAMES, b"record", partition=1)
        wait_until(lambda: dns.unanswered > 0, what="the second broker is not looked up")
        others = delivered(place, who, str(proxy.addresses()["LONG"]))
        for producer in waiting:
            producer.purge()
    assert others == DELIVERED
    assert "Traceback" not in proxy.log()
    assert "never retrieved" not in proxy.log()
