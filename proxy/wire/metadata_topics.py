"""Walk over the topics of a Metadata response, skipping their partitions.

Metadata of a large cluster is megabytes long, and every client requests it every few minutes: the
part that a client may see is cut out of the bytes. Schema: Kafka's `MetadataResponse.json`, v0 to
v13.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import METADATA, is_flexible
from proxy.wire.primitives import (
    INT32,
    Malformed,
    array_length,
    int16,
    nullable_string,
    skip_string,
    skip_tags,
    uvarint,
    write_array_length,
)

FIRST_WITH_TOPIC_IDS: Final = 10
_NOT_REQUESTED: Final = -0x8000_0000
"""Value of Kafka's authorized operations when they were not requested."""


class Topic(NamedTuple):
    """Topic of a response."""

    error_code: int
    name: str | None
    """Name of the topic; None if the request named it by an id that is unknown or must not be
    seen."""
    topic_id: bytes | None
    """Id of 16 bytes, zeros for none; None in versions without ids."""
    start: int
    """Position of its entry in the body."""
    end: int
    operations_at: int
    """Position of its authorized operations; 0 if this version has none."""


class MetadataTopics(NamedTuple):
    """Topics of a response, with their positions."""

    topics: list[Topic]
    topics_at: int
    """Position of the array of topics, with its length."""
    topics_end: int
    cluster_operations_at: int
    """Position of the cluster's authorized operations; 0 if this version has none."""


def parse(api_version: int, body: bytes) -> MetadataTopics:
    """Return the topics in a response's body. Raises Malformed."""
    flexible = is_flexible(METADATA, api_version)
    position = topics_at = _topics_at(api_version, body, flexible)
    count, position = array_length(body, position, flexible)
    topics = []
    for _ in pausing(range(count)):
        topic = _topic(api_version, body, position, flexible)
        position = topic.end
        topics.append(topic)
    has_cluster_operations = 8 <= api_version <= 10
    if position + 4 * has_cluster_operations > len(body):
        raise Malformed("ends inside the topics")
    return MetadataTopics(topics, topics_at, position, position if has_cluster_operations else 0)


def _topics_at(api_version: int, body: bytes, flexible: bool) -> int:
    position = 4 if api_version >= 3 else 0  # throttle_time_ms
    count, position = array_length(body, position, flexible)
    for _ in range(count):
        position = skip_string(body, position + 4, flexible) + 4
        if api_version >= 1:
            position = skip_string(body, position, flexible)  # rack
        if flexible:
            position = skip_tags(body, position)
    if api_version >= 2:
        position = skip_string(body, position, flexible)  # cluster_id
    if api_version >= 1:
        position += 4  # controller_id
    return position


def _topic(api_version: int, body: bytes, start: int, flexible: bool) -> Topic:
    error_code, position = int16(body, start)
    name, position = nullable_string(body, position, flexible)
    topic_id = None
    if api_version >= FIRST_WITH_TOPIC_IDS:
        topic_id = body[position : position + 16]
        position += 16
    if api_version >= 1:
        position += 1  # is_internal
    count, position = array_length(body, position, flexible)
    try:
        if flexible:
            position = _skip_flexible_partitions(body, position, count)
        else:
            position = _skip_partitions(api_version, body, position, count)
    except IndexError:
        raise Malformed("ends inside a partition") from None
    operations_at = 0
    if api_version >= 8:
        operations_at = position
        position += 4
    if flexible:
        position = skip_tags(body, position)
    if position > len(body):
        raise Malformed("ends inside a topic")
    return Topic(error_code, name, topic_id, start, position, operations_at)


def partition_count(api_version: int, body: bytes, topic: Topic) -> int:
    """Return the number of partitions of a topic in the response."""
    flexible = is_flexible(METADATA, api_version)
    position = skip_string(body, topic.start + 2, flexible)
    position += 16 * (api_version >= FIRST_WITH_TOPIC_IDS) + (api_version >= 1)
    return array_length(body, position, flexible)[0]


def _skip_partitions(api_version: int, body: bytes, position: int, count: int) -> int:
    """Return the position after partitions of v0 to v8."""
    head = 2 + 4 + 4 + (4 if api_version >= 7 else 0)  # error, index, leader, epoch
    arrays = 3 if api_version >= 5 else 2
    for _ in range(count):
        position += head
        for _ in range(arrays):
            nodes, position = array_length(body, position, flexible=False)
            position += 4 * nodes
    return position


def _skip_flexible_partitions(body: bytes, position: int, count: int) -> int:
    """Return the position after partitions of v9 and later, whose lengths are nearly always one
    byte."""
    for _ in range(count):
        position += 2 + 4 + 4 + 4
        for _ in range(3):
            nodes = body[position]
            if nodes > 0x7F:
                nodes, position = uvarint(body, position)
            else:
                position += 1
            position += 4 * (nodes - 1) if nodes else 0
        position = skip_tags(body, position) if body[position] else position + 1
    return position


def keep(api_version: int, body: bytes, found: MetadataTopics, entries: Iterable[bytes]) -> bytes:
    """Return `body` with these entries in place of its topics."""
    entries = list(entries)
    return b"".join(
        (
            body[: found.topics_at],
            write_array_length(len(entries), is_flexible(METADATA, api_version)),
            *entries,
            body[found.topics_end :],
        )
    )


def with_operations(body: bytearray, at: int, operations: int) -> None:
    """Overwrite the authorized operations at `at`, if they were requested."""
    if INT32.unpack_from(body, at)[0] != _NOT_REQUESTED:
        INT32.pack_into(body, at, operations)
