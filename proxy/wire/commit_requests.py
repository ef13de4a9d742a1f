"""Walk through an OffsetCommit request: the numbers that change from one to the next.

Schema: Kafka's `OffsetCommitRequest.json`, v8 to v10, the flexible ones.
"""

from typing import Final

from proxy.wire.apis import APIS, OFFSET_COMMIT

FIRST_FLEXIBLE: Final = APIS[OFFSET_COMMIT].first_flexible
FIRST_WITH_TOPIC_IDS: Final = 10
_TOPIC_ID: Final = 16
_GENERATION: Final = 4
_NUMBERS: Final = 4 + 8 + 4
"""Size of partition_index, committed_offset and committed_leader_epoch, in bytes."""


def numbers(api_version: int, frame: bytes, at: int, end: int) -> list[tuple[int, int]] | None:
    """Return the range of each partition's numbers, in a frame that ends at `end`.

    `at` is the position of the header's tagged fields. Returns None if the request is of an older
    version or has anything unusual, such as tags or long names.
    """
    if api_version < FIRST_FLEXIBLE:
        return None
    found = []
    try:
        position = _after_string(frame, at + 1) + _GENERATION  # group_id
        position = _after_string(frame, _after_string(frame, position))  # member, instance
        topics = _short(frame, position)
        position += 1
        for _ in range(topics - 1):
            if api_version >= FIRST_WITH_TOPIC_IDS:
                position += _TOPIC_ID
            else:
                position = _after_string(frame, position)
            partitions = _short(frame, position)
            position += 1
            for _ in range(partitions - 1):
                found.append((position, position + _NUMBERS))
                position = _after_string(frame, position + _NUMBERS)  # committed_metadata
                position = _after_no_tags(frame, position)
            position = _after_no_tags(frame, position)
        position = _after_no_tags(frame, position)
    except IndexError:
        return None
    return found if not frame[at] and position == end else None


def _short(frame: bytes, position: int) -> int:
    """Return a length plus one. Raises IndexError for null, and for two-byte lengths."""
    length = frame[position]
    if not 0 < length < 0x80:
        raise IndexError
    return length


def _after_string(frame: bytes, position: int) -> int:
    """Return the position after a string, null or not. Raises IndexError for a long one."""
    length = frame[position]
    if length >= 0x80:
        raise IndexError
    return position + max(length, 1)


def _after_no_tags(frame: bytes, position: int) -> int:
    """Return the position after an empty section of tagged fields. Raises IndexError if there are
    any."""
    if frame[position]:
        raise IndexError
    return position + 1
