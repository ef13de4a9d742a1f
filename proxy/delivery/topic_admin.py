"""Administration of the topic of the events, through librdkafka's AdminClient."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition

from metrics.delivery.kafka_errors import Problems
from proxy.delivery.topic import Settings
from proxy.errors import ProxyError, printable

TIMEOUT_SECONDS: Final = 30.0
"""Seconds in which brokers must answer."""

T = TypeVar("T")

_admin: Any = confluent_kafka.admin
"""librdkafka's administration, whose types are incomplete."""


class TopicError(ProxyError):
    """The topic cannot be created or described; the text has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Status of a partition."""

    partition: int
    leader: int | None
    """Id of the leader; None if there is no leader, so that nothing can be written."""
    replicas: int
    in_sync: int
    """Number of its replicas that are in sync."""
    first: int | None
    """Offset of the first message that is kept; None if unknown, as without a leader."""
    end: int | None
    """Offset after the last message; None if unknown."""
    newest_ms: int | None
    """Largest time of a message, epoch ms; None without messages, or if unknown, as with brokers
    before Kafka 3.0 (KIP-734)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Status of a topic."""

    name: str
    partitions: list[PartitionStatus]
    retention_ms: int | None
    """`retention.ms`, -1 if unlimited; None if it cannot be read, as without DESCRIBE_CONFIGS."""


class TopicAdmin:
    """AdminClient for one topic."""

    def __init__(self, topic: str, settings: Settings) -> None:
        """Connect at the first request. Raises TopicError."""
        self._topic = topic
        self._problems = Problems()
        fixed: dict[str, Any] = {"error_cb": self._problems.note, "log_level": 0}
        try:
            self._client = _admin.AdminClient({**settings, **fixed})
        except KafkaException as error:
            raise TopicError(error.args[0].str()) from None
        except SystemError:  # if a callback fails meanwhile
            raise TopicError(printable(self._problems.explained(None))) from None

    def create(self, partitions: int, replication_factor: int, retention_ms: int) -> None:
        """Create it; a replication factor of -1 is the brokers' default. Raises TopicError."""
        try:
            new = _admin.NewTopic(
                self._topic,
                num_partitions=partitions,
                replication_factor=replication_factor,
                config={"cleanup.policy": "delete", "retention.ms": str(retention_ms)},
            )
            made = self._client.create_topics([new], request_timeout=TIMEOUT_SECONDS)
        except (ValueError, OverflowError) as error:  # about numbers that librdkafka rejects
            raise TopicError(str(error)) from None
        self._result(made[self._topic])

    def status(self) -> TopicStatus:
        """Return its status. Raises TopicError."""
        asked = self._client.describe_topics(
            TopicCollection([self._topic]), request_timeout=TIMEOUT_SECONDS
        )
        found = self._result(asked[self._topic])
        ids = [each.id for each in found.partitions]
        first = self._offsets(ids, _admin.OffsetSpec.earliest())
        end = self._offsets(ids, _admin.OffsetSpec.latest())
        newest = self._offsets(ids, _admin.OffsetSpec.max_timestamp())
        return TopicStatus(
            name=self._topic,
            partitions=[
                PartitionStatus(
                    partition=each.id,
                    leader=None if each.leader is None or each.leader.id < 0 else each.leader.id,
                    replicas=len(each.replicas),
                    in_sync=len(each.isr),
                    first=offset(first[each.id]),
                    end=offset(end[each.id]),
                    newest_ms=newest_ms(newest[each.id]),
                )
                for each in found.partitions
            ],
            retention_ms=self._retention_ms(),
        )

    def _offsets(self, partitions: list[int], which: Any) -> Mapping[int, "Future[Any]"]:
        asked = {TopicPartition(self._topic, each): which for each in partitions}
        found = self._client.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        return {place.partition: answer for place, answer in found.items()}

    def _retention_ms(self) -> int | None:
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, self._topic)
        asked = self._client.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
        try:
            return int(asked[resource].result()["retention.ms"].value)
        except (KafkaException, LookupError, TypeError, ValueError):
            return None

    def _result(self, answer: "Future[T]") -> T:
        try:
            return answer.result()
        except KafkaException as error:
            with suppress(KafkaException):
                self._client.poll(0)  # records why a connection failed
            raise TopicError(printable(self._problems.explained(error.args[0]))) from None


def offset(answer: "Future[Any]") -> int | None:
    """Return the requested offset; None if there was no answer."""
    try:
        return int(answer.result().offset)
    except KafkaException:
        return None


def newest_ms(answer: "Future[Any]") -> int | None:
    """Return the time of the requested message; None if there is no message, or no answer."""
    found = offset(answer)
    return None if found is None or found < 0 else int(answer.result().timestamp)
