"""DNS names of brokers: one that is not answered, and one with an address that is not."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import gethostname
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.dns import Dns, serving_dns
from tests.support.kafka.clients import User, add_users, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.properties import PLAINTEXT
from tests.support.processes import Namespace, missing, wired
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

ZERO = "ZERO"
SILENT, BROKERS = "127.0.0.2", "127.0.0.6"
"""Of the first no packet arrives. The resolver puts it first: it has more bits in common with
127.0.0.1 (RFC 6724 section 6)."""
FIRST, SECOND = "kafka-1.test", "kafka-2.test"
TOPIC = "names"
RECORDS = 3
DELIVERED = ["delivered"] * RECORDS
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
def cluster(
    require_kafka: None,  # noqa: ARG001 - skips
    place: Namespace,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KafkaCluster]:
    """Two brokers, which have other sources for their names than clients and proxy."""
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    hosts.write_text(f"{BROKERS} {FIRST} {SECOND} {gethostname()}\n127.0.0.1 localhost\n")
    cluster = KafkaCluster(
        nodes=2,
        sasl_listeners={ZERO: 0},
        host=BROKERS,
        advertised_host="kafka-{node_id}.test",
        jvm_options=(f"-Djdk.net.hosts.file={hosts}",),
    )
    with ThreadPoolExecutor(1, initializer=place.enter) as there:
        there.submit(cluster.__enter__).result()
        try:
            there.submit(cluster.add_scram_user, "carol", password_of("carol")).result()
            there.submit(cluster.create_topic, TOPIC, replicas={0: [1], 1: [2]}).result()
            yield cluster
        finally:
            there.submit(cluster.__exit__, None, None, None).result()


@pytest.fixture
def proxy(
    place: Namespace, cluster: KafkaCluster, jwks: Path, tmp_path: Path
) -> Iterator[ProxyProcess]:
    """A gateway of one worker."""
    upstream = f"{FIRST}:{cluster.address(1, PLAINTEXT).port}"
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
    """What became of records of the first broker, each on a new connection."""
    settings = who.confluent(
        bootstrap, message_timeout_ms=15_000, socket_connection_setup_timeout_ms=3_000
    )
    arguments = (sys.executable, "-c", PRODUCE, json.dumps(settings), TOPIC, str(RECORDS))
    found: list[str] = json.loads(place.run(*arguments))
    return found


def beside(
    place: Namespace, cluster: KafkaCluster, proxy: ProxyProcess, who: User
) -> dict[str, list[str]]:
    """The same directly and through the proxy, at once."""
    at = {
        "direct": f"{FIRST}:{cluster.address(1, ZERO).port}",
        "proxy": str(proxy.addresses()["LONG"]),
    }
    with ThreadPoolExecutor(len(at)) as pool:
        sent = {kind: pool.submit(delivered, place, who, one) for kind, one in at.items()}
        return {kind: one.result() for kind, one in sent.items()}


def test_a_silent_first_address_delays_neither_the_start_nor_clients(
    place: Namespace, dns: Dns, cluster: KafkaCluster, proxy: ProxyProcess, who: User
) -> None:
    dns.names = {FIRST: [SILENT, BROKERS], SECOND: [BROKERS]}
    proxy.start()
    assert beside(place, cluster, proxy, who) == {"direct": DELIVERED, "proxy": DELIVERED}


def test_clients_of_a_broker_whose_name_is_not_answered_delay_no_others(
    place: Namespace, dns: Dns, cluster: KafkaCluster, proxy: ProxyProcess, who: User
) -> None:
    dns.names = {FIRST: [BROKERS], SECOND: [BROKERS]}
    proxy.start()
    del dns.names[SECOND]
    dns.unanswered = 0
    settings: dict[str, Any] = who.confluent(str(proxy.addresses()["LONG"]))
    with ThreadPoolExecutor(1, initializer=place.enter) as here:
        waiting = [here.submit(confluent.Producer, settings).result() for _ in range(6)]
        for producer in waiting:
            producer.produce(TOPIC, b"record", partition=1)
        wait_until(lambda: dns.unanswered > 0, what="the second broker is not looked up")
        met = beside(place, cluster, proxy, who)
        for producer in waiting:
            producer.purge()
    assert met == {"direct": DELIVERED, "proxy": DELIVERED}
    assert "Traceback" not in proxy.log()
    assert "never retrieved" not in proxy.log()
