"""Byte bounds in Fetch and ShareFetch requests, and responses without records.

Kafka lets one ask for no more than passes in a window without a wait, and answers without topics
what comes when the quota is exceeded already (`KafkaApis`: `maxValueInQuotaWindow`,
`getThrottledResponse`, `throttleResponse`).

Schemas: Kafka's `FetchRequest.json`, v4 to v18, `ShareFetchRequest.json`, v1 and v2, and those of
their responses.
"""

import struct
from dataclasses import replace
from typing import Final

from proxy.wire.apis import FETCH, SHARE_FETCH, is_flexible, response_body_at
from proxy.wire.primitives import INT32, Malformed, View, int32, skip_string, skip_tags, tag_count

FIRST_WITH_SESSIONS: Final = 7
"""KIP-227: an error code and the session's id stand in front of a response's topics."""
INITIAL_EPOCH: Final = 0
"""A full request that wants a new session."""
FINAL_EPOCH: Final = -1
"""A full request that wants none, and ends the one it names."""
NEXT_TO_NOTHING: Final = 1
"""max_bytes of what will be left out."""
FIRST_WITH_REPLICA_STATE: Final = 15
"""KIP-903: the replica's id no longer stands in front of a request, but in tag 1."""

_HEAD: Final = struct.Struct(">ihhih")
"""Size, API key, version, correlation id, client id length."""
_MAX_TAGS: Final = 16
"""Tagged fields of a request header, of which Kafka has none so far: as many as in a Produce."""
_NOTHING_SHARED: Final = b"\0" + INT32.pack(0) + b"\1\1\0"
"""No error message, no lock timeout, no topics, no nodes, no tags."""


def lowered(frame: bytes, most: int) -> bytes | None:
    """Return a request that asks for no more than `most` bytes.

    As much of it as is here; None: that does not suffice.
    """
    size, api_key, api_version, _, length = _HEAD.unpack_from(frame)
    try:
        at = _max_bytes_at(api_key, api_version, frame, _HEAD.size + max(length, 0))
        asked, behind = int32(frame, at)
    except Malformed:
        return None
    if most == NEXT_TO_NOTHING and api_key == FETCH and api_version >= FIRST_WITH_SESSIONS:
        # what is left out shall not begin a session: the client asks for all of it anew
        epoch_at = behind + 1 + 4  # isolation_level, session_id
        if len(frame) < min(epoch_at + 4, 4 + size):
            return None
        if frame[epoch_at : epoch_at + 4] == INT32.pack(INITIAL_EPOCH):
            frame = frame[:epoch_at] + INT32.pack(FINAL_EPOCH) + frame[epoch_at + 4 :]
    return frame if asked <= most else frame[:at] + INT32.pack(most) + frame[behind:]


def max_bytes_of_fetch(frame: bytes) -> tuple[int, int] | None:
    """Return what a Fetch asks for, and where that ends in its frame; None: it is no Fetch, or too
    little of it is here."""
    _, api_key, api_version, _, length = _HEAD.unpack_from(frame)
    if api_key != FETCH:
        return None
    try:
        return int32(frame, _max_bytes_at(api_key, api_version, frame, _HEAD.size + max(length, 0)))
    except Malformed:
        return None


def _max_bytes_at(api_key: int, api_version: int, frame: View, at: int) -> int:
    """Return where max_bytes stands in a request whose client id ends at `at`."""
    if is_flexible(api_key, api_version):
        if tag_count(frame, at)[0] > _MAX_TAGS:
            raise Malformed("more tagged fields than are looked at")
        at = skip_tags(frame, at)
    if api_key == SHARE_FETCH:
        at = skip_string(frame, at, flexible=True)  # group_id
        at = skip_string(frame, at, flexible=True) + 4  # member_id, share_session_epoch
    elif api_version < FIRST_WITH_REPLICA_STATE:
        at += 4  # replica_id
    return at + 4 + 4  # max_wait_ms, min_bytes


def without_topics(api_key: int, api_version: int, head: bytes) -> bytes:
    """Return the response that begins with `head`, without topics; its session goes on.

    What a fetch session has sent counts as sent, but whatever has records is sent again.
    """
    at = response_body_at(api_key, api_version, head)
    if api_key == SHARE_FETCH:
        return head[: at + 4 + 2] + _NOTHING_SHARED
    kept = head[: at + 4 + (2 + 4 if api_version >= FIRST_WITH_SESSIONS else 0)]
    return kept + (b"\1\0" if is_flexible(api_key, api_version) else INT32.pack(0))


def without_records(api_version: int, content: bytes) -> bytes:
    """Return the response to a ShareFetch without records, but with what became of what the
    request acknowledged: nobody is told that later (`KafkaApis`:
    `combineShareFetchAndShareAcknowledgeResponses`).
    """
    from proxy.wire.codec import decode, encode, response_type  # with 16 MiB of schemas

    at = response_body_at(SHARE_FETCH, api_version, content)
    try:
        response = decode(response_type(SHARE_FETCH, api_version), content, at)
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
    return content[:at] + encode(replace(response, responses=topics))
