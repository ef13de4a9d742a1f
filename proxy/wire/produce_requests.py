"""Walk through a Produce request: its topics, without touching the records.

Schema: Kafka's `ProduceRequest.json`, v3 to v13.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxy.scheduling.steps import pause, pausing
from proxy.wire.apis import APIS, PRODUCE
from proxy.wire.primitives import (
    HIGHEST_UVARINT,
    INT32,
    Malformed,
    View,
    array_length,
    int16,
    int32,
    nullable_string,
    skip_string,
    skip_tags,
    string,
    uvarint,
    write_array_length,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

FIRST_FLEXIBLE: Final = APIS[PRODUCE].first_flexible
FIRST_WITH_TOPIC_IDS: Final = 13
"""First version that names topics by their id (KIP-516)."""
_TIMEOUT: Final = 4
_TOPIC_ID: Final = 16
ONE_ITEM: Final = b"\x02"
"""Encoded length of an array of one item."""
_MAGIC_AT, _ATTRIBUTES_AT = 16, 21
"""Positions of magic and attributes in a record batch, v2."""
_TRANSACTIONAL: Final = 0x10
MAX_PLAIN_PARTITIONS: Final = 128
"""Maximum number of partitions, of all topics, that are checked on the fast path, which takes a
tenth of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic:
    """Topic of a Produce request."""

    name: str | None
    """Name of the topic; None if it is named by its id."""
    topic_id: bytes | None
    partitions: tuple[int, ...]
    start: int
    """Position of its entry in the body."""
    end: int
    transactional: bool
    """True if the first batch of a partition belongs to a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Produce request, without its records."""

    transactional_id: str | None
    acks: int
    topics: tuple[ProducedTopic, ...]
    topics_at: int
    """Position of the array of topics, with its length."""


def parse(api_version: int, body: View) -> ProduceRequest:
    """Parse a request's body. Raises Malformed."""
    flexible = api_version >= FIRST_FLEXIBLE
    transactional_id, position = nullable_string(body, 0, flexible)
    acks, position = int16(body, position)
    topics_at = position + _TIMEOUT
    count, position = array_length(body, topics_at, flexible)
    topics = []
    for _ in range(count):
        pause(1)
        topic = _topic(api_version, body, position, flexible)
        position = topic.end
        topics.append(topic)
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, topics=tuple(topics), topics_at=topics_at
    )


def _topic(api_version: int, body: View, start: int, flexible: bool) -> ProducedTopic:
    name, topic_id, position = None, None, start + _TOPIC_ID
    if api_version >= FIRST_WITH_TOPIC_IDS:
        topic_id = bytes(body[start:position])
    else:
        name, position = string(body, start, flexible)
    count, position = array_length(body, position, flexible)
    partitions, transactional = [], False
    pause(min(count, len(body)))
    for _ in pausing(range(count)):
        index, position = int32(body, position)
        partitions.append(index)
        if flexible:
            length, position = uvarint(body, position)
            length -= 1
        else:
            length, position = int32(body, position)
        transactional = transactional or _is_transactional(body, position, length)
        position += max(length, 0)
        if flexible:
            position = skip_tags(body, position)
        if position > len(body):
            raise Malformed("ends inside a partition")
    if flexible:
        position = skip_tags(body, position)
    if position > len(body):
        raise Malformed("ends inside a topic")
    return ProducedTopic(
        name=name,
        topic_id=topic_id,
        partitions=tuple(partitions),
        start=start,
        end=position,
        transactional=transactional,
    )


def _is_transactional(body: View, at: int, length: int) -> bool:
    """Return whether the records that begin at `at` begin with a batch of a transaction."""
    attributes = at + _ATTRIBUTES_AT
    if length <= _ATTRIBUTES_AT + 1 or attributes + 2 > len(body) or body[at + _MAGIC_AT] < 2:
        return False
    return bool(body[attributes + 1] & _TRANSACTIONAL)


def keep(api_version: int, body: View, request: ProduceRequest, kept: list[ProducedTopic]) -> bytes:
    """Return `body` with only these topics."""
    flexible = api_version >= FIRST_FLEXIBLE
    end = request.topics[-1].end
    return b"".join(
        (
            body[: request.topics_at],
            write_array_length(len(kept), flexible),
            *(body[topic.start : topic.end] for topic in kept),
            body[end:],
        )
    )


def plain_topics(api_version: int, frame: bytes, at: int, end: int) -> list[bytes] | None:
    """Return the bytes that name each topic of a request that ends at `end`, and whose header's
    tagged fields begin at `at`.

    Each value is the name with its length, or the id: behind `ONE_ITEM` it is in the form of
    `only_topic`. Returns None if there is a transaction, or anything unusual, such as hundreds of
    partitions; then the request must be decoded completely.
    """
    if api_version < FIRST_FLEXIBLE or topics_start(at) >= end:
        return None
    position: i64 = topics_start(at) + 1
    left: i64 = MAX_PLAIN_PARTITIONS
    start: i64 = 0
    partitions: i64 = 0
    names = []
    try:
        count = frame[position - 1]
        if frame[at] or frame[at + 1] or not 0 < count < 0x80:  # tags, a transaction
            return None
        for _ in range(count - 1):
            start = position
            if api_version >= FIRST_WITH_TOPIC_IDS:
                position += _TOPIC_ID
            else:
                position = _after_field(frame, position)
            names.append(frame[start:position])
            partitions = frame[position]
            position += 1
            left -= partitions - 1
            if not 0 < partitions < 0x80 or left < 0:
                return None
            for _ in range(partitions - 1):
                position = _after_field(frame, position + 4)
                if frame[position]:  # tags
                    return None
                position += 1
            if frame[position]:
                return None
            position += 1
    except IndexError:
        return None
    return names if position <= end else None


def _after_field(frame: bytes, position: "i64") -> "i64":
    """Return the position after a compact string or compact bytes, null or not.

    Raises IndexError if there is no length.
    """
    length: i64 = 0
    shift: i64 = 0
    while shift < 35:
        byte: i64 = frame[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise IndexError
    if length > HIGHEST_UVARINT:
        raise IndexError
    return position + length - 1 if length else position


def only_topic(api_version: int, data: View, at: int, end: int) -> int:
    """Return the end of the only topic's name or id, in a frame whose client id ends at `at`.

    Returns 0 if there are several topics, tags or a transaction, or the bytes before `end` do not
    suffice. The bytes from `topics_start` to the result identify the topics completely.
    """
    start = topics_start(at)
    if start + 6 > end:
        return 0
    if api_version < FIRST_FLEXIBLE:
        if bytes(data[at : at + 2]) != b"\xff\xff" or INT32.unpack_from(data, start)[0] != 1:
            return 0
        stop = skip_string(data, start + 4, flexible=False)
    else:
        if data[at] or data[at + 1] or data[start] != 2:
            return 0
        if api_version >= FIRST_WITH_TOPIC_IDS:
            stop = start + 1 + _TOPIC_ID
        else:
            try:
                stop = skip_string(data, start + 1, flexible=True)
            except Malformed:
                return 0
    return stop if stop <= end else 0


def topics_start(at: int) -> int:
    """Return the position of the array of topics if there are neither header tags nor a
    transaction.

    In a flexible version these are a byte each; in others the transaction's length is two bytes.
    """
    return at + 2 + 2 + _TIMEOUT
