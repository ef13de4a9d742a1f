"""Walk through a Fetch request: its topics, and its fetch session (KIP-227).

Schema: Kafka's `FetchRequest.json`, v4 to v18.

Kafka reads the tagged fields that it knows without regard to the size that they claim. Clients send
none of them, so a request with any is decoded by `codec`, which rejects whatever two readers could
understand differently: nothing can be hidden in a tag.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.scheduling.stepped_thread import pause, pausing
from proxy.wire.apis import APIS, FETCH
from proxy.wire.codec import decode
from proxy.wire.fetch_bounds import (
    FINAL_EPOCH,
    FIRST_WITH_REPLICA_STATE,
    FIRST_WITH_SESSIONS,
)
from proxy.wire.messages import FetchRequest as WholeFetchRequest
from proxy.wire.primitives import (
    INT32,
    Malformed,
    View,
    array_length,
    int16,
    int32,
    skip_string,
    skip_tags,
    string,
    uvarint,
    write_array_length,
)

FIRST_FLEXIBLE: Final = APIS[FETCH].first_flexible
FIRST_WITH_TOPIC_IDS: Final = 13

_LIMITS: Final = 4 + 4 + 4 + 1
"""Size of max_wait_ms, min_bytes, max_bytes and isolation_level, in bytes."""
_FROM_MAX_BYTES: Final = 4 + 1
"""Size of max_bytes and isolation_level, in bytes."""
_TOPIC_ID: Final = 16
_CONSUMER: Final = -1
_CONSUMER_BYTES: Final = b"\xff\xff\xff\xff"
_SESSION_BYTES: Final = 4 + 4
"""Size of session_id and session_epoch, in bytes."""
_LIMITS_AND_SESSION: Final = struct.Struct(">8xixii")
"""Layout of max_bytes, session id and session epoch, with gaps for the other limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """Topic of a Fetch request."""

    name: str | None
    """Name of the topic; None if it is named by its id."""
    topic_id: bytes | None
    partitions: tuple[int, ...]
    start: int
    """Position of its entry in the body."""
    end: int
    tagged: bool
    """True if there are tagged fields in its entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Fetch request without its partitions."""

    replica_id: int
    """Id of the replica; -1 for a consumer."""
    session_id: int
    """Id of the fetch session; 0 if there is none."""
    session_epoch: int
    """Epoch of the fetch session; `FINAL_EPOCH` in versions without sessions."""
    session_at: int
    """Position of the session's id and epoch in the body."""
    topics: tuple[FetchedTopic, ...]
    topics_at: int
    """Position of the array of topics, with its length."""
    topics_end: int


def parse(api_version: int, body: View) -> FetchRequest:
    """Parse a request's body. Raises Malformed."""
    replica_id, position = _CONSUMER, 0
    if api_version < FIRST_WITH_REPLICA_STATE:
        replica_id, position = int32(body, 0)
    session_at = position = position + _LIMITS
    session_id, session_epoch = 0, FINAL_EPOCH
    if api_version >= FIRST_WITH_SESSIONS:
        session_id, position = int32(body, position)
        session_epoch, position = int32(body, position)
    topics_at = position
    count, position = array_length(body, position, api_version >= FIRST_FLEXIBLE)
    topics = []
    for _ in range(count):
        pause(1)
        topic = _topic(api_version, body, position)
        position = topic.end
        topics.append(topic)
    if api_version >= FIRST_FLEXIBLE and (
        any(topic.tagged for topic in topics) or _tagged(api_version, body, position)
    ):
        replica_id = _replica_id(api_version, body)
    return FetchRequest(
        replica_id=replica_id,
        session_id=session_id,
        session_epoch=session_epoch,
        session_at=session_at,
        topics=tuple(topics),
        topics_at=topics_at,
        topics_end=position,
    )


def _partition_bytes(api_version: int) -> int:
    """Return the size of a partition after its index, in bytes, without tags."""
    size = 8 + 4  # fetch_offset, partition_max_bytes
    if api_version >= 5:
        size += 8  # log_start_offset
    if api_version >= 9:
        size += 4  # current_leader_epoch
    if api_version >= FIRST_FLEXIBLE:
        size += 4  # last_fetched_epoch
    return size


def _topic(api_version: int, body: View, start: int) -> FetchedTopic:
    flexible = api_version >= FIRST_FLEXIBLE
    name, topic_id, position = None, None, start + _TOPIC_ID
    if api_version >= FIRST_WITH_TOPIC_IDS:
        topic_id = bytes(body[start:position])
    else:
        name, position = string(body, start, flexible)
    count, position = array_length(body, position, flexible)
    rest = _partition_bytes(api_version)
    partitions, tagged = [], False
    pause(min(count, len(body)))
    for _ in pausing(range(count)):
        index, position = int32(body, position)
        partitions.append(index)
        position += rest
        if flexible:
            before, position = position, skip_tags(body, position)
            tagged = tagged or position > before + 1
    if flexible:
        position = skip_tags(body, position)
    if position > len(body):
        raise Malformed("ends inside a topic")
    return FetchedTopic(
        name=name,
        topic_id=topic_id,
        partitions=tuple(partitions),
        start=start,
        end=position,
        tagged=tagged,
    )


def _tagged(api_version: int, body: View, position: int) -> bool:
    """Return whether there are tagged fields after the forgotten topics, which begin here, and the
    rack."""
    count, position = array_length(body, position, flexible=True)
    pause(min(count, len(body)))
    for _ in pausing(range(count)):
        if api_version >= FIRST_WITH_TOPIC_IDS:
            position += _TOPIC_ID
        else:
            position = skip_string(body, position, flexible=True)
        partitions, position = array_length(body, position, flexible=True)
        position = skip_tags(body, position + 4 * partitions)
    position = skip_string(body, position, flexible=True)
    return uvarint(body, position)[0] > 0


def _replica_id(api_version: int, body: View) -> int:
    request = decode(WholeFetchRequest, api_version, bytes(body))
    if api_version < FIRST_WITH_REPLICA_STATE:
        return request.replica_id
    return request.replica_state.replica_id


class PlainFetch(NamedTuple):
    """Consumer's request without anything unusual."""

    session_id: int
    epoch: int
    epoch_at: int
    """Position of the epoch."""
    max_bytes: int
    topics: list[bytes]
    """Name or id of each topic."""
    numbers: list[tuple[int, int]]
    """Ranges of the numbers of each topic's partitions: indexes, offsets, epochs."""


def plain(api_version: int, frame: bytes, at: int, end: int) -> PlainFetch | None:
    """Parse a request that ends at `end`, and whose header's tagged fields begin at `at`.

    Returns None if it is of an older version, or has anything unusual, such as tags, forgotten
    topics, or a hundred partitions of one topic; then it must be decoded completely.
    """
    if api_version < FIRST_FLEXIBLE:
        return None
    position = at + 1
    topics: list[bytes] = []
    numbers: list[tuple[int, int]] = []
    try:
        if frame[at]:
            return None
        if api_version < FIRST_WITH_REPLICA_STATE:
            if frame[position : position + 4] != _CONSUMER_BYTES:
                return None
            position += 4
        max_bytes, session_id, epoch = _LIMITS_AND_SESSION.unpack_from(frame, position)
        position += _LIMITS + _SESSION_BYTES
        epoch_at = position - 4
        count = frame[position]
        position += 1
        if not 0 < count < 0x80:
            return None
        for _ in range(count - 1):
            start, name_end, position = _plain_topic(api_version, frame, position, numbers)
            topics.append(frame[start:name_end])
        rack = frame[position + 1]
        if frame[position] != 1 or not 0 < rack < 0x80 or frame[position + 1 + rack]:
            return None
    except (IndexError, struct.error):
        return None
    if position + 2 + rack > end:
        return None
    return PlainFetch(session_id, epoch, epoch_at, max_bytes, topics, numbers)


def _plain_topic(
    api_version: int, frame: bytes, start: int, numbers: list[tuple[int, int]]
) -> tuple[int, int, int]:
    """Return the range of a topic's name or id, and the end of the topic.

    Raises IndexError if there is anything unusual about it.
    """
    end = start + _TOPIC_ID
    if api_version < FIRST_WITH_TOPIC_IDS:
        length = frame[start]
        start += 1
        end = start + length - 1
        if not 0 < length < 0x80:
            raise IndexError
    size = 4 + _partition_bytes(api_version)
    partitions = frame[end]
    position = end + 1
    if not 0 < partitions < 0x80:
        raise IndexError
    for _ in range(partitions - 1):
        numbers.append((position, position + size))
        position += size
        if frame[position]:  # tags
            raise IndexError
        position += 1
    if frame[position]:
        raise IndexError
    return start, end, position + 1


def keep(
    api_version: int,
    body: View,
    request: FetchRequest,
    kept: list[FetchedTopic],
    *,
    epoch: int,
    max_bytes: int,
) -> bytes:
    """Return `body` with only these topics, this session epoch, and at most these max_bytes."""
    session: tuple[View, ...] = ()
    limit = request.session_at - _FROM_MAX_BYTES
    requested, limit_end = int32(body, limit)
    if api_version >= FIRST_WITH_SESSIONS:
        session = INT32.pack(request.session_id), INT32.pack(epoch)
    return b"".join(
        (
            body[:limit],
            INT32.pack(min(requested, max_bytes)),
            body[limit_end : request.session_at],
            *session,
            write_array_length(len(kept), api_version >= FIRST_FLEXIBLE),
            *(body[topic.start : topic.end] for topic in kept),
            body[request.topics_end :],
        )
    )


def session_of_response(api_version: int, content: View) -> int:
    """Return the fetch session of a response; 0 if there is none, or an error.

    `content` is the frame after its size, or its first `SESSION_BYTES`.
    """
    position = 4
    if api_version >= FIRST_FLEXIBLE:
        position = skip_tags(content, position)
    position += 4  # throttle_time_ms
    error, position = int16(content, position)
    return 0 if error else int32(content, position)[0]


SESSION_BYTES: Final = 64
"""Number of bytes of a response that contain its session, unless its header has an unknown number
of tags."""
