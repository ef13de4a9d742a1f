"""controller_mutation_rate beside Kafka's own: the same requests, against both (KIP-599)."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka.admin as librdkafka
import pytest

from tests.support.kafka.acl_differential.side import PASSWORD
from tests.support.kafka.clients import password_of, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster
from tests.support.kafka.java import Finished
from tests.support.kafka.quotas import (
    MUTATIONS,
    SCRAM,
    Side,
    Told,
    enforcing_quotas,
    set_kafkas,
    set_quota,
)
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RATE = 0.5
"""Partitions per second: the bucket holds five and a half."""
FULL_WITHIN_SECONDS = 11.0
"""How long a bucket without tokens and without debts takes to fill up."""
MANY = 33
"""Partitions: a debt of more than 54 s, whatever the bucket held."""


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    process = enforcing_quotas(kafka, jwks, tmp_path_factory.mktemp("mutations"))
    process.add_user("dora", password_of("dora"), SCRAM)
    with process:
        yield process


def validated(side: Side) -> Iterator[Told]:
    """What is not done costs as much."""
    yield side.create(7, validate=True, v=MANY)
    yield side.create(7, a=1)


def strict(side: Side) -> Iterator[Told]:
    """Versions that are refused: the bucket is overdrawn by the second topic."""
    yield side.create(7, a=2, b=MANY, c=1)
    side.until_known(a=2, b=MANY)
    yield side.create(7, a=1, d=1)
    yield side.grow(3, a=3, b=MANY + 1, nobody=9)
    yield side.delete(6, "a", "nobody")
    yield side.create(6, e=1)
    yield side.delete(5, "b")


def filled_up(side: Side) -> Iterator[Told]:
    """The second request finds the bucket full again, whenever it comes."""
    side.create(7, a=8)
    debt_seconds = 8 / RATE - FULL_WITHIN_SECONDS
    time.sleep(debt_seconds + FULL_WITHIN_SECONDS + 1)
    side.until_known(a=8)
    yield side.create(6, b=MANY)
    yield side.delete(6, "a")


def permissive(side: Side) -> Iterator[Told]:
    """Older versions are done, and throttled."""
    yield side.create(5, a=3, b=MANY)
    side.until_known(a=3, b=MANY)
    yield side.grow(2, a=4)
    yield side.create(5, a=1)
    yield side.delete(4, "b")


@pytest.mark.parametrize("program", [validated, strict, filled_up, permissive])
def test_is_kafkas(kafka: KafkaCluster, proxy: ProxyProcess, program: Any) -> None:
    """The same errors topic by topic, and the same debts."""
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


def test_tools_and_libraries_are_told(proxy: ProxyProcess, issuer: Issuer, tmp_path: Path) -> None:
    """Java's tool shows the refusal; librdkafka's older request is done, and the next one waits."""
    bootstrap = str(proxy.addresses()["LONG"])
    set_quota(proxy, MUTATIONS, 0.01, user="carol")  # a debt of more than ten minutes
    set_quota(proxy, MUTATIONS, RATE, user="dora")
    proxy.until_known()
    carol = user(issuer, SCRAM)
    made = [f"tools-{uuid.uuid4()}" for _ in range(4)]

    def create(name: str) -> Finished:
        options = ("--create", "--topic", name, "--partitions", "7", "--replication-factor", "1")
        return carol.java(tmp_path).run_tool("kafka-topics", bootstrap, *options)

    first, second = create(made[0]), create(made[1])
    assert first.exit_status == 0, first
    assert second.exit_status != 0
    assert "throttling quota has been exceeded" in second.stdout + second.stderr, second
    admin = librdkafka.AdminClient(user(issuer, SCRAM, "dora").confluent(bootstrap))
    began = time.monotonic()
    for name in made[2:]:
        topic = librdkafka.NewTopic(name, 15, 1)  # type: ignore[attr-defined] # it is there
        admin.create_topics([topic])[name].result(DEADLINE_SECONDS)
    # 15 partitions are 30 s, of which the bucket has 11
    assert time.monotonic() - began > 30 - FULL_WITHIN_SECONDS - 0.5
    assert proxy.metric("quota_mutations_total") >= 7 + 2 * 15
    assert proxy.metric("quota_throttles_total", quota=MUTATIONS) >= 2
    for name in ("carol", "dora"):
        assert f"user={name} is throttled" in proxy.log()
