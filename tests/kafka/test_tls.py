"""Clients with SASL_SSL, a broker with SSL and mutual authentication, and the proxy in between."""

import ssl
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kafka as python
import pytest

from tests.support.certificates import Authority
from tests.support.kafka.clients import SslUser, User, add_users, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.sasl_differential.comparison import (
    DELIBERATE,
    USERS,
    World,
    differences,
    run_all,
)
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, java_traffic
from tests.support.kafka.wire_client import API_VERSIONS, Address, Outcome, WireClient
from tests.support.processes import free_ports
from tests.support.proxy_process import ProxyProcess, sidecar_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SECONDS = 5
"""At the least: they go on until all is replaced."""
REPLACEMENTS = 10
DEADLINE = 120.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def files(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    authority.write(directory)
    for name in ("broker", "server", "client"):
        (directory / f"{name}.pem").write_bytes(authority.issue(name).pem)
    return directory


@pytest.fixture(scope="module")
def cluster(
    require_kafka: None,  # noqa: ARG001 - skips
    jwks: Path,
    files: Path,
) -> Iterator[KafkaCluster]:
    """Its listener BEHIND speaks SSL and wants a certificate."""
    prefix = f"listener.name.{BEHIND.lower()}.ssl"
    properties = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{BEHIND}:SSL",
        f"{prefix}.keystore.type": "PEM",
        f"{prefix}.keystore.location": str(files / "broker.pem"),
        f"{prefix}.truststore.type": "PEM",
        f"{prefix}.truststore.location": str(files / "ca.pem"),
        f"{prefix}.client.auth": "required",
    }
    with KafkaCluster(
        nodes=1,
        jwks=jwks,
        properties=properties,
        sasl_listeners={},
        sidecar_port=free_ports(1)[0],
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, jwks: Path, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = sidecar_config(
        str(cluster.address(listener=BEHIND)),
        jwks,
        listeners={"LONG": 3_600_000},
        port=cluster.sidecar_port,
    )
    config["upstream"] |= {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(files / "client.pem"),
        "ssl.truststore.location": str(files / "ca.pem"),
    }
    config["listeners"][0] |= {
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": str(files / "server.pem"),
    }
    process = ProxyProcess(config | {"workers": 2}, tmp_path_factory.mktemp("proxy"))
    add_users(process)
    with process:
        yield process


@pytest.fixture
def carol(issuer: Issuer, files: Path) -> SslUser:
    base = user(issuer, "SCRAM-SHA-256")
    return SslUser(name=base.name, mechanism=base.mechanism, issuer=issuer, ca=files / "ca.pem")


def python_traffic(who: User, bootstrap: str, topic: str, until: Path) -> int:
    """Messages that kafka-python wrote and read back, one at a time."""
    producer = python.KafkaProducer(**who.python(bootstrap))
    consumer = python.KafkaConsumer(
        topic,
        **who.python(bootstrap),
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(1000 * DEADLINE),
    )
    count = 0
    while not until.exists():
        producer.send(topic, str(count).encode()).get(DEADLINE)
        assert next(consumer).value == str(count).encode()
        count += 1
    consumer.close()
    producer.close()
    return count


def shown(bootstrap: str, ca: Path) -> str:
    """The certificate that a new client sees."""
    host, _, port = bootstrap.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), ca_certs=str(ca), timeout=DEADLINE)


def test_traffic_while_certificates_are_replaced(
    cluster: KafkaCluster,
    proxy: ProxyProcess,
    carol: SslUser,
    authority: Authority,
    files: Path,
    tmp_path: Path,
) -> None:
    """Three libraries, ten replacements on both sides: no connection ends, no record is lost."""
    bootstrap = str(proxy.addresses()["LONG"])
    topics = [f"tls-{uuid.uuid4()}" for _ in range(3)]
    for topic, partitions in zip(topics, (PARTITIONS, PARTITIONS, 1), strict=True):
        cluster.create_topic(topic, partitions=partitions)
    enough = tmp_path / "enough"
    with ThreadPoolExecutor() as pool:
        confluent = pool.submit(
            confluent_traffic,
            carol,
            bootstrap,
            topics[0],
            SECONDS,
            pause_seconds=0.01,
            until=enough,
        )
        java = pool.submit(
            java_traffic, carol, bootstrap, topics[1], SECONDS, tmp_path, until=enough
        )
        others = pool.submit(python_traffic, carol, bootstrap, topics[2], enough)
        try:
            wait_until(
                lambda: proxy.metric("requests_total", api="Produce") > 100, what="no traffic"
            )
            for _ in range(REPLACEMENTS):
                for name in ("server", "client"):
                    (files / f"{name}.new").write_bytes(authority.issue(name).pem)
                    (files / f"{name}.new").rename(files / f"{name}.pem")
                wait_until(
                    lambda: (
                        shown(bootstrap, files / "ca.pem").strip().encode()
                        in (files / "server.pem").read_bytes()
                    ),
                    what="the certificate was not taken up",
                )
            assert not confluent.done()
        finally:
            enough.touch()
        assert sum(confluent.result()) > 0
        assert others.result() > 0
        assert sum(java.result()) > 0
    for reason in ("broker_closed", "broker_unreachable", "broker_fault", "internal_error"):
        assert proxy.metric("connections_closed_total", reason=reason) == 0
    assert proxy.metric("certificate_expiry_timestamp_seconds") > time.time()
    assert proxy.metric("upstream_certificate_expiry_timestamp_seconds") > time.time()
    assert "replaced" in proxy.log()
    assert "ERROR" not in proxy.log()


def test_a_client_without_tls_is_told_in_the_log(proxy: ProxyProcess) -> None:
    with WireClient(proxy.addresses()["LONG"]) as client:
        client.send_frame(API_VERSIONS, 0, 1, "plain", b"")
        assert client.receive() is Outcome.CLOSED
    assert "speaks Kafka's protocol without TLS" in proxy.log()


def test_programs_hear_the_same_over_tls(
    kafka_programs_world: World,
    kafka: KafkaCluster,
    jwks: Path,
    files: Path,
    issuer: Issuer,
    tmp_path: Path,
) -> None:
    """The programs of `test_differential_sasl`, between whose bytes and the proxy there is TLS."""
    config = sidecar_config(str(kafka.address()), jwks)
    for listener in config["listeners"]:
        listener["security.protocol"] = "SASL_SSL"
        listener["ssl.keystore.location"] = str(files / "server.pem")
    process = ProxyProcess(config, tmp_path)
    for name, password, mechanism in USERS:
        process.add_user(name, password, mechanism)
    with process:
        addresses = {
            name: Address(host, port, str(files / "ca.pem"))
            for name, (host, port, _) in process.addresses().items()
        }
        world = World(addresses=addresses, issuer=issuer)
        with ThreadPoolExecutor() as pool:
            expected = pool.submit(run_all, kafka_programs_world)
            heard = run_all(world)
        found = differences(expected.result(), heard, ("Kafka", "proxy"))
    assert {name: text for name, text in found.items() if name not in DELIBERATE} == {}
