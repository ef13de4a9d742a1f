"""One properties file with TLS for kafka-acls.sh and `reauth-proxy`, at Kafka and the proxy."""

import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, Issued
from tests.support.kafka.clients import JavaClient, password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import RUN_SECONDS
from tests.support.kafka.properties import PLAINTEXT
from tests.support.processes import free_port_range, free_ports
from tests.support.proxy_process import GATEWAY_BROKERS, SUPER_USER, ProxyProcess, rows
from tests.support.proxy_process import run_acls as run
from tests.support.tls import PASSWORD, escaped, keystore

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MUTUAL, SECURE = "MUTUAL", "SECURE"
MODULES = "org.apache.kafka.common.security"
AUTHORITY = Authority()
MINE = AUTHORITY.issue(SUPER_USER)
SUPER_USERS = ("User:ANONYMOUS", f"User:CN={SUPER_USER}", f"User:{SUPER_USER}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    AUTHORITY.write(directory)
    (directory / "server.pem").write_bytes(AUTHORITY.issue("server").pem)
    return directory


@pytest.fixture(scope="module")
def cluster(require_kafka: None, files: Path) -> Iterator[KafkaCluster]:  # noqa: ARG001 - skips
    """A listener that wants a certificate, and one that wants PLAIN."""
    plain = f'{MODULES}.plain.PlainLoginModule required user_{SUPER_USER}="{password_of("admin")}";'
    properties = {
        "listener.security.protocol.map": f"{PLAINTEXT}:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        f"{MUTUAL}:SSL,{SECURE}:SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(SUPER_USERS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
        f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
        f"listener.name.{SECURE.lower()}.sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{SECURE.lower()}.plain.sasl.jaas.config": plain,
    }
    listeners = dict.fromkeys((MUTUAL, SECURE), 0)
    with KafkaCluster(nodes=1, properties=properties, sasl_listeners=listeners) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    listeners = []
    kinds: dict[str, dict[str, Any]] = {
        MUTUAL: {
            "security.protocol": "SSL",
            "ssl.client.auth": "required",
            "ssl.truststore.location": str(files / "ca.pem"),
        },
        SECURE: {"security.protocol": "SASL_SSL", "sasl.enabled.mechanisms": ["SCRAM-SHA-512"]},
    }
    for name, security in kinds.items():
        port = free_port_range(GATEWAY_BROKERS + 2)
        listeners.append(
            {
                "name": name.lower(),
                "address": f"127.0.0.1:{port}",
                "routing": "gateway",
                "advertised.host": "127.0.0.1",
                "broker.ports": f"{port + 1}-{port + 1 + GATEWAY_BROKERS}",
                "ssl.keystore.location": str(files / "server.pem"),
                **security,
            }
        )
    config = {
        "upstream": {"bootstrap.servers": str(cluster.address())},
        "listeners": listeners,
        "authorizer": {"mode": "enforce", "super.users": [*SUPER_USERS[1:]]},
        "http": {"address": f"127.0.0.1:{free_ports(1)[0]}"},
    }
    process = ProxyProcess(config, tmp_path_factory.mktemp("proxy"))
    process.add_user(SUPER_USER, password_of(SUPER_USER), "SCRAM-SHA-512")
    with process:
        yield process


# --- what the file may say


def pem_files(directory: Path, ca: Path) -> Mapping[str, str]:
    """The key and its certificate in one, as Kafka has it."""
    (directory / "mine.pem").write_bytes(MINE.pem)
    return trusting(ca) | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "mine.pem"),
    }


def pem_inline(_directory: Path, ca: Path) -> Mapping[str, str]:
    """KIP-651."""
    return {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": escaped(ca.read_bytes()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": escaped(MINE.key),
        "ssl.keystore.certificate.chain": escaped(MINE.certificate),
    }


def pkcs12(directory: Path, ca: Path) -> Mapping[str, str]:
    """The truststore by keytool, and its type left to Kafka's default."""
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


def trusting(ca: Path) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}


def login(mechanism: str, module: str) -> dict[str, str]:
    who = f'username="{SUPER_USER}" password="{password_of(SUPER_USER)}"'
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{MODULES}.{module}LoginModule required {who};",
    }


def written(directory: Path, protocol: str, settings: Mapping[str, str]) -> Path:
    path = directory / "admin.properties"
    lines = {"security.protocol": protocol, **settings}
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def both_administer(file: Path, bootstrap: str) -> None:
    """We add and remove, and both of us look."""
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


@pytest.mark.parametrize("form", [pem_files, pem_inline, pkcs12])
def test_a_certificate_at_kafka(
    cluster: KafkaCluster,
    files: Path,
    tmp_path: Path,
    form: Callable[[Path, Path], Mapping[str, str]],
) -> None:
    file = written(tmp_path, "SSL", form(tmp_path, files / "ca.pem"))
    both_administer(file, str(cluster.address(listener=MUTUAL)))


def test_plain_over_tls_at_kafka(cluster: KafkaCluster, files: Path, tmp_path: Path) -> None:
    settings = login("PLAIN", "plain.Plain") | trusting(files / "ca.pem")
    file = written(tmp_path, "SASL_SSL", settings)
    both_administer(file, str(cluster.address(listener=SECURE)))


def test_a_certificate_at_the_proxy(proxy: ProxyProcess, files: Path, tmp_path: Path) -> None:
    file = written(tmp_path, "SSL", pem_files(tmp_path, files / "ca.pem"))
    both_administer(file, str(proxy.addresses()[MUTUAL]))


def test_scram_over_tls_at_the_proxy(proxy: ProxyProcess, files: Path, tmp_path: Path) -> None:
    settings = login("SCRAM-SHA-512", "scram.Scram") | trusting(files / "ca.pem")
    file = written(tmp_path, "SASL_SSL", settings)
    both_administer(file, str(proxy.addresses()[SECURE]))


# --- what Kafka refuses


@pytest.mark.parametrize(
    ("listener", "protocol", "shown", "problem"),
    [
        (MUTUAL, "SSL", None, "the other side does not accept our certificate, or wants one"),
        (MUTUAL, "SSL", Authority("others").issue("admin"), "the other side does not"),
        (MUTUAL, "PLAINTEXT", None, "it answers in TLS"),
        (PLAINTEXT, "SSL", None, "does it speak TLS?"),
    ],
    ids=["no certificate", "untrusted", "without TLS", "with TLS"],
)
def test_it_is_said_in_one_line(
    cluster: KafkaCluster,
    files: Path,
    tmp_path: Path,
    listener: str,
    protocol: str,
    shown: Issued | None,
    problem: str,
) -> None:
    settings = trusting(files / "ca.pem")
    if shown:
        (tmp_path / "mine.pem").write_bytes(shown.pem)
        settings |= {"ssl.keystore.type": "PEM"}
        settings |= {"ssl.keystore.location": str(tmp_path / "mine.pem")}
    file = written(tmp_path, protocol, settings)
    address = str(cluster.address(listener=listener))
    result = run("list", "--bootstrap-server", address, "--command-config", file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"reauth-proxy: {address}: ")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
