"""Common client operations through the proxy: three libraries, both ways of routing.

All clients are real; each test has its own topics and groups.
"""

import json
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka as python
import pytest
from kafka.admin import NewTopic as PythonNewTopic

from tests.support.kafka.clients import MECHANISMS, User, confluent_admin, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import is_since
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

DEADLINE = 120.0


@pytest.fixture
def bootstrap(clients_proxy: ProxyProcess) -> str:
    return str(clients_proxy.addresses()["LONG"])


@pytest.fixture(params=MECHANISMS)
def anyone(request: pytest.FixtureRequest, issuer: Issuer) -> User:
    return user(issuer, request.param)


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """A topic with two partitions that accepts messages over 1 MB."""
    name = f"clients-{uuid.uuid4()}"
    kafka.create_topic(name, partitions=2, configs={"max.message.bytes": "2000000"})
    return name


def consumed(
    who: User, bootstrap: str, topic: str, count: int, **more: Any
) -> list[confluent.Message]:
    """Consume this many messages with a new group, from the beginning."""
    settings = {"group_id": f"g-{uuid.uuid4()}", "auto_offset_reset": "earliest", **more}
    consumer = confluent.Consumer(who.confluent(bootstrap, **settings))
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, timeout=DEADLINE)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    assert [message.error() for message in messages] == [None] * count
    return messages


def values(messages: list[confluent.Message]) -> set[bytes]:
    return {message.value() or b"" for message in messages}


# --- produce and consume


_PRODUCERS: dict[str, dict[str, Any]] = {
    "acks=1": {"acks": 1},
    "acks=all": {"acks": "all"},
    **{name: {"compression_type": name} for name in ("gzip", "snappy", "lz4", "zstd")},
}


def test_confluent_produces_and_consumes(anyone: User, bootstrap: str, topic: str) -> None:
    sent = {f"message {number}".encode() for number in range(100)}
    producer = confluent.Producer(anyone.confluent(bootstrap, enable_idempotence=True))
    for value in sent:
        producer.produce(topic, value, on_delivery=_delivered)
    assert producer.flush(DEADLINE) == 0
    assert values(consumed(anyone, bootstrap, topic, len(sent))) == sent


def test_every_kind_of_producer(carol: User, bootstrap: str, topic: str) -> None:
    sent = set()
    for label, settings in _PRODUCERS.items():
        producer = confluent.Producer(carol.confluent(bootstrap, **settings))
        for number in range(20):
            value = f"{label} {number}".encode() * 50
            producer.produce(topic, value, on_delivery=_delivered)
            sent.add(value)
        assert producer.flush(DEADLINE) == 0
    assert values(consumed(carol, bootstrap, topic, len(sent))) == sent


def test_python_produces_and_consumes(anyone: User, bootstrap: str, topic: str) -> None:
    sent = set()
    for settings in ({"acks": 1}, {"acks": "all", "compression_type": "gzip"}):
        producer = python.KafkaProducer(**anyone.python(bootstrap, **settings))
        for number in range(20):
            value = f"{settings} {number}".encode()
            producer.send(topic, value)
            sent.add(value)
        producer.flush(DEADLINE)
        producer.close()
    consumer = python.KafkaConsumer(
        topic,
        **anyone.python(bootstrap),
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(1000 * DEADLINE),
    )
    seen = {next(consumer).value for _ in sent}
    consumer.commit()
    consumer.close()
    assert seen == sent


def test_java_does_all_that_an_application_does(
    carol: User, bootstrap: str, tmp_path: Path
) -> None:
    """Administration, producing, aborted and committed transactions, an ordered group read."""
    done = carol.java(tmp_path).run("RoundTrip", bootstrap, f"round-trip-{uuid.uuid4()}", "100")
    assert done.exit_status == 0, done.stderr
    steps = {event["step"]: event for event in map(json.loads, done.stdout.splitlines())}
    assert list(steps) == ["admin", "produce", "transaction", "group", "done"]
    assert steps["group"]["in_order"]


def test_producer_that_wants_no_answer(carol: User, bootstrap: str, topic: str) -> None:
    """acks=0 requests have no response and must not shift the others."""
    producer = confluent.Producer(carol.confluent(bootstrap, acks=0))
    sent = {f"unanswered {number}".encode() for number in range(50)}
    for value in sorted(sent):
        producer.produce(topic, value)
    assert producer.flush(DEADLINE) == 0
    producer.list_topics(topic, timeout=DEADLINE)
    assert values(consumed(carol, bootstrap, topic, len(sent))) == sent


def test_messages_of_a_megabyte(carol: User, bootstrap: str, topic: str) -> None:
    settings = {"message_max_bytes": 1_500_000, "compression_type": "none"}
    producer = confluent.Producer(carol.confluent(bootstrap, **settings))
    sent = {bytes([65 + number]) * 1_000_000 for number in range(8)}
    for value in sent:
        producer.produce(topic, value, on_delivery=_delivered)
    assert producer.flush(DEADLINE) == 0
    assert values(consumed(carol, bootstrap, topic, len(sent))) == sent


def _delivered(error: confluent.KafkaError | None, _: confluent.Message) -> None:
    assert error is None, error


# --- groups


@pytest.mark.parametrize(
    "protocol",
    [
        "classic",
        pytest.param(
            "consumer",
            marks=pytest.mark.skipif(not is_since("4"), reason="switched off before Kafka 4"),
        ),
    ],
)
def test_two_members_share_a_group(carol: User, bootstrap: str, topic: str, protocol: str) -> None:
    """With the classic and the KIP-848 protocol, a second member takes over a partition."""
    more: dict[str, Any] = {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
    }
    if protocol == "classic":
        more["heartbeat_interval_ms"] = 300
    members = [confluent.Consumer(carol.confluent(bootstrap, **more)) for _ in range(2)]

    def shares() -> list[int]:
        for member in members:
            member.poll(0.1)
        return [len(member.assignment()) for member in members]

    try:
        members[0].subscribe([topic])
        wait_until(lambda: shares() == [2, 0], what="the first did not get all")
        members[1].subscribe([topic])
        wait_until(lambda: shares() == [1, 1], what="the second did not get its share")
        members[0].close()
        del members[0]
        wait_until(lambda: shares() == [2], what="the share of who left was not taken")
    finally:
        for member in members:
            member.close()


# --- administration


def test_confluent_administers(carol: User, bootstrap: str) -> None:
    admin = _ready(confluent_admin.AdminClient(carol.confluent(bootstrap)))
    name = f"admin-{uuid.uuid4()}"
    _all(admin.create_topics([confluent_admin.NewTopic(name, 1, 1)]))
    wait_until(lambda: name in admin.list_topics(timeout=DEADLINE).topics, what="not made")
    description = admin.describe_topics(confluent.TopicCollection([name]))[name].result(DEADLINE)
    assert [len(partition.isr) for partition in description.partitions] == [1]

    entry = confluent_admin.ConfigEntry(
        "retention.ms", "12345", incremental_operation=confluent_admin.AlterConfigOpType.SET
    )
    resource = confluent_admin.ConfigResource(
        confluent_admin.ResourceType.TOPIC, name, incremental_configs=[entry]
    )
    _all(admin.incremental_alter_configs([resource]))
    asked = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, name)
    wait_until(
        lambda: _all(admin.describe_configs([asked]))[0]["retention.ms"].value == "12345",
        what="the setting did not arrive",
    )

    producer = confluent.Producer(carol.confluent(bootstrap))
    producer.produce(name, b"one")
    assert producer.flush(DEADLINE) == 0
    consumed(carol, bootstrap, name, 1, group_id=name)
    (group,) = _all(admin.describe_consumer_groups([name]))
    assert group.group_id == name
    wanted = confluent.ConsumerGroupTopicPartitions(name)
    (offsets,) = _all(admin.list_consumer_group_offsets([wanted]))
    assert [one.offset for one in offsets.topic_partitions] == [1]
    latest = {confluent.TopicPartition(name, 0): confluent_admin.OffsetSpec.latest()}
    (found,) = _all(admin.list_offsets(latest))
    assert found.offset == 1

    _all(admin.delete_consumer_groups([name]))
    _all(admin.delete_topics([name]))
    wait_until(lambda: name not in admin.list_topics(timeout=DEADLINE).topics, what="not gone")


def test_python_administers(carol: User, bootstrap: str) -> None:
    admin = python.KafkaAdminClient(**carol.python(bootstrap))
    name = f"admin-{uuid.uuid4()}"
    admin.create_topics([PythonNewTopic(name=name, num_partitions=1, replication_factor=1)])
    wait_until(lambda: name in admin.list_topics(), what=f"no topic {name}")
    assert len(admin.describe_cluster()["brokers"]) == 1
    admin.delete_topics([name])
    admin.close()


def _ready(admin: Any) -> Any:
    admin.poll(0)
    return admin


def _all(futures: dict[Any, "Future[Any]"]) -> list[Any]:
    return [each.result(DEADLINE) for each in futures.values()]
