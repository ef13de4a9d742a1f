"""Commands that manage the topic for events, on a real Kafka."""

import json
import time
import uuid
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from tests.support.kafka.cluster import KafkaCluster
from tests.support.proxy_process import eventually

pytestmark = pytest.mark.kafka

NOBODY = "127.0.0.1:1"
"""An address without a broker."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["events", "topic", *arguments])


def status_of(kafka: KafkaCluster, topic: str) -> dict[str, Any]:
    result = invoke("status", topic, "--bootstrap-server", kafka.bootstrap(), "-o", "json")
    assert result.exit_code == 0, result.output
    status: dict[str, Any] = json.loads(result.stdout)
    return status


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
    asked = ["status", topic, "--bootstrap-server", servers]
    eventually(lambda: invoke(*asked).exit_code == 0, "its partitions have leaders")
    empty = status_of(kafka, topic)
    assert empty["retention_ms"] == 30 * 86_400_000
    assert empty["partitions"] == [
        {
            "partition": number,
            "leader": 1,
            "replicas": 1,
            "in_sync": 1,
            "first": 0,
            "end": 0,
            "newest_ms": None,
        }
        for number in range(3)
    ]
    again = invoke("create", topic, "--bootstrap-server", servers)
    assert again.exit_code == 1
    assert again.stderr == f"reauth-proxy: kafka:{topic}: there is such a topic already\n"
    producer = confluent.Producer({"bootstrap.servers": servers})
    newest, failed = time.time_ns() // 1_000_000, list[str]()

    def note(error: confluent.KafkaError | None, _message: confluent.Message) -> None:
        if error is not None:
            failed.append(str(error))

    for stamp in (newest, newest - 1_000_000):
        producer.produce(topic, b"{}", partition=1, timestamp=stamp, on_delivery=note)
    assert producer.flush(60) == 0
    assert not failed
    one = status_of(kafka, topic)["partitions"][1]
    assert (one["first"], one["end"], one["newest_ms"]) == (0, 2, newest)
    shown = invoke(*asked)
    assert shown.stdout.splitlines()[0].split() == [
        "PARTITION",
        "LEADER",
        "IN",
        "SYNC",
        "MESSAGES",
        "NEWEST",
    ]
    assert shown.stderr == "reauth-proxy: events are kept for 30 d\n"


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
    missing = "kafka:missing: there is no such topic, or it may not be described"
    nobody = "kafka:t: no broker answers; check the address, and how clients must connect"
    replicas = "kafka:t: there are fewer brokers than replicas are asked for"
    name = "the topic must be 1 to 249 letters, digits, dots, hyphens, or _"
    for arguments, status, problem in (
        (["status", "missing", *servers], 1, missing),
        (["status", "t", "--bootstrap-server", NOBODY], 1, nobody),
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
    result = invoke("status", "t", "--command-config", str(file))
    assert result.exit_code == 2
    assert str(file) in result.stderr
