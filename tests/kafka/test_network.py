"""Networks that forget idle connections."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import User, add_users, password_of
from tests.support.kafka.cluster import KafkaCluster
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
