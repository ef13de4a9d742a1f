"""controller_mutation_rate beside Kafka's own: the same requests, against both (KIP-599)."""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin as librdkafka
import pytest

from proxy.quota.model import QuotaKey
from proxy.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.kafka.acl_side import PASSWORD, Client
from tests.kafka.cluster import KafkaCluster
from tests.kafka.conftest import add_users, user
from tests.kafka.java import Finished
from tests.kafka.proxied import ProxyProcess, gateway_config
from tests.kafka.test_quotas import (
    ALTER,
    KNOWN_WITHIN_SECONDS,
    alteration,
    entities,
    ops,
    set_quota,
)
from tests.kafka.tokens import Issuer
from tests.kafka.wire_client import Address

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
MUTATIONS = QuotaKey.CONTROLLER_MUTATION_RATE.value
RATE = 0.5
"""Partitions per second: the bucket holds five and a half."""
METADATA = 3
KNOWN = 10.0
"""Seconds until a broker knows of a topic that its controller made."""
TIMEOUT_MS = 20_000


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config |= {"quotas": {"mode": "enforce"}, "workers": 2}
    process = ProxyProcess(config, tmp_path_factory.mktemp("mutations"))
    add_users(process)
    with process:
        yield process


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an answer says, but for names that are one side's own."""

    errors: Mapping[str, int]
    throttle_time: float


class Side:
    """A server under test, a user of its own, and the topics it made."""

    def __init__(self, address: Address, name: str) -> None:
        self._client = Client(address, name)
        self._prefix = f"{name}-"
        self.began = time.monotonic()

    def name(self, short: str) -> str:
        return self._prefix + short

    def ask(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Told:
        answer = self._client.ask(api_key, version, dict(fields))
        results = next(
            getattr(answer, name)
            for name in ("topics", "responses", "results")
            if hasattr(answer, name)
        )
        return Told(
            errors={one.name.removeprefix(self._prefix): int(one.error_code) for one in results},
            throttle_time=answer.throttle_time.total_seconds(),
        )

    def create(self, version: int, *, validate: bool = False, **topics: int) -> Told:
        listed = [
            {
                "name": self.name(name),
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for name, partitions in topics.items()
        ]
        fields = {"topics": listed, "timeout": TIMEOUT_MS, "validate_only": validate}
        return self.ask(CREATE_TOPICS, version, fields)

    def grow(self, version: int, **topics: int) -> Told:
        listed = [
            {"name": self.name(name), "count": count, "assignments": None}
            for name, count in topics.items()
        ]
        fields = {"topics": listed, "timeout": TIMEOUT_MS, "validate_only": False}
        return self.ask(CREATE_PARTITIONS, version, fields)

    def delete(self, version: int, *topics: str) -> Told:
        names = [self.name(name) for name in topics]
        fields: dict[str, Any] = {"timeout": TIMEOUT_MS, "topic_names": names}
        if version >= 6:
            listed = [{"name": name, "topic_id": None} for name in names]
            fields = {"timeout": TIMEOUT_MS, "topics": listed}
        return self.ask(DELETE_TOPICS, version, fields)

    def until_known(self, **partitions: int) -> None:
        """Wait until the broker knows what the controller did."""
        names = [{"name": self.name(name), "topic_id": None} for name in partitions]
        deadline = time.monotonic() + KNOWN
        while time.monotonic() < deadline:
            fields = {
                "topics": names,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            }
            answer = self._client.ask(METADATA, 12, fields)
            counts = [len(one.partitions) for one in answer.topics]
            if counts == list(partitions.values()):
                return
            time.sleep(0.05)
        raise AssertionError(partitions)

    def close(self) -> None:
        self._client.close()


def strict(side: Side) -> Iterator[Told]:
    """Versions that are refused: the bucket is overdrawn by the second topic."""
    yield side.create(7, validate=True, v=1)
    yield side.create(7, a=2, b=7, c=1)
    yield side.create(7, a=1, d=1)
    yield side.grow(3, a=3, b=7, nobody=9)
    side.until_known(a=2, b=7)
    yield side.delete(6, "a", "nobody")
    time.sleep(9.0)
    yield side.delete(5, "b")
    yield side.delete(6, "a")
    yield side.create(6, e=1)


def permissive(side: Side) -> Iterator[Told]:
    """Older versions are done, and throttled."""
    yield side.create(5, a=3, b=3)
    side.until_known(a=3, b=3)
    yield side.grow(2, a=4)
    yield side.create(5, a=1)
    yield side.delete(4, "b")


@pytest.mark.parametrize("program", [strict, permissive])
def test_is_kafkas(kafka: KafkaCluster, proxy: ProxyProcess, program: Any) -> None:
    """The same errors topic by topic, the same throttle times but for what a request takes."""
    both: list[list[Told]] = []
    for address in (kafka.address(listener="LONG"), proxy.addresses()["LONG"]):
        name = f"m-{uuid.uuid4().hex[:8]}"
        kafka.add_scram_user(name, PASSWORD)
        proxy.add_user(name, PASSWORD, SCRAM)
        entity = entities(("user", name))
        if address == kafka.address(listener="LONG"):
            kafka.ask(ALTER, 1, **alteration(entity, ops((MUTATIONS, RATE)))[1])
        else:
            set_quota(proxy, MUTATIONS, RATE, user=name)
        time.sleep(KNOWN_WITHIN_SECONDS)
        side = Side(address, name)
        both.append(list(program(side)))
        side.close()
    kafkas, ours = both
    assert [one.errors for one in ours] == [one.errors for one in kafkas]
    assert any(89 in one.errors.values() for one in ours) or program is permissive
    for mine, theirs in zip(ours, kafkas, strict=True):
        assert mine.throttle_time == pytest.approx(theirs.throttle_time, abs=0.6), (ours, kafkas)


def test_tools_and_libraries_are_told(proxy: ProxyProcess, issuer: Issuer, tmp_path: Path) -> None:
    """Java's tool shows the refusal; librdkafka's older request is done, and the next one waits."""
    bootstrap = str(proxy.addresses()["LONG"])
    set_quota(proxy, MUTATIONS, RATE, user="carol")
    time.sleep(KNOWN_WITHIN_SECONDS)
    carol = user(issuer, SCRAM)
    made = [f"tools-{uuid.uuid4()}" for _ in range(4)]

    def create(name: str) -> Finished:
        options = ("--create", "--topic", name, "--partitions", "7", "--replication-factor", "1")
        return carol.java(tmp_path).run_tool("kafka-topics", bootstrap, *options)

    first, second = create(made[0]), create(made[1])
    assert first.exit_status == 0, first
    assert second.exit_status != 0
    assert "throttling quota has been exceeded" in second.stdout + second.stderr, second
    admin = librdkafka.AdminClient(carol.confluent(bootstrap))
    for name in made[2:]:
        began = time.monotonic()
        topic = librdkafka.NewTopic(name, 2, 1)  # type: ignore[attr-defined] # it is there
        admin.create_topics([topic])[name].result(60)
    assert time.monotonic() - began > 2.0
    assert proxy.metric("quota_mutations_total") >= 7 + 2 * 2
    assert proxy.metric("quota_throttles_total", quota=MUTATIONS) >= 2
    assert "user=carol is throttled" in proxy.log()
