"""Position of the throttle time in responses, and its change.

`content` begins with the correlation id, behind the frame's size. The field is nearly always the
first of the body, so the head of a long response suffices to set it; `place` says where it is.

Laws:

- No length changes: the four bytes are overwritten, with the greater of the broker's and ours.
- A version of an API without the field is left as it is; the connection is held all the same.
- A test compares the table with kio's schemas, so that no version is missed.

Sources: the `throttleTimeMs` fields of Kafka's message definitions; KIP-219 (answer first, then
throttle).
"""

from collections.abc import Callable, Mapping
from typing import Final

from proxy.errors import BrokerFault
from proxy.wire.apis import API_VERSIONS, FETCH, PRODUCE, response_body_at
from proxy.wire.primitives import (
    INT32,
    Malformed,
    View,
    array_length,
    int32,
    skip_string,
    skip_tags,
)

_OFFSET_DELETE: Final = 47

HEAD: Final = 16
"""Number of bytes of a response that suffice for `place` where `is_first`, unless its header has
tags."""

_FIRST_SINCE: Final[Mapping[int, int]] = {
    FETCH: 1,
    2: 2,  # ListOffsets
    3: 3,  # Metadata
    8: 3,  # OffsetCommit
    9: 3,  # OffsetFetch
    10: 1,  # FindCoordinator
    11: 2,  # JoinGroup
    12: 1,  # Heartbeat
    13: 1,  # LeaveGroup
    14: 1,  # SyncGroup
    15: 1,  # DescribeGroups
    16: 1,  # ListGroups
    19: 2,  # CreateTopics
    20: 1,  # DeleteTopics
    **dict.fromkeys(range(21, 27), 0),  # DeleteRecords … EndTxn
    28: 0,  # TxnOffsetCommit
    **dict.fromkeys(range(29, 36), 0),  # DescribeAcls … DescribeLogDirs
    37: 0,  # CreatePartitions
    **dict.fromkeys(range(42, 47), 0),  # DeleteGroups … ListPartitionReassignments
    **dict.fromkeys(range(48, 52), 0),  # DescribeClientQuotas … AlterUserScramCredentials
    57: 0,  # UpdateFeatures
    60: 0,  # DescribeCluster
    61: 0,  # DescribeProducers
    64: 0,  # UnregisterBroker
    65: 0,  # DescribeTransactions
    66: 0,  # ListTransactions
    68: 0,  # ConsumerGroupHeartbeat
    69: 0,  # ConsumerGroupDescribe
    71: 0,  # GetTelemetrySubscriptions
    72: 0,  # PushTelemetry
    **dict.fromkeys(range(74, 82), 0),  # ListConfigResources … RemoveRaftVoter
    **dict.fromkeys(range(88, 93), 0),  # StreamsGroupHeartbeat … DeleteShareGroupOffsets
}
"""First version whose body begins with the field, by API key."""


def _in_produce(content: View, position: int, version: int) -> int:
    """Return the position after everything but the body's tags."""
    flexible = version >= 9  # KIP-482
    topics, position = array_length(content, position, flexible)
    for _ in range(topics):
        # KIP-516: topic ids instead of names
        position = position + 16 if version >= 13 else skip_string(content, position, flexible)
        partitions, position = array_length(content, position, flexible)
        for _ in range(partitions):
            position = _skip_partition(content, position, version, flexible)
        if flexible:
            position = skip_tags(content, position)
    return position


def _skip_partition(content: View, position: int, version: int, flexible: bool) -> int:
    position += 4 + 2 + 8 + 8
    if version >= 5:
        position += 8  # log_start_offset
    if version >= 8:  # KIP-467
        errors, position = array_length(content, position, flexible)
        for _ in range(errors):
            position = skip_string(content, position + 4, flexible)
            if flexible:
                position = skip_tags(content, position)
        position = skip_string(content, position, flexible)
    return skip_tags(content, position) if flexible else position


def _in_api_versions(content: View, position: int, version: int) -> int:
    flexible = version >= 3  # KIP-511
    apis, position = array_length(content, position + 2, flexible)
    for _ in range(apis):
        position += 2 + 2 + 2
        if flexible:
            position = skip_tags(content, position)
        elif position > len(content):
            raise Malformed("ends inside an array")
    return position


def _in_offset_delete(_content: View, position: int, _version: int) -> int:
    return position + 2  # after the error code


_ELSEWHERE: Final[Mapping[int, tuple[int, Callable[[View, int, int], int]]]] = {
    PRODUCE: (1, _in_produce),
    API_VERSIONS: (1, _in_api_versions),
    _OFFSET_DELETE: (0, _in_offset_delete),
}
"""First version with the field, and the function that finds its position, by API key."""


def has_throttle_time(api_key: int, api_version: int) -> bool:
    """Return whether responses of this version have the field."""
    if api_key in _ELSEWHERE:
        return api_version >= _ELSEWHERE[api_key][0]
    return is_first(api_key, api_version)


def is_first(api_key: int, api_version: int) -> bool:
    """Return whether the body begins with the field."""
    since = _FIRST_SINCE.get(api_key)
    return since is not None and api_version >= since


def place(api_key: int, api_version: int, content: View) -> int | None:
    """Return the position of the field's four bytes; None if this version has none.

    Raises Malformed if `content` ends before the field does.
    """
    if not has_throttle_time(api_key, api_version):
        return None
    position = response_body_at(api_key, api_version, content)
    if api_key in _ELSEWHERE:
        position = _ELSEWHERE[api_key][1](content, position, api_version)
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
        told, _ = int32(content, position)
        if throttle_time_ms > told:
            INT32.pack_into(content, position, throttle_time_ms)
