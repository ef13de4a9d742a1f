"""Byte bounds in Fetch and ShareFetch requests, and responses without records.

Kafka bounds max_bytes by what the quota allows in a window, and sends responses without topics
while the quota is exceeded (`KafkaApis`: `maxValueInQuotaWindow`, `getThrottledResponse`,
`throttleResponse`).

Schemas: Kafka's `FetchRequest.json`, v3 to v18, `ShareFetchRequest.json`, v1 and v2, and those of
their responses; Fetch responses from v0 on.
"""

import struct
from typing import Final

from proxy.wire.apis import FETCH, SHARE_FETCH, is_flexible, response_body_at
from proxy.wire.codec import decode, encode
from proxy.wire.messages import ShareFetchResponse, replace
from proxy.wire.primitives import INT32, Malformed, View, int32, skip_string, skip_tags, tag_count
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
"""Maximum number of tagged fields in a request header: as many as in a Produce; Kafka has defined
none so far."""
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
