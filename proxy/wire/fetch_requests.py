"""Fetch and ShareFetch: topics and fetch session (KIP-227) of a request, bounds, empty responses.

Kafka lowers max_bytes to the bytes that the quota allows in a window, and sends responses without
topics while the quota is exceeded (`KafkaApis`: `maxValueInQuotaWindow`, `getThrottledResponse`,
`throttleResponse`).

Schemas: Kafka's `FetchRequest.json`, v4 to v18 (bounds: from v3), `ShareFetchRequest.json`, v1 and
v2, and those of their responses; Fetch responses from v0 on.

Kafka reads the tagged fields that it knows, regardless of the size that they claim. Clients do not
send any, so a request with tagged fields is decoded by `codec`, which rejects bytes that two
readers could interpret differently: nothing can be hidden in a tag.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.scheduling.steps import pause, pausing
from proxy.wire.apis import APIS, FETCH, SHARE_FETCH, is_flexible, response_body_at
from proxy.wire.codec import decode, encode
from proxy.wire.messages import FetchRequest as WholeFetchRequest
from proxy.wire.messages import ShareFetchResponse, replace
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
    tag_count,
    uvarint,
    write_array_length,
)
from proxy.wire.throttle_times import has_throttle_time

FIRST_WITH_MAX_BYTES: Final = 3
"""First Fetch version with a limit of the response as a whole (KIP-74)."""
FIRST_WITH_SESSIONS: Final = 7
"""First version with fetch sessions (KIP-227): responses begin with an error code and the session's
id."""
INITIAL_EPOCH: Final = 0
"""Session epoch of a full request that opens a session."""
FINAL_EPOCH: Final = -1
"""Session epoch of a full request without a session, which ends the session that it names."""
NEXT_TO_NOTHING: Final = 1
"""Value of max_bytes, in bytes, for requests whose response will be left out."""
FIRST_WITH_REPLICA_STATE: Final = 15
"""First version with the replica's id in tag 1 instead of at the beginning (KIP-903)."""

_HEAD: Final = struct.Struct(">ihhih")
"""Beginning of a frame: size, API key, version, correlation id, client id length."""
_MAX_TAGS: Final = 16
"""Maximum number of tagged fields in a request header: as many as in a Produce; Kafka has not
defined any so far."""
_NOTHING_SHARED: Final = b"\0" + INT32.pack(0) + b"\1\1\0"
"""Encoded end of a ShareFetch response: no error message, no lock timeout, no topics, no nodes, no
tags."""


def lowered(frame: bytes, bound: int) -> bytes | None:
    """Return the request with max_bytes lowered to `bound`.

    `frame` may be incomplete; returns None if it is too short.
    """
    size, api_key, api_version, _, length = _HEAD.unpack_from(frame)
    try:
        at = _max_bytes_at(api_key, api_version, frame, _HEAD.size + max(length, 0))
        max_bytes, end = int32(frame, at)
    except Malformed:
        return None
    if bound == NEXT_TO_NOTHING and api_key == FETCH and api_version >= FIRST_WITH_SESSIONS:
        # The response will be left out, so it must not open a session: the client then sends a full
        # request again
        epoch_at = end + 1 + 4  # isolation_level, session_id
        if len(frame) < min(epoch_at + 4, 4 + size):
            return None
        if frame[epoch_at : epoch_at + 4] == INT32.pack(INITIAL_EPOCH):
            frame = frame[:epoch_at] + INT32.pack(FINAL_EPOCH) + frame[epoch_at + 4 :]
    return frame if max_bytes <= bound else frame[:at] + INT32.pack(bound) + frame[end:]


def max_bytes_of_fetch(frame: bytes) -> tuple[int, int] | None:
    """Return max_bytes of a Fetch, and its end in the frame; None for other requests, or if the
    frame is too short."""
    _, api_key, api_version, _, length = _HEAD.unpack_from(frame)
    if api_key != FETCH:
        return None
    try:
        return int32(frame, _max_bytes_at(api_key, api_version, frame, _HEAD.size + max(length, 0)))
    except Malformed:
        return None


def _max_bytes_at(api_key: int, api_version: int, frame: View, at: int) -> int:
    """Return the position of max_bytes in a request whose client id ends at `at`."""
    if is_flexible(api_key, api_version):
        if tag_count(frame, at)[0] > _MAX_TAGS:
            raise Malformed("more tagged fields than are skipped")
        at = skip_tags(frame, at)
    if api_key == SHARE_FETCH:
        at = skip_string(frame, at, flexible=True)  # group_id
        at = skip_string(frame, at, flexible=True) + 4  # member_id, share_session_epoch
    elif api_version < FIRST_WITH_REPLICA_STATE:
        at += 4  # replica_id
    return at + 4 + 4  # max_wait_ms, min_bytes


def without_topics(api_key: int, api_version: int, head: bytes) -> bytes:
    """Return the response that begins with `head`, without topics; its session continues.

    The broker regards the response of a session as delivered, but sends partitions with records
    again.
    """
    at = response_body_at(api_key, api_version, head)
    if api_key == SHARE_FETCH:
        return head[: at + 4 + 2] + _NOTHING_SHARED
    at += 4 if has_throttle_time(api_key, api_version) else 0
    kept = head[: at + (2 + 4 if api_version >= FIRST_WITH_SESSIONS else 0)]
    return kept + (b"\1\0" if is_flexible(api_key, api_version) else INT32.pack(0))


def without_records(api_version: int, content: bytes) -> bytes:
    """Return the response to a ShareFetch without records, but with the results of the
    acknowledgements in the request, which are not sent again (`KafkaApis`:
    `combineShareFetchAndShareAcknowledgeResponses`).
    """
    at = response_body_at(SHARE_FETCH, api_version, content)
    try:
        response = decode(ShareFetchResponse, api_version, content, at)
    except Malformed:
        return without_topics(SHARE_FETCH, api_version, content)
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(partition, records=b"", acquired_records=())
                for partition in topic.partitions
            ),
        )
        for topic in response.responses
    )
    return content[:at] + encode(replace(response, responses=topics), api_version)


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
    """Id of the fetch session; 0 without a session."""
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
    """Return the fetch session of a response; 0 without a session, or with an error.

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
