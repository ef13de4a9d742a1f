"""TLS between clients, proxy, broker and administrators, with every form of certificate, and
passwords in a directory."""

import asyncio
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.certificates import Authority
from tests.support.kafka.clients import JavaClient, SslUser, password_of, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import RUN_SECONDS
from tests.support.kafka.properties import BEHIND, PLAINTEXT
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, java_traffic
from tests.support.processes import free_ports
from tests.support.proxy_process import SUPER_USER, ProxyProcess, Serve, rows, sidecar_config
from tests.support.proxy_process import run_acls as run
from tests.support.sasl import Issuer
from tests.support.slapd import PEOPLE, Slapd, person, running_slapd
from tests.support.tls import PASSWORD, keystore

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LIFETIME_MS = 3_000
"""Of sessions."""
SECONDS = 5
"""Minimum; traffic continues until all certificates are replaced."""
REPLACEMENTS = 3
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
def cluster(jwks: Path, files: Path) -> Iterator[KafkaCluster]:
    """Its listener BEHIND uses SSL and requires client certificates."""
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
        nodes=1, jwks=jwks, properties=properties, sasl_listeners={}, sidecar_port=free_ports(1)[0]
    ) as cluster:
        yield cluster


CAROL = f"uid=carol,{PEOPLE}"


@pytest.fixture(scope="module")
def slapd(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    folder = tmp_path_factory.mktemp("slapd")
    authority.write(folder)
    account = person(CAROL, "carol", password=password_of("carol"))
    with running_slapd(folder, authority.issue("slapd").pem, account) as slapd:
        yield slapd


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, jwks: Path, files: Path, slapd: Slapd, serve: Serve
) -> ProxyProcess:
    config = sidecar_config(
        str(cluster.address(listener=BEHIND)),
        jwks,
        listeners={"SHORT": LIFETIME_MS},
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
        "sasl.enabled.mechanisms": ["PLAIN"],
        "sasl.plain.ldap.url": f"ldaps://localhost:{slapd.port}",
        "sasl.plain.ldap.ssl.truststore.location": str(files / "ca.pem"),
        "sasl.plain.ldap.user.dn": f"uid=$(user),{PEOPLE}",
    }
    return serve(config | {"workers": 2})


@pytest.fixture
def carol(issuer: Issuer, files: Path) -> SslUser:
    base = user(issuer, "PLAIN")
    return SslUser(name=base.name, mechanism=base.mechanism, issuer=issuer, ca=files / "ca.pem")


def shown(bootstrap: str, ca: Path) -> str:
    """The server certificate on a new connection."""
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
    """Replacements on both sides under traffic: no connection ends, no record is lost. Java's
    clients and librdkafka re-authenticate with PLAIN."""
    bootstrap = str(proxy.addresses()["SHORT"])
    topics = [f"tls-{uuid.uuid4()}" for _ in range(2)]
    for topic in topics:
        cluster.create_topic(topic, partitions=PARTITIONS)
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
        assert sum(java.result()) > 0
    renewed = proxy.metric("successful_reauthentication_total", mechanism="PLAIN")
    assert renewed >= len(topics) * (SECONDS * 1_000 // LIFETIME_MS)
    assert proxy.metric("failed_reauthentication_total") == 0
    assert proxy.metric("expired_connections_killed_total") == 0
    for reason in ("broker_closed", "broker_unreachable", "broker_fault", "internal_error"):
        assert proxy.metric("connections_closed_total", reason=reason) == 0
    assert proxy.metric("certificate_expiry_timestamp_seconds") > time.time()
    assert proxy.metric("upstream_certificate_expiry_timestamp_seconds") > time.time()
    proxy.until_logged("replaced")
    assert "ERROR" not in proxy.log()


def test_a_client_of_a_locked_account_fails_at_its_next_reauthentication(
    cluster: KafkaCluster, proxy: ProxyProcess, carol: SslUser, slapd: Slapd
) -> None:
    """KIP-368's own example. Until then the client is served."""
    topic = f"locked-{uuid.uuid4()}"
    cluster.create_topic(topic)
    errors: list[confluent.KafkaError] = []
    settings = carol.confluent(str(proxy.addresses()["SHORT"]))
    producer = confluent.Producer(settings | {"error_cb": errors.append})

    def is_refused() -> bool:
        producer.poll(0.1)
        return confluent.KafkaError._AUTHENTICATION in {error.code() for error in errors}

    renewed = proxy.metric("successful_reauthentication_total", mechanism="PLAIN")
    failed = proxy.metric("failed_reauthentication_total")
    producer.produce(topic, b"before")
    assert producer.flush(DEADLINE) == 0
    wait_until(
        lambda: proxy.metric("successful_reauthentication_total", mechanism="PLAIN") > renewed,
        what="no re-authentication",
    )
    assert not errors
    asyncio.run(slapd.replace(CAROL, "pwdAccountLockedTime", "000001010000Z"))
    wait_until(is_refused, what="librdkafka is not refused")
    assert proxy.metric("failed_reauthentication_total") > failed
    assert proxy.metric("expired_connections_killed_total") == 0


# --- an administrator's properties file

MUTUAL = "MUTUAL"
AUTHORITY = Authority()
MINE = AUTHORITY.issue(SUPER_USER)
SUPER_USERS = ("User:ANONYMOUS", f"User:CN={SUPER_USER}")


@pytest.fixture(scope="module")
def admin_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    AUTHORITY.write(directory)
    (directory / "server.pem").write_bytes(AUTHORITY.issue("server").pem)
    return directory


@pytest.fixture(scope="module")
def tls_cluster(admin_files: Path) -> Iterator[KafkaCluster]:
    """A listener with client certificates."""
    properties = {
        "listener.security.protocol.map": f"{PLAINTEXT}:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        f"{MUTUAL}:SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(SUPER_USERS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(admin_files / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(admin_files / "ca.pem"),
        f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
    }
    with KafkaCluster(nodes=1, properties=properties, sasl_listeners={MUTUAL: 0}) as tls_cluster:
        yield tls_cluster


def pkcs12(directory: Path, ca: Path) -> Mapping[str, str]:
    """Truststore created by keytool, with Kafka's default type."""
    trust, keys = directory / "trust.p12", directory / "mine.p12"
    keys.write_bytes(keystore(MINE, ca.read_bytes()))
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(ca)]
    to = ["-keystore", str(trust), "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run([*command, *to], check=True, capture_output=True, timeout=RUN_SECONDS)
    return {
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(keys),
        "ssl.keystore.password": PASSWORD,
    }


def written(directory: Path, settings: Mapping[str, str]) -> Path:
    path = directory / "admin.properties"
    lines = {"security.protocol": "SSL", **settings}
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def both_administer(file: Path, bootstrap: str) -> None:
    """Add and remove an ACL; both Kafka's tool and the client list it."""
    topic = f"tls-{uuid.uuid4()}"
    way = ("--bootstrap-server", bootstrap, "--command-config", str(file))
    added = run("add", "--topic", topic, "--allow-principal", "User:erin", *way)
    assert added.exit_code == 0, added.output
    theirs = JavaClient(properties=file, jvm_options=())
    listed = theirs.run_tool("kafka-acls", bootstrap, "--list", "--topic", topic)
    assert "principal=User:erin" in listed.stdout, listed
    [row] = rows(run("list", "--topic", topic, *way, "--output", "json"))
    assert row["principal"] == "User:erin"
    assert run("remove", "--topic", topic, "--force", *way).exit_code == 0


def test_a_certificate_at_kafka(
    tls_cluster: KafkaCluster, admin_files: Path, tmp_path: Path
) -> None:
    """`tests/proxy/admin/test_tls.py` has the other forms of such a file."""
    file = written(tmp_path, pkcs12(tmp_path, admin_files / "ca.pem"))
    both_administer(file, str(tls_cluster.address(listener=MUTUAL)))
