"""Quotas with real clients: limits and throttle times, compared with Kafka's.

Most tests use two workers, so that what is shared is; each has users or client ids of its own.
Only figures independent of the machine are compared with Kafka: a request's throttle time, and the
bounds that the arithmetic of KIP-13, KIP-599 and KIP-612 sets to many."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, log_in
from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster
from tests.support.kafka.quotas import (
    CONNECTIONS,
    CONSUMER,
    MUTATIONS,
    PRODUCER,
    SCRAM,
    WINDOW_SECONDS,
    Side,
    Storm,
    Told,
    enforcing_quotas,
    produce_frame,
    set_kafkas,
    set_quota,
    told_by_librdkafka,
)
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("no_quotas")]


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    with enforcing_quotas(kafka, jwks, tmp_path_factory.mktemp("quotas")) as process:
        yield process


@pytest.fixture
def someone(kafka: KafkaCluster, proxy: ProxyProcess, issuer: Issuer) -> User:
    """A new user for each test, known to Kafka and to the proxy."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    kafka.add_scram_user(name, password_of(name))
    proxy.add_user(name, password_of(name), SCRAM)
    return user(issuer, SCRAM, name)


# --- throttle times compared with Kafka's


def test_throttles_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Compares the announced throttle time of a burst."""
    set_kafkas(kafka, PRODUCER, 2_000.0, "user", someone.name)
    set_quota(proxy, PRODUCER, 2_000, user=someone.name)
    proxy.until_known()
    theirs_at = str(kafka.address(listener="LONG"))
    theirs = told_by_librdkafka(someone, theirs_at, topic, "any", 26_000)
    ours = told_by_librdkafka(someone, bootstrap, topic, "any", 26_000)
    # 26,100 bytes at 2,000 a second are 13.05 s, and the window has 10
    assert theirs == pytest.approx(3.05, abs=0.3)
    assert ours == pytest.approx(theirs, abs=0.2)
    set_kafkas(kafka, PRODUCER, None, "user", someone.name)


def test_holds_consumers_as_long_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """400 kB at 20 kB/s take 20 s, less one window that passes at once."""
    limit, messages, size = 20_000, 40, 10_000
    set_kafkas(kafka, CONSUMER, float(limit), "user", someone.name)
    set_quota(proxy, CONSUMER, limit, user=someone.name)
    unlimited = confluent.Producer({"bootstrap.servers": str(kafka.address())})
    for _ in range(messages):
        unlimited.produce(topic, b"x" * size)
        assert unlimited.flush(DEADLINE_SECONDS) == 0
    proxy.until_known()
    at_least = (messages * size - 12_000) / limit - WINDOW_SECONDS - 1
    took, held = [], []
    for where in (str(kafka.address(listener="LONG")), bootstrap):
        reported: list[float] = []
        settings = someone.confluent(where) | {"group.id": f"g-{uuid.uuid4()}"}
        small = {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 12_000}
        heard = {
            "throttle_cb": lambda event, reported=reported: reported.append(event.throttle_time)
        }
        began = time.monotonic()
        consumer = confluent.Consumer(settings | small | heard)
        consumer.assign([confluent.TopicPartition(topic, 0, 0)])
        assert len(consumer.consume(messages, DEADLINE_SECONDS)) == messages
        took.append(time.monotonic() - began)
        held.append(sum(reported))
        consumer.close()
    assert min(took) > at_least
    # Throttling overlaps with the delays of a busy machine: neither exceeds the other in total.
    assert held[0] < took[1] + 2.0, (took, held)
    assert held[1] < took[0] + 2.0, (took, held)
    set_kafkas(kafka, CONSUMER, None, "user", someone.name)


def test_lets_as_many_connections_in_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """Thirty connections at once, at one per second, from separate addresses."""
    elsewhere = "127.0.0.7"
    set_kafkas(kafka, CONNECTIONS, 1.0, "ip", elsewhere)
    set_quota(proxy, CONNECTIONS, 1, ip=elsewhere)
    proxy.until_known()
    for address in (kafka.address(), proxy.addresses()["LONG"]):
        storm = Storm(address, 30, elsewhere)
        assert WINDOW_SECONDS <= storm.served <= WINDOW_SECONDS + 2 + storm.seconds
    set_kafkas(kafka, CONNECTIONS, None, "ip", elsewhere)


# --- a connection for each request

TOPIC = "reconnects"
LIMIT = 10_000.0
SECONDS = 20.0


def produced(address: Address) -> tuple[float, float]:
    """Bytes and seconds of requests that each use a new connection."""
    frame = produce_frame(TOPIC, 10_000, 1)
    passed, began = 0, time.monotonic()
    while (seconds := time.monotonic() - began) < SECONDS:
        with WireClient(address) as client:
            log_in(client, "mallory")
            client.raw(frame)
            answer = client.receive()
            assert isinstance(answer, bytes), answer
        passed += len(frame)
    return passed, seconds


def test_who_reconnects_gets_no_more_than_its_quota(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """Kafka throttles the closed connection, so the client gets several times its quota."""
    kafka.create_topic(TOPIC)
    kafka.add_scram_user("mallory", PASSWORD)
    proxy.add_user("mallory", PASSWORD, SCRAM)
    set_kafkas(kafka, PRODUCER, LIMIT, "user", "mallory")
    set_quota(proxy, PRODUCER, LIMIT, user="mallory")
    proxy.until_known()
    passed, seconds = produced(proxy.addresses()["LONG"])
    theirs, their_seconds = produced(kafka.address(listener="LONG"))
    set_kafkas(kafka, PRODUCER, None, "user", "mallory")
    assert passed <= LIMIT * (seconds + WINDOW_SECONDS + 1) + 2 * 10_100
    assert theirs > 1.5 * LIMIT * (their_seconds + WINDOW_SECONDS + 1)


# --- controller_mutation_rate

RATE = 0.5
"""Partitions per second; the bucket holds 5.5."""
MANY = 33
"""Partitions that put the bucket in debt for more than 54 s."""


def validated(side: Side) -> Iterator[Told]:
    """validateOnly requests cost the same."""
    yield side.create(7, validate=True, v=MANY)
    yield side.create(7, a=1)


def strict(side: Side) -> Iterator[Told]:
    """Newer versions are refused once the second topic overdraws the bucket."""
    yield side.create(7, a=2, b=MANY, c=1)
    side.until_known(a=2, b=MANY)
    yield side.create(7, a=1, d=1)
    yield side.grow(3, a=3, b=MANY + 1, nobody=9)
    yield side.delete(6, "a", "nobody")
    yield side.create(6, e=1)
    yield side.delete(5, "b")


def permissive(side: Side) -> Iterator[Told]:
    """Requests of older versions are executed and throttled."""
    yield side.create(5, a=3, b=MANY)
    side.until_known(a=3, b=MANY)
    yield side.grow(2, a=4)
    yield side.create(5, a=1)
    yield side.delete(4, "b")


@pytest.mark.parametrize("program", [validated, strict, permissive])
def test_is_kafkas(kafka: KafkaCluster, proxy: ProxyProcess, program: Any) -> None:
    """Errors per topic and debts equal Kafka's."""
    sides = []
    for address in (kafka.address(listener="LONG"), proxy.addresses()["LONG"]):
        name = f"m-{uuid.uuid4().hex[:8]}"
        kafka.add_scram_user(name, PASSWORD)
        proxy.add_user(name, PASSWORD, SCRAM)
        set_kafkas(kafka, MUTATIONS, RATE, "user", name)
        set_quota(proxy, MUTATIONS, RATE, user=name)
        sides.append(Side(address, name))
    proxy.until_known()
    with ThreadPoolExecutor() as pool:
        kafkas, ours = pool.map(lambda side: list(program(side)), sides)
    assert [one.errors for one in ours] == [one.errors for one in kafkas]
    assert any(89 in one.errors.values() for one in ours) is (program is not permissive)
    for mine, theirs in zip(ours, kafkas, strict=True):
        assert (mine.throttle_time > 0) is (theirs.throttle_time > 0), (ours, kafkas)
        if mine.throttle_time > 0:
            low, high = mine.debt_since(ours[0])
            their_low, their_high = theirs.debt_since(kafkas[0])
            assert low <= their_high + 0.1, (ours, kafkas)
            assert their_low <= high + 0.1, (ours, kafkas)
