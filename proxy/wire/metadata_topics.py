"""Topics of a Metadata response, found in its bytes without their partitions.

Metadata of a large cluster is megabytes long, and every client requests it every few minutes.
Schema: Kafka's `MetadataResponse.json`, v0 to v13.
"""

from typing import Final

from proxy.wire.items import Items
from proxy.wire.messages import MetadataResponse
from proxy.wire.primitives import INT32, array_length

FIRST_WITH_TOPIC_IDS: Final = 10
FIRST_WITH_OPERATIONS: Final = 8
"""First version with authorized operations."""
LAST_WITH_CLUSTER_OPERATIONS: Final = 10
NOT_REQUESTED: Final = INT32.pack(-0x8000_0000)
"""Value of Kafka's authorized operations when they were not requested, as bytes."""
_TOPIC_ID: Final = 16


class MetadataTopics(Items):
    """Topics of a response."""

    def __init__(self, api_version: int, body: bytes) -> None:
        """Read the topics in a response's body. Raises Malformed."""
        super().__init__(MetadataResponse, api_version, "topics", body)
        self._with_ids = api_version >= FIRST_WITH_TOPIC_IDS
        self._count_after = _TOPIC_ID * self._with_ids + (api_version >= 1)  # is_internal

    def topic_id(self, place: int) -> bytes | None:
        """Return the id of a topic, zeros for none; None in versions without ids."""
        at = self.name_end(place)
        return self.content(place)[at : at + _TOPIC_ID] if self._with_ids else None

    def partition_count(self, place: int) -> int:
        """Return the number of partitions of a topic."""
        at = self.name_end(place) + self._count_after
        return array_length(self.content(place), at, self.flexible)[0]


def error_code(entry: bytes) -> int:
    """Return the error code of a topic's entry."""
    return int.from_bytes(entry[:2], signed=True)
