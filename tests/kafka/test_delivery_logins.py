"""Delivery and report as clients of brokers with TLS, SASL, sessions and ACLs.

The broker's sessions last two seconds: a connection that is used for longer has authenticated
itself again.
"""

import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as confluent
import confluent_kafka.admin
import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.support.certificates import Authority
from tests.support.kafka import java, properties
from tests.support.kafka.clients import acl_binding, by_password, password_of, write_properties
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.delivery import (
    LINE,
    WALL,
    arrived,
    command,
    following,
    lines,
    log_in,
    messages,
)
from tests.support.kafka.properties import CONTROLLER, PLAINTEXT
from tests.support.kafka.upstream import GATE
from tests.support.proxy_process import eventually, sockets_of
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SECURE = "SECURE"
SESSION_MS = 2_000
SESSIONS = 2
"""Number of sessions for which events are delivered."""
WRITER, READER = "events-writer", "events-reader"
SCRAM = "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of `ca.pem`, which signed the broker's certificate."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def secure(jwks: Path, files: Path) -> Iterator[KafkaCluster]:
    """One node with TLS, SASL and short sessions, where only the harness has rights."""
    authority, listener = Authority(), f"listener.name.{SECURE.lower()}"
    authority.write(files)
    (files / "broker.pem").write_bytes(authority.issue("broker").pem)
    protocols = f"{PLAINTEXT}:PLAINTEXT,{CONTROLLER}:PLAINTEXT,{SECURE}:SASL_SSL"
    with KafkaCluster(
        jwks=jwks,
        sasl_listeners={SECURE: SESSION_MS},
        properties={
            **properties.sasl({SECURE: SESSION_MS}, jwks),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.security.protocol.map": protocols,
            f"{listener}.ssl.keystore.type": "PEM",
            f"{listener}.ssl.keystore.location": str(files / "broker.pem"),
        },
    ) as cluster:
        for user in (WRITER, READER):
            cluster.add_scram_user(user, password_of(user), SCRAM)
        yield cluster


def allow(cluster: KafkaCluster, topic: str, user: str, operation: str) -> None:
    """Grant a user one operation on the topic, as `events topic create` prints it."""
    acl = acl_binding(topic, f"User:{user}", operation)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap()})
    for done in admin.create_acls([acl]).values():
        done.result(60)


@pytest.fixture
def topic(secure: KafkaCluster) -> str:
    """A topic on which each user has one right: write or read."""
    name = f"events-{uuid.uuid4()}"
    secure.create_topic(name)
    for user in (WRITER, GATE):
        allow(secure, name, user, "WRITE")
    allow(secure, name, READER, "READ")
    return name


def properties_of(cluster: KafkaCluster, files: Path, login: dict[str, str], file: Path) -> Path:
    """Write a properties file for the secure listener."""
    found = {
        "bootstrap.servers": cluster.bootstrap(SECURE),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
        **login,
    }
    return write_properties(file, found)


def by_token(file: Path) -> dict[str, str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{module} required;",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def for_some_sessions(step: Callable[[], None]) -> None:
    """Repeat a step for the length of several sessions."""
    until = time.monotonic() + SESSIONS * SESSION_MS / 1000
    while time.monotonic() < until:
        step()


def test_the_deliverer_authenticates_itself_anew_over_tls(
    secure: KafkaCluster, files: Path, topic: str, issuer: Issuer, tmp_path: Path
) -> None:
    """Existing connections re-authenticate, with a token shorter than the test."""
    token, events = tmp_path / "token", tmp_path / "events"

    def renew() -> None:
        (tmp_path / "new").write_text(issuer.mint(WRITER, lifetime=10))
        (tmp_path / "new").replace(token)

    renew()
    file = properties_of(secure, files, by_token(token), tmp_path / "client.properties")
    log, bootstrap, sent = log_in(events), secure.bootstrap(), list[str]()

    def have_arrived() -> bool:
        renew()  # repeatedly, as this may take long
        return arrived(bootstrap, topic, sent)

    def deliver() -> None:
        sent.append(LINE.format("a", len(sent)))
        log.append(sent[-1:], 0.0, WALL)
        eventually(have_arrived, "an event arrives")

    log.append([LINE.format("first", 0)], 0.0, WALL)  # so that the folder exists
    with following(events, topic, "--command-config", str(file)) as process:

        def connections_last() -> bool:
            """On a busy machine a client may renew too late and be disconnected."""
            deliver()
            connected = set(sockets_of(process.pid))
            for_some_sessions(deliver)
            return set(sockets_of(process.pid)) == connected

        for_some_sessions(deliver)
        eventually(connections_last, "connections outlive sessions")
    told = (tmp_path / "deliverer.log").read_text()
    assert "does not take them" not in told
    assert token.read_text() not in told


def test_without_the_right_each_command_says_so(
    secure: KafkaCluster, files: Path, topic: str, tmp_path: Path
) -> None:
    """A writer may describe but not read; a reader may not write."""
    of_writer = properties_of(
        secure, files, by_password(WRITER, SCRAM), tmp_path / "writer.properties"
    )
    of_reader = properties_of(
        secure, files, by_password(READER, SCRAM), tmp_path / "reader.properties"
    )
    producer = confluent.Producer({"bootstrap.servers": secure.bootstrap()})
    producer.produce(topic, LINE.format("a", 0))
    assert producer.flush(60) == 0
    events = tmp_path / "events"
    log_in(events).append(lines("a", range(3)), 0.0, WALL)
    read = ["report", "--events", f"kafka:{topic}", "--out", str(tmp_path / "report")]
    create = ["events", "topic", "create", f"{topic}-new"]
    denied = "there is no right on this topic for that"
    for arguments, file, problem in (
        (read, of_writer, f"reauth-proxy: kafka:{topic}: {denied}"),
        (create, of_reader, f"reauth-proxy: kafka:{topic}-new: {denied}"),
    ):
        result = CliRunner().invoke(app, [*arguments, "--command-config", str(file)])
        assert result.exit_code in (1, 2)
        assert result.stderr.splitlines()[-1] == problem
    mistaken = tmp_path / "mistaken.properties"
    mistaken.write_text(of_reader.read_text().replace(password_of(READER), "wrong"))
    result = CliRunner().invoke(app, [*read, "--command-config", str(mistaken)])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"reauth-proxy: kafka:{topic}: ")
    assert "uthentication failed" in result.stderr
    assert "wrong" not in result.stderr
    log = tmp_path / "deliverer.log"
    with following(events, topic, "--command-config", str(of_reader)):
        told = f"kafka:{topic} does not take them: it may write to no topic"
        eventually(lambda: told in log.read_text(), "the failure is logged")
        allow(secure, topic, READER, "WRITE")
        sent = lines("a", range(3))
        eventually(lambda: arrived(secure.bootstrap(), topic, sent), "the events arrive")
    assert "Traceback" not in log.read_text()
    assert "rdkafka" not in log.read_text()
    assert len(messages(secure.bootstrap(), topic)) >= 4


def test_the_way_from_a_topic_that_is_made_to_its_report(
    secure: KafkaCluster, files: Path, tmp_path: Path
) -> None:
    """As in docs/fleet.md: the printed commands grant the required rights."""
    topic, events, out = f"events-{uuid.uuid4()}", tmp_path / "events", tmp_path / "report"
    servers = ["--bootstrap-server", secure.bootstrap()]
    create = ["events", "topic", "create", topic, *servers]
    made = CliRunner().invoke(app, [*create, "--writer", WRITER, "--reader", READER])
    assert made.exit_code == 0, made.output
    for line in made.stdout.splitlines():
        tool, *arguments = shlex.split(line)
        assert tool == "kafka-acls.sh"
        done = java.run_tool("kafka-acls", arguments)
        assert done.exit_status == 0, done
    log_in(events).append(lines("a", range(3)), 0.0, WALL)
    logins = {}
    for user in (WRITER, READER):
        file = properties_of(
            secure, files, by_password(user, SCRAM), tmp_path / f"{user}.properties"
        )
        logins[user] = ["--command-config", str(file)]
    delivered = CliRunner().invoke(app, [*command(events, topic), *logins[WRITER]])
    assert delivered.output == "3 events delivered\n"
    arguments = ["report", "--events", f"kafka:{topic}", "--state", str(tmp_path / "state")]
    report = CliRunner().invoke(app, [*arguments, "--out", str(out), *logins[READER]])
    assert report.exit_code == 0, report.output
    assert json.loads((out / "report.json").read_text())["lines"]["lines"] == 3
