"""`--command-config` with TLS, at the listeners of a proxy that really runs; and what goes wrong.

Each mistake is one line and a status: no traceback, no secret.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

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
PLAIN, SASL, MUTUAL, ELSEWHERE = "PLAIN", "SASL", "MUTUAL", "ELSEWHERE"
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
    OTHERS.write(directory, "others.pem")
    for name, issued in {
        "server": AUTHORITY.issue("server"),
        "elsewhere": AUTHORITY.issue("server", ("elsewhere",)),
        "admin": AUTHORITY.issue("admin"),
        "expired": AUTHORITY.issue("admin", begins=-2 * HOUR, ends=-HOUR),
        "untrusted": OTHERS.issue("admin"),
    }.items():
        (directory / f"{name}.pem").write_bytes(issued.pem)
    return directory


@pytest.fixture(scope="module")
def proxy(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    scram = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    server = {"ssl.keystore.location": str(files / "server.pem")}
    kinds: dict[str, dict[str, Any]] = {
        PLAIN: {"security.protocol": "SASL_PLAINTEXT", **scram},
        SASL: {"security.protocol": "SASL_SSL", **scram, **server},
        MUTUAL: {
            "security.protocol": "SSL",
            "ssl.client.auth": "required",
            "ssl.truststore.location": str(files / "ca.pem"),
            **server,
        },
        ELSEWHERE: {
            "security.protocol": "SASL_SSL",
            "ssl.keystore.location": str(files / "elsewhere.pem"),
            **scram,
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


def test_any_host_name_if_so_wished(through: Through, trust: tuple[str, ...]) -> None:
    anywhere = "ssl.endpoint.identification.algorithm="
    way = through(ELSEWHERE, "SASL_SSL", *SCRAM, *trust, anywhere)
    assert rows(run("list", *way, "--output", "json")) == []


def refused(result: Result, *problems: str) -> None:
    assert result.exit_code == 1, result.output
    said = re.fullmatch(r"reauth-proxy: 127\.0\.0\.1:\d+: (.+)\n", result.stderr)
    assert said is not None, result.stderr
    assert any(said[1].startswith(problem) for problem in problems), said[1]
    assert "secret" not in result.output


def test_who_is_not_trusted(through: Through, files: Path) -> None:
    others = store("truststore", files / "others.pem")
    refused(run("list", *through(SASL, "SASL_SSL", *SCRAM, *others)), "its certificate is refused:")
    refused(run("list", *through(SASL, "SASL_SSL", *SCRAM)), "its certificate is refused:")


def test_who_is_somebody_else(through: Through, trust: tuple[str, ...]) -> None:
    way = through(ELSEWHERE, "SASL_SSL", *SCRAM, *trust)
    refused(run("list", *way), "its certificate is refused: IP address mismatch")


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
    refused(run("list", *way), problem, "the other side refuses the handshake: it may require")


def test_tls_where_there_is_none_and_none_where_there_is(
    through: Through, trust: tuple[str, ...]
) -> None:
    with_tls = through(PLAIN, "SASL_SSL", *SCRAM, *trust)
    refused(run("list", *with_tls), "it closes the connection in the TLS handshake; does it speak")
    for listener, lines in ((SASL, ("SASL_PLAINTEXT", *SCRAM)), (MUTUAL, ("PLAINTEXT",))):
        way = through(listener, *lines)
        refused(run("list", *way), "closed the connection instead of answering; does it speak TLS?")


def test_a_file_that_cannot_be_used_is_a_mistake_in_the_configuration(
    through: Through, files: Path
) -> None:
    for path, problem in ((files, "cannot be read: Is a directory"), (files / "x", "cannot be")):
        way = through(SASL, "SASL_SSL", *SCRAM, *store("truststore", path))
        result = run("list", *way)
        assert result.exit_code == 2
        assert f"admin.properties: ssl.truststore.location: {problem}" in result.stderr
        assert result.stderr.count("\n") == 1
        assert "secret" not in result.output
