"""Quotas with real clients: limits and throttle times, compared with Kafka's.

Most tests use two workers, so that what is shared is; each has users or client ids of its own.
Only figures independent of the machine are compared with Kafka: a request's throttle time, and the
bounds that the arithmetic of KIP-13 and KIP-599 sets."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD
from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.quotas import (
    MUTATIONS,
    PRODUCER,
    SCRAM,
    Side,
    Told,
    enforcing_quotas,
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
