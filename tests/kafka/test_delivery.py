"""Delivery of the event log to a topic of a real Kafka."""

import json
import os
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import confluent_kafka as confluent
import confluent_kafka.admin
import pytest
from typer.testing import CliRunner, Result

from benchmarks.events.generate import generate
from metrics.delivery.deliverer import DeliveryFailed
from metrics.delivery.selection import connection_of
from metrics.delivery.spool import Batch, SpoolFile
from proxy.cli import app
from proxy.delivery import topic as delivery
from proxy.delivery.topic import TopicSink
from tests.support.certificates import Authority
from tests.support.delivery import SIZE, report_of
from tests.support.kafka import java, properties
from tests.support.kafka.clients import acl_binding, by_password, password_of, write_properties
from tests.support.kafka.clients import confluent_admin as admin
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
from tests.support.kafka.quotas import PRODUCER, set_kafkas
from tests.support.kafka.upstream import GATE
from tests.support.proxy_process import eventually, sockets_of
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

FILE = SpoolFile(name="events-a.jsonl", inode=1, size=8, modified=0.0, closed=True, begun=None)


def test_the_report_of_the_topic_is_that_of_the_folder(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Partitions are read one after another; each connection's events stay in order."""
    topic = f"events-{uuid.uuid4()}"
    kafka.create_topic(topic, partitions=3)
    events, copy = tmp_path / "events", tmp_path / "copy"
    generate(SIZE, events, parquet=False)
    result = CliRunner().invoke(
        app, command(events, topic, "--bootstrap-server", kafka.bootstrap())
    )
    assert result.exit_code == 0, result.output
    found = messages(kafka.bootstrap(), topic)
    written = [line for path in events.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert sorted(value for _, value in found) == sorted(written)
    assert all(key == connection_of(value) for key, value in found)
    for connection in {key for key, _ in found if key}:
        assert [value for key, value in found if key == connection] == [
            line for line in written if connection_of(line) == connection
        ]
    copy.mkdir()
    (copy / "events-topic.jsonl").write_bytes(b"".join(value + b"\n" for _, value in found))
    assert report_of(events) == report_of(copy)


def test_a_line_that_is_too_long_for_the_topic_is_set_aside(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The surrounding lines arrive, and delivery continues."""
    long = LINE.format("c" * 1_500_000, 0)
    around = [*lines("a", range(3)), long, *lines("b", range(3))]
    (tmp_path / "events-a.jsonl").write_text("".join(f"{line}\n" for line in around))
    for said in ("6 events delivered, 1 lines set aside", "0 events delivered"):
        arguments = command(tmp_path, topic, "--bootstrap-server", kafka.bootstrap())
        result = CliRunner().invoke(app, arguments)
        assert result.output == f"{said}\n"
    found = [value.decode() for _, value in messages(kafka.bootstrap(), topic)]
    assert sorted(found) == sorted(set(around) - {long})


def test_lines_that_are_too_large_together_arrive(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A broker applies `max.message.bytes` to the batch and refuses it as a whole."""
    topic = f"events-{uuid.uuid4()}"
    kafka.create_topic(topic, configs={"max.message.bytes": "10000"})
    short = [LINE.format(uuid.uuid4(), number) for number in range(5000)]
    long = LINE.format(os.urandom(20_000).hex(), 0)
    sent = [*short[:2500], long, *short[2500:]]
    (tmp_path / "events-a.jsonl").write_text("".join(f"{line}\n" for line in sent))
    arguments = command(tmp_path, topic, "--bootstrap-server", kafka.bootstrap())
    result = CliRunner().invoke(app, arguments)
    assert result.output == "5000 events delivered, 1 lines set aside\n"
    found = [value.decode() for _, value in messages(kafka.bootstrap(), topic)]
    assert sorted(found) == sorted(short)


def test_a_refused_login_is_forgotten_after_a_success(kafka: KafkaCluster, topic: str) -> None:
    """A transient failure must not fail later batches."""
    sink = TopicSink(topic, lambda: {"bootstrap.servers": kafka.bootstrap()}, lambda: False)
    batch = Batch(file=FILE, begin=0, end=0, lines=[b"one"])

    def delivered_in_spite_of_it() -> bool:
        with suppress(DeliveryFailed):  # the broker may be slow
            sink.deliver(batch)
            sink._note_problem(confluent.KafkaError(confluent.KafkaError._AUTHENTICATION))
            sink.deliver(batch)
            return True
        return False

    eventually(delivered_in_spite_of_it, "a batch arrives")
    assert (sink._refused, sink._problem) == (False, "")


def test_a_wrong_password_is_told_and_tried_again(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The deliverer reads the file again before it retries."""
    user, events = "late-deliverer", tmp_path / "events"
    kafka.add_scram_user(user, password_of(user))
    settings = {"bootstrap.servers": kafka.bootstrap("LONG"), "security.protocol": "SASL_PLAINTEXT"}
    properties = write_properties(tmp_path / "client.properties", settings | by_password(user))
    right = properties.read_text()
    properties.write_text(right.replace(password_of(user), "no-such-password"))
    log_in(events).append(lines("a", range(2)), 0.0, WALL)
    log = tmp_path / "deliverer.log"
    with following(events, topic, "--command-config", str(properties)):
        eventually(lambda: "does not take them" in log.read_text(), "the failure is told")
        assert "no-such-password" not in log.read_text()
        properties.write_text(right)
        bootstrap = kafka.bootstrap()
        eventually(lambda: arrived(bootstrap, topic, lines("a", range(2))), "they arrive")
        eventually(lambda: "are delivered again" in log.read_text(), "and that is told")


@pytest.mark.slow
def test_a_batch_that_takes_longer_than_the_delivery_may_is_stored_in_portions(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be retried forever, storing its first lines each time."""
    client_id = f"slow-{topic}"
    monkeypatch.setattr(delivery, "_ALWAYS", delivery._ALWAYS | {"delivery.timeout.ms": 2_000})
    settings = {"bootstrap.servers": kafka.bootstrap(), "client.id": client_id}
    sink = TopicSink(topic, lambda: settings, lambda: False)
    sent = [line.encode() for line in lines_of_random_connections(4_000)]
    batch = Batch(file=FILE, begin=0, end=0, lines=sent)
    set_kafkas(kafka, PRODUCER, 40_000, "client-id", client_id)
    try:
        for _ in range(40):
            with suppress(DeliveryFailed):
                assert sink.deliver(batch) == 0
                break
        else:
            pytest.fail("it is never delivered")
    finally:
        set_kafkas(kafka, PRODUCER, None, "client-id", client_id)
    found = [value for _, value in messages(kafka.bootstrap(), topic)]
    assert set(found) == set(sent)
    assert len(found) < 4 * len(sent)


def lines_of_random_connections(count: int) -> list[str]:
    """Lines that hardly compress."""
    return [LINE.format(os.urandom(150).hex(), number) for number in range(count)]


# --- clients of brokers with TLS, SASL, sessions and ACLs

SECURE = "SECURE"
SESSION_MS = 2_000
"""A connection that is used for longer has authenticated itself again."""
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
def secured(secure: KafkaCluster) -> str:
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


@pytest.mark.slow
def test_the_deliverer_authenticates_itself_anew_over_tls(
    secure: KafkaCluster, files: Path, secured: str, issuer: Issuer, tmp_path: Path
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
        return arrived(bootstrap, secured, sent)

    def deliver() -> None:
        sent.append(LINE.format("a", len(sent)))
        log.append(sent[-1:], 0.0, WALL)
        eventually(have_arrived, "an event arrives")

    log.append([LINE.format("first", 0)], 0.0, WALL)  # so that the folder exists
    with following(events, secured, "--command-config", str(file)) as process:

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


@pytest.mark.slow
def test_without_the_right_each_command_says_so(
    secure: KafkaCluster, files: Path, secured: str, tmp_path: Path
) -> None:
    """A writer may describe but not read; a reader may not write."""
    of_writer = properties_of(
        secure, files, by_password(WRITER, SCRAM), tmp_path / "writer.properties"
    )
    of_reader = properties_of(
        secure, files, by_password(READER, SCRAM), tmp_path / "reader.properties"
    )
    producer = confluent.Producer({"bootstrap.servers": secure.bootstrap()})
    producer.produce(secured, LINE.format("a", 0))
    assert producer.flush(60) == 0
    events = tmp_path / "events"
    log_in(events).append(lines("a", range(3)), 0.0, WALL)
    read = ["report", "--events", f"kafka:{secured}", "--out", str(tmp_path / "report")]
    create = ["events", "topic", "create", f"{secured}-new"]
    denied = "there is no right on this topic for that"
    for arguments, file, problem in (
        (read, of_writer, f"reauth-proxy: kafka:{secured}: {denied}"),
        (create, of_reader, f"reauth-proxy: kafka:{secured}-new: {denied}"),
    ):
        result = CliRunner().invoke(app, [*arguments, "--command-config", str(file)])
        assert result.exit_code in (1, 2)
        assert result.stderr.splitlines()[-1] == problem
    mistaken = tmp_path / "mistaken.properties"
    mistaken.write_text(of_reader.read_text().replace(password_of(READER), "wrong"))
    result = CliRunner().invoke(app, [*read, "--command-config", str(mistaken)])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"reauth-proxy: kafka:{secured}: ")
    assert "uthentication failed" in result.stderr
    assert "wrong" not in result.stderr
    log = tmp_path / "deliverer.log"
    with following(events, secured, "--command-config", str(of_reader)):
        told = f"kafka:{secured} does not take them: it may write to no topic"
        eventually(lambda: told in log.read_text(), "the failure is logged")
        allow(secure, secured, READER, "WRITE")
        sent = lines("a", range(3))
        eventually(lambda: arrived(secure.bootstrap(), secured, sent), "the events arrive")
    assert "Traceback" not in log.read_text()
    assert "rdkafka" not in log.read_text()
    assert len(messages(secure.bootstrap(), secured)) >= 4


@pytest.mark.slow
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


# --- the topic for events: commands that manage it

NOBODY = "127.0.0.1:1"
"""An address without a broker."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["events", "topic", *arguments])


def test_a_topic_is_made_and_its_rights_are_commands(kafka: KafkaCluster) -> None:
    topic, servers = f"events-{uuid.uuid4()}", kafka.bootstrap()
    made = invoke(
        "create", topic, "--bootstrap-server", servers, "--writer", "proxy", "--partitions", "3"
    )
    assert made.exit_code == 0, made.output
    to, on = (
        f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal=",
        f"--topic={topic}",
    )
    assert made.stdout.splitlines() == [
        f"{to}User:proxy --operation=Write {on}",
        f"{to}User:REPORT --operation=Read {on}",
    ]
    administrator = admin.AdminClient({"bootstrap.servers": servers})
    eventually(
        lambda: len(administrator.list_topics(topic, timeout=60).topics[topic].partitions) == 3,
        "it has its partitions",
    )
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
    configuration = administrator.describe_configs([resource])[resource].result(60)
    assert configuration["retention.ms"].value == str(30 * 86_400_000)
    again = invoke("create", topic, "--bootstrap-server", servers)
    assert again.exit_code == 1
    assert again.stderr == f"reauth-proxy: kafka:{topic}: there is such a topic already\n"


def test_the_printed_commands_take_the_brokers_from_the_file(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.bootstrap()}\n")
    made = invoke("create", f"events-{uuid.uuid4()}", "--command-config", str(file))
    assert made.exit_code == 0, made.output
    named = f"kafka-acls.sh --bootstrap-server {kafka.bootstrap()} --command-config {file} --add "
    assert [line.startswith(named) for line in made.stdout.splitlines()] == [True, True]


def test_what_cannot_be_done_is_one_line(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = ["--bootstrap-server", kafka.bootstrap()]
    nobody = "kafka:t: no broker answers; check the address, and how clients must connect"
    replicas = "kafka:t: there are fewer brokers than replicas are asked for"
    name = "the topic must be 1 to 249 letters, digits, dots, hyphens, or _"
    for arguments, status, problem in (
        (["create", "t", "--bootstrap-server", NOBODY], 1, nobody),
        (["create", "t", "--replication-factor", "3", *servers], 1, replicas),
        (["create", "a b", *servers], 2, name),
        (["create", "t"], 2, "--bootstrap-server or --command-config is required"),
    ):
        with monkeypatch.context() as patched:
            if NOBODY in arguments:
                patched.setattr("proxy.delivery.topic_admin.TIMEOUT_SECONDS", 5.0)
            result = invoke(*arguments)
        assert result.stderr == f"reauth-proxy: {problem}\n"
        assert (result.exit_code, result.stdout) == (status, "")
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSH\n")
    result = invoke("create", "t", "--command-config", str(file))
    assert result.exit_code == 2
    assert str(file) in result.stderr
