"""Kafka topic as a source of event lines, read with librdkafka up to its present end.

Rules:

- Partitions are assigned and offsets are never committed, so READ on the topic is sufficient.
  librdkafka looks up a group coordinator anyway; it does not matter if that is denied.
- The ends of the partitions are fetched once; later messages are left to the next run.
- A value is data: it becomes one line, whatever it contains.
- The work per message is done in C; Python code runs about once per hundred messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from metrics.delivery.kafka_errors import Problems
from metrics.readiness.errors import ReportError
from metrics.readiness.events import CLOCK_TOLERANCE_MS

TIMEOUT_SECONDS: Final = 30.0
"""Time limit in seconds for brokers to answer a request about the topic."""
POLL_SECONDS: Final = 0.1
"""Maximum duration of a poll in seconds: it bounds the data that librdkafka unpacks in one poll."""
SILENT_POLLS: Final = 600
"""Number of polls without progress, a minute in total, after which reading has failed."""
_AT_ONCE: Final = 100
"""Maximum number of messages per poll: 100 MB of the largest that a topic accepts by default."""
_NAMED: Final = 10
"""Maximum number of partitions that an error lists."""
_LINE_BREAKS: Final = bytes.maketrans(b"\n\r", b"  ")
_SETTINGS: Final = {
    "group.id": "reauth-proxy-report",  # required by librdkafka; unused
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "log_level": 0,
}
"""Fixed settings of librdkafka. If retention removes messages between two runs, the report uses the
remaining ones, and counts the missing sequence numbers."""


class TopicReader:
    """Reader of a topic, from given offsets to its ends."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Connect with librdkafka's `settings`. Raises ReportError."""
        self._topic = topic
        self._problems = Problems()
        try:
            self._consumer = Consumer({**settings, **_SETTINGS, "error_cb": self._problems.note})
        except KafkaException as error:
            raise ReportError(f"kafka: {error.args[0].str()}") from None
        except SystemError:  # raised if a callback fails
            raise ReportError(f"kafka: {self._problems.explained(None)}") from None

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def read(self, offsets: dict[int, int], since_ms: int | None = None) -> Iterator[bytes]:
        """Yield the lines of the topic in batches, each line with its newline.

        `offsets` has the next offset to read for each partition, and is updated before each yield.
        A partition that is missing in it is read from its beginning, or from the first message at
        or after `since_ms`. Raises ReportError.
        """
        silent = 0
        with self._explained():
            left = self._begin(offsets, since_ms)
            while left:
                before = dict(offsets)
                messages = self._consumer.consume(_AT_ONCE, timeout=POLL_SECONDS)
                lines = self._lines(messages, offsets, left)
                silent = 0 if offsets != before else silent + 1
                if left and silent == SILENT_POLLS:
                    raise self._failed(None)
                if lines:
                    yield lines

    def _begin(self, offsets: dict[int, int], since_ms: int | None) -> dict[int, int]:
        """Assign the partitions with unread messages; return their ends."""
        consumer, topic, left = self._consumer, self._topic, dict[int, int]()
        found = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        if found.error is not None:
            raise self._failed(found.error)
        if without := _without_leader(found.partitions):
            raise ReportError(f"kafka:{topic}: {without}")
        dated = {} if since_ms is None else self._offsets_at(found.partitions, since_ms)
        for partition in sorted(found.partitions):
            place = TopicPartition(topic, partition)
            low, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
            begin = offsets.get(partition, dated.get(partition, low))
            if begin == OFFSET_END:  # all messages are older than `since_ms`
                begin = end
            if not low <= begin <= end:  # retention has removed it, or the topic was recreated
                begin = low
            offsets[partition] = begin
            if begin < end:
                left[partition] = end
        consumer.assign([TopicPartition(topic, each, offsets[each]) for each in left])
        return left

    def _offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return the offset of the first message at or after a time, by partition."""
        begin_ms = max(0, time_ms - CLOCK_TOLERANCE_MS)
        asked = [TopicPartition(self._topic, each, begin_ms) for each in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
        for place in found:
            if place.error is not None:
                raise self._failed(place.error)
        return {place.partition: place.offset for place in found}

    def _lines(
        self, messages: list[Message], offsets: dict[int, int], left: dict[int, int]
    ) -> bytes:
        """Return the lines of messages before the ends in `left`; remove ends that are reached."""
        last = _last_offsets(messages)
        if any(map(Message.error, messages)) or any(
            offset >= left.get(partition, 0) for partition, offset in last.items()
        ):
            messages = self._before_ends(messages, offsets, left)
            last = _last_offsets(messages)
        for partition, offset in last.items():
            offsets[partition] = max(offset + 1, offsets[partition])
        for partition in [each for each, end in left.items() if offsets[each] >= end]:
            del left[partition]
            self._consumer.pause([TopicPartition(self._topic, partition)])
        return _joined(list(filter(None, map(Message.value, messages))))

    def _before_ends(
        self, messages: list[Message], offsets: dict[int, int], left: dict[int, int]
    ) -> list[Message]:
        """Return the messages before the ends; at the end of a partition, update its offset."""
        kept = []
        for message in messages:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if partition not in left or message.topic() is None:
                continue  # beyond the end, or an error about the group, which is unused
            assert partition is not None
            assert offset is not None
            if error is None:
                if offset < left[partition]:
                    kept.append(message)
                else:
                    offsets[partition] = left[partition]  # no messages just before it
            elif error.name() == "_PARTITION_EOF":
                offsets[partition] = offset
            else:
                raise self._failed(error)
        return kept

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise librdkafka's errors as ReportError."""
        try:
            yield
        except KafkaException as error:
            raise self._failed(error.args[0]) from None

    def _failed(self, error: KafkaError | None) -> ReportError:
        """Return the error to raise: a connection's problem is more specific than a timeout."""
        with suppress(KafkaException, RuntimeError):
            self._consumer.poll(0)  # runs `error_cb`
        return ReportError(f"kafka:{self._topic}: {self._problems.explained(error)}")


def _without_leader(partitions: Mapping[int, Any]) -> str | None:
    """Return an error about partitions without a leader, with the remedy; None if all have one.

    librdkafka's own error for such a partition is "Local: Unknown partition".
    """
    missing = sorted(number for number, found in partitions.items() if found.leader < 0)
    if not missing:
        return None
    named = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
    which = f"partition {named} has" if len(missing) == 1 else f"partitions {named} have"
    brokers = sorted({each for number in missing for each in partitions[number].replicas})
    return (
        f"{which} no leader; start the brokers that have it (node ids"
        f" {', '.join(map(str, brokers))}), and run the report again"
    )


def _last_offsets(messages: list[Message]) -> dict[int, int]:
    """Return the offset of the last message of each partition."""
    partitions, offsets = map(Message.partition, messages), map(Message.offset, messages)
    return cast("dict[int, int]", dict(zip(partitions, offsets, strict=True)))


def _joined(values: list[bytes]) -> bytes:
    """Return values as lines; nearly all were written by a proxy and have no line breaks."""
    together = b"".join(values)
    if b"\n" in together or b"\r" in together:
        values = [value.rstrip(b"\r\n").translate(_LINE_BREAKS) for value in values]
    return b"\n".join([*values, b""])
