"""Throttle time in responses: its position, and its replacement by a greater one.

`content` begins with the correlation id, after the frame's size. The field is nearly always the
first of the body, so the head of a long response suffices to set it; `place` returns its position.

Rules:

- The length does not change: the four bytes are overwritten, with the greater of the broker's
  throttle time and the proxy's.
- The response of a version without the field stays unchanged; the connection is held nevertheless.

Sources: the `throttleTimeMs` fields of Kafka's message definitions; KIP-219 (answer first, then
throttle).
"""

from collections.abc import Callable, Mapping
from typing import Final

from proxy.errors import BrokerFault
from proxy.wire.apis import (
    API_VERSIONS,
    APIS,
    OFFSET_DELETE,
    PRODUCE,
    is_flexible,
    response_body_at,
)
from proxy.wire.primitives import (
    INT32,
    Malformed,
    View,
    array_length,
    int32,
    skip_string,
    skip_tags,
)

HEAD: Final = 16
"""Number of bytes of a response that suffice for `place` where `is_first`, unless its header has
tags."""

_PARTITION_BEFORE_V2: Final = 4 + 2 + 8
"""Size in bytes of a partition of a Produce response."""

_PARTITION_BEFORE_V5: Final = _PARTITION_BEFORE_V2 + 8
"""The same since v2, with log_append_time."""

_PARTITION: Final = _PARTITION_BEFORE_V5 + 8
"""The same since v5, with log_start_offset; since v8 its errors follow."""

_API: Final = 2 + 2 + 2
"""Size in bytes of an API of an ApiVersions response, without its tags."""


def _in_produce(content: View, position: int, version: int) -> int:
    """Return the position of the field, which only the body's tagged fields follow."""
    flexible = is_flexible(PRODUCE, version)
    topics, position = array_length(content, position, flexible)
    for _ in range(topics):
        # KIP-516: topic ids instead of names
        position = position + 16 if version >= 13 else skip_string(content, position, flexible)
        partitions, position = array_length(content, position, flexible)
        if version < 8:  # of a fixed size: no loop, however many the broker claims
            position += partitions * _partition_before_v8(version)
            continue
        for _ in range(partitions):
            position = _skip_partition(content, position, flexible)
        if flexible:
            position = skip_tags(content, position)
    return position


def _partition_before_v8(version: int) -> int:
    if version >= 5:
        return _PARTITION
    return _PARTITION_BEFORE_V5 if version >= 2 else _PARTITION_BEFORE_V2


def _skip_partition(content: View, position: int, flexible: bool) -> int:
    errors, position = array_length(content, position + _PARTITION, flexible)  # KIP-467
    for _ in range(errors):
        position = skip_string(content, position + 4, flexible)
        if flexible:
            position = skip_tags(content, position)
    position = skip_string(content, position, flexible)
    return skip_tags(content, position) if flexible else position


def _in_api_versions(content: View, position: int, version: int) -> int:
    flexible = is_flexible(API_VERSIONS, version)
    apis, position = array_length(content, position + 2, flexible)
    if not flexible:
        return position + apis * _API
    for _ in range(apis):
        position = skip_tags(content, position + _API)
    return position


def _in_offset_delete(_content: View, position: int, _version: int) -> int:
    return position + 2  # after the error code


_POSITIONS: Final[Mapping[int, Callable[[View, int, int], int]]] = {
    PRODUCE: _in_produce,
    API_VERSIONS: _in_api_versions,
    OFFSET_DELETE: _in_offset_delete,
}
"""Functions that return the position of the field in bodies that do not begin with it, by API key.
Each takes the content, the position of the body, and the version."""


def has_throttle_time(api_key: int, api_version: int) -> bool:
    """Return whether responses of this version have the field."""
    return api_version >= APIS[api_key].throttle_time_since


def is_first(api_key: int, api_version: int) -> bool:
    """Return whether the body begins with the field."""
    return api_key not in _POSITIONS and has_throttle_time(api_key, api_version)


def place(api_key: int, api_version: int, content: View) -> int | None:
    """Return the position of the field's four bytes; None if this version lacks the field.

    Raises Malformed if `content` ends before the field does.
    """
    if not has_throttle_time(api_key, api_version):
        return None
    position = response_body_at(api_key, api_version, content)
    if api_key in _POSITIONS:
        position = _POSITIONS[api_key](content, position, api_version)
    int32(content, position)
    return position


def patch(api_key: int, api_version: int, content: bytes, throttle_time_ms: int) -> bytes:
    """Return the response with at least this throttle time. Raises BrokerFault."""
    changed = bytearray(content)
    patch_in_place(api_key, api_version, memoryview(changed), throttle_time_ms)
    return bytes(changed)


def patch_in_place(
    api_key: int, api_version: int, content: memoryview, throttle_time_ms: int
) -> None:
    """Set at least this throttle time in a response, or in its head where `is_first`.

    Raises BrokerFault if it does not parse.
    """
    try:
        position = place(api_key, api_version, content)
    except Malformed as malformed:
        raise BrokerFault(f"response of API {api_key} v{api_version}: {malformed}") from None
    if position is not None:
        brokers, _ = int32(content, position)
        if throttle_time_ms > brokers:
            INT32.pack_into(content, position, throttle_time_ms)
