"""Delivery of the event log to a topic of a real Kafka."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

import confluent_kafka as confluent
import pytest
from typer.testing import CliRunner

from benchmarks.events.generate import generate
from metrics.delivery.deliverer import DeliveryFailed
from metrics.delivery.selection import connection_of
from metrics.delivery.spool import Batch, SpoolFile
from proxy.cli import app
from proxy.delivery import topic as delivery
from proxy.delivery.topic import TopicSink
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.clients import by_password, password_of, write_properties
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
from tests.support.kafka.quotas import PRODUCER, set_kafkas
from tests.support.proxy_process import eventually

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
