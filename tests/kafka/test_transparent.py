"""Two real brokers behind one proxy with a real redirect, unknown to clients and brokers.

All of it is in a network namespace. The brokers' SASL listeners speak PLAINTEXT here, so a client
that logs in has met the proxy.
"""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import MECHANISMS, OAUTHBEARER, User, password_of, user
from tests.support.kafka.cluster import SASL_LISTENERS, KafkaCluster
from tests.support.kafka.properties import CONTROLLER, PLAINTEXT
from tests.support.kafka.redirected import PROXY_UID, Inside, redirect, run_unprivileged
from tests.support.kafka.sasl_differential.transcript import USERS
from tests.support.kafka.traffic import PARTITIONS, traffic_until
from tests.support.processes import Namespace
from tests.support.proxy_process import ProxyProcess, relaying_logins, sidecar_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BROKERS = (1, 2)
KEYS = "sasl.oauthbearer.jwks.endpoint.url"
LIFETIME_MS = 3_000
RENEWED, RENEWALS = "successful_reauthentication_total", 3
DEADLINE = 120.0


@pytest.fixture(scope="module")
def cluster(inside: Inside) -> Iterator[KafkaCluster]:
    protocols = ",".join(f"{name}:PLAINTEXT" for name in (PLAINTEXT, CONTROLLER, *SASL_LISTENERS))
    cluster = KafkaCluster(
        nodes=len(BROKERS), properties={"listener.security.protocol.map": protocols}
    )
    inside(cluster.__enter__)
    try:
        yield cluster
    finally:
        inside(lambda: cluster.__exit__(None, None, None))


@contextmanager
def transparent(
    config: dict[str, Any],
    here: Namespace,
    cluster: KafkaCluster,
    jwks: Path,
    *users: tuple[str, str, str],
) -> Iterator[ProxyProcess]:
    """A proxy under its own user, which clients reach at the addresses of both brokers."""
    listeners = cluster.sasl_listeners
    ports = [cluster.address(one, name).port for one in BROKERS for name in listeners]
    config["upstream"]["allowed"] = [f"127.0.0.1:{port}" for port in ports]
    del config["upstream"]["bootstrap.servers"]
    with tempfile.TemporaryDirectory() as name:  # pytest's directories are only accessible to root
        directory = Path(name)
        keys = directory / "jwks.json"
        keys.write_bytes(jwks.read_bytes())
        for listener in config["listeners"]:
            listener["routing"] = "transparent"
            if KEYS in listener:
                listener[KEYS] = keys.as_uri()
        process = ProxyProcess(config | {"workers": 2}, directory)
        for user_name, password, mechanism in users:
            process.add_user(user_name, password, mechanism)
        run_unprivileged(process, here, directory)
        with process:
            yield process


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster, here: Namespace, jwks: Path) -> Iterator[ProxyProcess]:
    """A proxy with one listener for each of the brokers' listeners."""
    carol = [("carol", password_of("carol"), one) for one in MECHANISMS if one != OAUTHBEARER]
    config = sidecar_config("127.0.0.1:1", jwks)
    with transparent(config, here, cluster, jwks, *USERS, *carol) as process:
        yield process


@pytest.fixture(scope="module")
def redirected(here: Namespace, cluster: KafkaCluster, proxy: ProxyProcess) -> None:
    """Redirect one listener with the script and the others with equal rules."""
    for name, address in proxy.addresses().items():
        brokers = ",".join(str(cluster.address(one, name).port) for one in BROKERS)
        if name == "LONG":
            redirect(here, address.port, brokers)
        else:
            rule = f"-t nat -A OUTPUT -p tcp -m multiport --dports {brokers}"
            others = f"-m owner ! --uid-owner {PROXY_UID}"
            target = f"-j REDIRECT --to-ports {address.port}"
            here.run("iptables", *rule.split(), *others.split(), *target.split())


@pytest.fixture
def topic(cluster: KafkaCluster, inside: Inside) -> str:
    """A topic with a partition on each broker."""
    name = f"transparent-{uuid.uuid4()}"
    replicas = {0: [1], 1: [2]}
    inside(lambda: cluster.create_topic(name, replicas=replicas))
    return name


VALUES = {f"message {number}".encode() for number in range(40)}


@pytest.mark.usefixtures("redirected")
def test_confluent_reaches_both_brokers(
    cluster: KafkaCluster, inside: Inside, issuer: Issuer, topic: str
) -> None:
    """It bootstraps at one broker and also connects to the other's advertised address."""
    carol, bootstrap = user(issuer, OAUTHBEARER), str(cluster.address(1, "LONG"))

    def work() -> None:
        producer = confluent.Producer(carol.confluent(bootstrap))
        reported = {
            (one.host, one.port) for one in producer.list_topics(timeout=DEADLINE).brokers.values()
        }
        assert reported == {cluster.address(one, "LONG")[:2] for one in BROKERS}
        for number, value in enumerate(sorted(VALUES)):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(DEADLINE) == 0
        settings = {"group_id": topic, "auto_offset_reset": "earliest"}
        consumer = confluent.Consumer(carol.confluent(bootstrap, **settings))
        try:
            consumer.subscribe([topic])
            seen = consumer.consume(len(VALUES), timeout=DEADLINE)
        finally:
            consumer.close()
        assert {message.value() for message in seen} == VALUES
        assert {message.partition() for message in seen} == {0, 1}

    inside(work)


def test_relayed_sessions_are_held_through_a_redirect(
    here: Namespace, inside: Inside, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """The brokers authenticate clients; side connections reach the broker that the client uses."""
    alice = User(name="alice", mechanism="SCRAM-SHA-256", issuer=issuer)
    cluster = KafkaCluster(nodes=len(BROKERS), sasl_listeners={"ZERO": 0})
    config = relaying_logins(sidecar_config("127.0.0.1:1", jwks, listeners={"ZERO": LIFETIME_MS}))
    inside(cluster.__enter__)
    try:
        inside(lambda: cluster.add_scram_user("alice", password_of("alice")))
        inside(lambda: cluster.create_topic("held", partitions=PARTITIONS))
        bootstrap = str(cluster.address(1, "ZERO"))
        with transparent(config, here, cluster, jwks) as process:
            ports = ",".join(str(cluster.address(one, "ZERO").port) for one in BROKERS)
            redirect(here, process.addresses()["ZERO"].port, ports)
            written = inside(
                lambda: traffic_until(
                    lambda: process.metric(RENEWED, mechanism=alice.mechanism) >= RENEWALS,
                    alice,
                    bootstrap,
                    "held",
                    tmp_path,
                )
            )
            assert min(written) > 0
            assert inside(lambda: process.metric("failed_reauthentication_total")) == 0
            assert "Traceback" not in process.log()
    finally:
        inside(lambda: cluster.__exit__(None, None, None))
