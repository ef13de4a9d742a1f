"""Quotas with real clients: who is throttled, by which limit, and what three libraries show of it.

Through two workers, so that what is shared is; each test has users or client ids of its own.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import kafka as python
import pytest

from tests.support.kafka import java
from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.quotas import (
    CONSUMER,
    PRODUCER,
    SCRAM,
    WINDOW_SECONDS,
    Producing,
    enforcing_quotas,
    set_quota,
    told_by_librdkafka,
    told_in_a_row,
)
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("no_quotas")]

STATIC = 1_900


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    static = {"quota.producer.default": STATIC}
    directory = tmp_path_factory.mktemp("quotas")
    with enforcing_quotas(kafka, jwks, directory, settings=static) as process:
        yield process


@pytest.fixture
def someone(proxy: ProxyProcess, issuer: Issuer) -> User:
    """A user of this test alone."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    proxy.add_user(name, password_of(name), SCRAM)
    return user(issuer, SCRAM, name)


# --- the precedence table of KIP-55


ROWS: list[Callable[[str, str], dict[str, str | None]]] = [
    lambda user, client: {"user": user, "client_id": client},
    lambda user, _: {"user": user, "client_id": None},
    lambda user, _: {"user": user},
    lambda _, client: {"user": None, "client_id": client},
    lambda *_: {"user": None, "client_id": None},
    lambda *_: {"user": None},
    lambda _, client: {"client_id": client},
    lambda *_: {"client_id": None},
]


@pytest.mark.parametrize("row", range(1, 10))
def test_the_first_row_that_has_a_limit_applies(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str, row: int
) -> None:
    """All rows behind it are set too, each to another limit; which one it was, tells the time."""
    client_id = f"client-{row}"
    limits = {number: 1_000 + 100 * number for number in range(row, 9)}
    for number, limit in limits.items():
        set_quota(proxy, PRODUCER, limit, **ROWS[number - 1](someone.name, client_id))
    proxy.until_known()
    reported = told_by_librdkafka(someone, bootstrap, topic, client_id, 40_000)
    by_row = {number: 40_100 / limit for number, limit in (limits | {9: STATIC}).items()}
    found = [
        number for number, wait in by_row.items() if abs(wait - WINDOW_SECONDS - reported) <= 0.3
    ]
    assert found == [row], (reported, by_row)
    explained = json.loads(
        proxy.command(
            "quotas",
            "explain",
            "--user",
            someone.name,
            "--client-id",
            client_id,
            "--output",
            "json",
        )
    )
    (producer,) = (one for one in explained if one["key"] == PRODUCER)
    assert producer["limit"] == (limits | {9: STATIC})[row]


def test_clients_of_a_user_share_what_belongs_to_the_user(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Row 3 is shared by client ids without a quota of their own, row 1 is not."""
    set_quota(proxy, PRODUCER, 1_000, user=someone.name)
    set_quota(proxy, PRODUCER, 1_000, user=someone.name, client_id="apart")
    proxy.until_known()
    clients = [Producing(someone, bootstrap, topic, name) for name in ("one", "apart", "two")]
    one, apart, two = told_in_a_row(clients, 8_000)
    assert one == apart == 0
    assert two > 4


# --- changes, and others


def test_a_change_takes_effect_on_an_open_connection(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    set_quota(proxy, PRODUCER, 10_000_000, user=someone.name)
    proxy.until_known()
    producer = Producing(someone, bootstrap, topic, "open")
    assert producer.send(20_000) == 0
    set_quota(proxy, PRODUCER, 1_000, user=someone.name)
    wait_until(lambda: producer.send(20_000) > 0, what="no change")
    assert max(producer.reported) > 20, "what was used before counts: one message is 10 s"
    assert proxy.metric("quota_throttles_total", quota=PRODUCER) >= 1
    assert proxy.metric("throttled_connections") >= 1
    assert f"user={someone.name} is throttled" in proxy.log()


def test_others_feel_nothing(
    proxy: ProxyProcess, someone: User, issuer: Issuer, bootstrap: str, topic: str
) -> None:
    set_quota(proxy, PRODUCER, 100, user=someone.name)
    set_quota(proxy, PRODUCER, 10_000_000, user="carol")
    proxy.until_known()
    throttled = Producing(someone, bootstrap, topic, "a")
    held = throttled.send(30_000)
    assert held > 200
    began = time.monotonic()
    assert told_by_librdkafka(user(issuer, SCRAM), bootstrap, topic, "b", 30_000) == 0
    assert time.monotonic() - began < held


# --- what libraries show


def test_kafka_python_shows_it(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Its metric, and a producer and a consumer that are slowed down but not disturbed."""
    set_quota(proxy, PRODUCER, 2_000, user=someone.name)
    set_quota(proxy, CONSUMER, 2_000, user=someone.name)
    proxy.until_known()
    together = {"acks": 1, "batch_size": 100_000, "linger_ms": 1_000}
    producer = python.KafkaProducer(**someone.python(bootstrap, **together))
    for _ in range(6):
        producer.send(topic, b"x" * 10_000)
    producer.flush(DEADLINE_SECONDS)
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["throttle-time-max"] > 10_000
    producer.close()
    consumer = python.KafkaConsumer(
        topic,
        **someone.python(bootstrap),
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100_000,
        consumer_timeout_ms=int(1000 * DEADLINE_SECONDS),
    )
    assert [len(next(consumer).value) for _ in range(6)] == [10_000] * 6
    metrics = consumer.metrics()["consumer-metrics"]
    assert metrics["throttle-time-max"] > 10_000
    consumer.close()


def test_javas_metric_shows_it(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Of one request, which is over the limit by itself."""
    set_quota(proxy, PRODUCER, 5_000, user=someone.name)
    proxy.until_known()
    client = someone.java(tmp_path)
    tool = "kafka-producer-perf-test"
    together = ("batch.size=500000", "linger.ms=2000", f"bootstrap.servers={bootstrap}")
    done = java.run_tool(
        tool,
        [
            *("--topic", topic, "--num-records", "20", "--record-size", "10000"),
            *("--throughput", "-1", "--print-metrics"),
            *("--producer.config", str(client.properties)),
            *("--producer-props", *together),
        ],
    )
    assert done.exit_status == 0, done
    (line,) = (one for one in done.stdout.splitlines() if "produce-throttle-time-max" in one)
    assert float(line.rsplit(":", 1)[1]) > 10_000, line
