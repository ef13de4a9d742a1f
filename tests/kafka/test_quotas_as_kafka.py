"""How long Kafka throttles and how long the proxy does: the same clients, one after the other.

Compared is what the machine has no part in: the wait that is told of one request, and the bounds
that the arithmetic of KIP-13 and KIP-612 sets to many.
"""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.quotas import (
    CONNECTIONS,
    CONSUMER,
    PRODUCER,
    SCRAM,
    WINDOW_SECONDS,
    Storm,
    enforcing_quotas,
    remove_quotas,
    set_kafkas,
    set_quota,
    told_by_librdkafka,
)
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
    """A user of this test alone, on both."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    kafka.add_scram_user(name, password_of(name))
    proxy.add_user(name, password_of(name), SCRAM)
    return user(issuer, SCRAM, name)


def test_throttles_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """A burst, and the wait that it is told."""
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
    """400 kB at 20 kB/s are 20 s, of which a window's worth passes at once."""
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
    # What the machine takes is not waited for, so nobody is held for longer than the other takes.
    assert held[0] < took[1] + 2.0, (took, held)
    assert held[1] < took[0] + 2.0, (took, held)
    set_kafkas(kafka, CONSUMER, None, "user", someone.name)


def test_lets_as_many_connections_in_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """Thirty at once at one per second; from an address of their own, on both."""
    elsewhere = "127.0.0.7"
    set_kafkas(kafka, CONNECTIONS, 1.0, "ip", elsewhere)
    set_quota(proxy, CONNECTIONS, 1, ip=elsewhere)
    proxy.until_known()
    for address in (kafka.address(), proxy.addresses()["LONG"]):
        storm = Storm(address, 30, elsewhere)
        assert WINDOW_SECONDS <= storm.served <= WINDOW_SECONDS + 2 + storm.seconds
    set_kafkas(kafka, CONNECTIONS, None, "ip", elsewhere)


def test_an_address_that_connects_too_often_is_turned_away(proxy: ProxyProcess) -> None:
    """KIP-612; a window's worth passes at once, further ones are closed after a while."""
    mine = "127.0.0.1"
    set_quota(proxy, CONNECTIONS, 1, ip=mine)
    proxy.until_known()
    address = proxy.addresses()["LONG"]
    before = proxy.metric("connections_closed_total", reason="connection_rate")
    storm = Storm(address, 30, mine)
    assert WINDOW_SECONDS <= storm.served <= WINDOW_SECONDS + 2 + storm.seconds
    now = proxy.metric("connections_closed_total", reason="connection_rate")
    assert now - before == storm.refused > 0
    remove_quotas(proxy)
    proxy.until_known()
    wait_until(lambda: Storm(address, 1, mine).served == 1, what="nobody gets in any more")
