"""What a consumer_byte_rate changes in a Fetch or ShareFetch, and in the response to one.

Kafka lets one ask for no more than passes in a window without a wait, and answers without topics
what comes when the quota is exceeded already (`KafkaApis`: `maxValueInQuotaWindow`,
`getThrottledResponse`, `throttleResponse`).

Schemas: Kafka's `FetchRequest.json`, v4 to v18, `ShareFetchRequest.json`, v1 and v2, and those of
their responses.
"""

import struct
from typing import Final

from proxy.wire.apis import SHARE_FETCH, is_flexible, response_body_at
from proxy.wire.primitives import INT32, Malformed, View, int32, skip_string, skip_tags, tag_count

FIRST_WITH_SESSIONS: Final = 7
"""KIP-227: an error code and the session's id stand in front of a response's topics."""
FIRST_WITH_REPLICA_STATE: Final = 15
"""KIP-903: the replica's id no longer stands in front of a request, but in tag 1."""

_HEAD: Final = struct.Struct(">ihhih")
"""Size, API key, version, correlation id, client id length."""
_MOST_TAGS: Final = 16
"""Tagged fields of a request header, of which Kafka has none so far: as many as in a Produce."""
_NOTHING_SHARED: Final = b"\0" + INT32.pack(0) + b"\1\1\0"
"""No error message, no lock timeout, no topics, no nodes, no tags."""


def lowered(frame: bytes, most: int) -> bytes | None:
    """Return a request that asks for no more than `most` bytes.

    As much of it as is here; None: that does not suffice.
    """
    _, api_key, api_version, _, length = _HEAD.unpack_from(frame)
    try:
        at = _max_bytes_at(api_key, api_version, frame, _HEAD.size + max(length, 0))
        asked, behind = int32(frame, at)
    except Malformed:
        return None
    return frame if asked <= most else frame[:at] + INT32.pack(most) + frame[behind:]


def _max_bytes_at(api_key: int, api_version: int, frame: View, at: int) -> int:
    """Return where max_bytes stands in a request whose client id ends at `at`."""
    if is_flexible(api_key, api_version):
        if tag_count(frame, at)[0] > _MOST_TAGS:
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
