"""Commands that manage the topic for events, on a real Kafka."""

import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from tests.support.kafka.clients import confluent_admin as admin
from tests.support.kafka.cluster import KafkaCluster
from tests.support.proxy_process import eventually

pytestmark = pytest.mark.kafka

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
