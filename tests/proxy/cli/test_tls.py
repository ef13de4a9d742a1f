"""`--command-config` with TLS, at the listeners of a proxy that really runs.

`tests/proxy/admin` has the other errors of TLS, and the mistakes in the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.support.acls import acl
from tests.support.certificates import HOUR, Authority
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.kafka.cluster import wait_until
from tests.support.processes import free_ports
from tests.support.proxy_process import ProxyProcess, rows
from tests.support.proxy_process import run_acls as run

ALICE = ("--allow-principal", "User:alice")

AUTHORITY, OTHERS = Authority(), Authority("others")
SASL, MUTUAL = "SASL", "MUTUAL"
SCRAM = (
    "sasl.mechanism=SCRAM-SHA-256",
    "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
    ' username="admin" password="admin-secret";',
)


def store(side: str, path: Path) -> tuple[str, ...]:
    return (f"ssl.{side}.type=PEM", f"ssl.{side}.location={path}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    AUTHORITY.write(directory)
    for name, issued in {
        "server": AUTHORITY.issue("server"),
        "admin": AUTHORITY.issue("admin"),
        "expired": AUTHORITY.issue("admin", begins=-2 * HOUR, ends=-HOUR),
        "untrusted": OTHERS.issue("admin"),
    }.items():
        (directory / f"{name}.pem").write_bytes(issued.pem)
    return directory


@pytest.fixture(scope="module")
def proxy(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    server = {"ssl.keystore.location": str(files / "server.pem")}
    scram = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    kinds: dict[str, dict[str, Any]] = {
        SASL: {"security.protocol": "SASL_SSL", **scram, **server},
        MUTUAL: {
            "security.protocol": "SSL",
            "ssl.client.auth": "required",
            "ssl.truststore.location": str(files / "ca.pem"),
            **server,
        },
    }
    *ports, http = free_ports(len(kinds) + 1)
    with in_a_thread(Peer()) as broker:
        config = {
            "upstream": {"bootstrap.servers": broker.address},
            "listeners": [
                {"name": name.lower(), "address": f"127.0.0.1:{port}", "routing": "sidecar", **kind}
                for (name, kind), port in zip(kinds.items(), ports, strict=True)
            ],
            "authorizer": {"mode": "enforce", "super.users": ["User:admin", "User:CN=admin"]},
            "quotas": {"mode": "enforce"},
            "http": {"address": f"127.0.0.1:{http}"},
        }
        process = ProxyProcess(config, tmp_path_factory.mktemp("proxy"))
        process.add_user("admin", "admin-secret", "SCRAM-SHA-256")
        with process:
            wait_until(lambda: process.readiness() == 200, what="not ready", details=process.log)
            yield process


class Through:
    """The options that lead to a listener, by a properties file with these lines."""

    def __init__(self, proxy: ProxyProcess, directory: Path) -> None:
        self._addresses = proxy.addresses()
        self._directory = directory

    def __call__(self, listener: str, protocol: str, *lines: str) -> list[str]:
        file = self._directory / "admin.properties"
        file.write_text("\n".join((f"security.protocol={protocol}", *lines)))
        address = str(self._addresses[listener])
        return ["--bootstrap-server", address, "--command-config", str(file)]


@pytest.fixture
def through(proxy: ProxyProcess, tmp_path: Path) -> Through:
    return Through(proxy, tmp_path)


@pytest.fixture
def trust(files: Path) -> tuple[str, ...]:
    return store("truststore", files / "ca.pem")


def test_acls_and_quotas_over_sasl_ssl(through: Through, trust: tuple[str, ...]) -> None:
    way = through(SASL, "SASL_SSL", *SCRAM, *trust)
    assert run("add", "--topic", "t", *ALICE, "--operation", "Read", *way).exit_code == 0
    [row] = rows(run("list", *way, "--output", "json"))
    assert (row["name"], row["operation"]) == (acl().name, "READ")
    assert run("remove", "--topic", "t", "--force", *way).exit_code == 0
    for words in (
        ["set", "--user", "alice", "producer_byte_rate=1000"],
        ["list", "--user", "alice"],
        ["remove", "--user", "alice", "producer_byte_rate"],
    ):
        done = CliRunner().invoke(app, ["quotas", *words, *way])
        assert done.exit_code == 0, done.output


def test_a_certificate_says_who_we_are(
    through: Through, trust: tuple[str, ...], files: Path
) -> None:
    way = through(MUTUAL, "SSL", *trust, *store("keystore", files / "admin.pem"))
    assert rows(run("list", *way, "--output", "json")) == []


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        (None, "the other side requires a client certificate"),
        ("untrusted", "the other side does not trust our certificate"),
        ("expired", "the other side considers our certificate expired"),
    ],
)
def test_a_certificate_of_ours_that_is_refused(
    through: Through,
    trust: tuple[str, ...],
    files: Path,
    version: str,
    shown: str | None,
    problem: str,
) -> None:
    """By TLS 1.3 the refusal comes when the handshake is over for us."""
    mine = store("keystore", files / f"{shown}.pem") if shown else ()
    way = through(MUTUAL, "SSL", *trust, *mine, f"ssl.enabled.protocols={version}")
    result = run("list", *way)
    said = re.fullmatch(r"reauth-proxy: 127\.0\.0\.1:\d+: (.+)\n", result.stderr)
    assert result.exit_code == 1
    assert said is not None, result.output
    problems = (problem, "the other side refuses the handshake: it may require")
    assert said[1].startswith(problems), said[1]
