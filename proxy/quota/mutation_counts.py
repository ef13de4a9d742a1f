"""Number of partitions that a request creates or deletes (KIP-599), and its judgement by the quota.

As in Kafka (`ReplicationControlManager`), the mutations of a request are counted before it is
executed, even if it is only to be validated. A topic counts as the number of partitions that are
created, deleted or added. Topics that are certain to fail do not count: duplicates, existing topics
to be created, missing topics, invalid numbers. If Kafka rejects a topic for another reason, its
charge is corrected after the response.

In strict versions (`STRICT_SINCE`), topics are refused with THROTTLING_QUOTA_EXCEEDED while there
is a debt. Requests of older versions are executed, and the client is throttled.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.acl.decision import Judgement
from proxy.acl.guards.common import item_type, judge_items
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from proxy.wire.codec import decode, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import NO_ID, Message, replace

STRICT_SINCE: Final = {CREATE_TOPICS: 6, CREATE_PARTITIONS: 3, DELETE_TOPICS: 5}
"""First version with THROTTLING_QUOTA_EXCEEDED, by API key (`ControllerApis`)."""
MAX_OF_A_TOPIC: Final = 10_000
"""Maximum number of partitions charged for one topic: Kafka creates no more per request
(`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`)."""
_DELETED_BY_ID_SINCE: Final = 6
"""First version of DeleteTopics with topic ids (KIP-516)."""
_REQUESTS: Final[Mapping[int, type[Message]]] = {
    CREATE_TOPICS: messages.CreateTopicsRequest,
    CREATE_PARTITIONS: messages.CreatePartitionsRequest,
    DELETE_TOPICS: messages.DeleteTopicsRequest,
}
_RESPONSES: Final[Mapping[int, type[Message]]] = {
    CREATE_TOPICS: messages.CreateTopicsResponse,
    CREATE_PARTITIONS: messages.CreatePartitionsResponse,
    DELETE_TOPICS: messages.DeleteTopicsResponse,
}
_RESULTS: Final = {
    CREATE_TOPICS: "topics",
    CREATE_PARTITIONS: "results",
    DELETE_TOPICS: "responses",
}
_BROKERS_DEFAULT: Final = -1
"""Value that stands for `num.partitions` or the default replication factor. The response may
contain the actual value."""
_EXCEEDED: Final = "The throttling quota has been exceeded."
"""Kafka's message for the error (`Errors`)."""

Key = str | bytes
"""Name or id of a topic in a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTopic:
    """Existing topic with its number of partitions."""

    name: str
    topic_id: bytes
    """Id of the topic; `NO_ID` if the broker did not send it."""
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics of a request, as a broker knew them before the request was executed."""

    found: Mapping[Key, CountedTopic]
    """Existing topics, by name and by id."""
    known: bool = True
    """True if the broker responded; otherwise each topic counts as one partition."""


class MutationRequest:
    """CreateTopics, CreatePartitions or DeleteTopics request."""

    def __init__(self, api_key: int, api_version: int, body: bytes) -> None:
        """Parse a request's body. Raises Malformed."""
        self.api_key = api_key
        self.api_version = api_version
        self._content = decode(_REQUESTS[api_key], api_version, body)
        by_name = api_key == DELETE_TOPICS and api_version < _DELETED_BY_ID_SINCE
        self._items = "topic_names" if by_name else "topics"
        keys = map(self._key, pausing(getattr(self._content, self._items)))
        self._times = Counter(key for key in keys if key is not None)
        self.names: list[Key] = [key for key in pausing(self._times) if isinstance(key, str)]
        """Names and ids of the topics in the request, except those in `ids`."""
        self.ids: list[Key] = [key for key in pausing(self._times) if isinstance(key, bytes)]
        self._charged: dict[Key, int] = {}
        """Number of partitions that were charged, by topic."""

    @property
    def strict(self) -> bool:
        """True if topics are refused; False if the client is throttled afterwards."""
        return self.api_version >= STRICT_SINCE[self.api_key]

    @property
    def charged_in_all(self) -> int:
        """Number of partitions that were charged for all topics together."""
        return sum(self._charged.values())

    def judge(self, topics: Topics, charge: Callable[[int], int | None]) -> Judgement:
        """Charge the topics one after the other, and return the judgement of the request.

        `charge` takes a number of partitions, and returns the number that it charged, or None to
        refuse the topic. If it charged 0 (in audit mode), `done` does not count the topic either.
        """

        def refuse(item: Any) -> Sequence[Message] | None:
            partitions = self._partitions(item, topics)
            if not partitions:
                return None
            key = self._key(item)
            assert key is not None
            charged = charge(partitions)
            if charged is None:
                return (self._refusal(key, topics.found.get(key)),)
            self._charged[key] = charged
            return None

        return judge_items(
            self.api_version,
            self._content,
            _RESPONSES[self.api_key],
            refuse,
            items=self._items,
            results=_RESULTS[self.api_key],
            order_by=("name",) if self.api_key == CREATE_TOPICS else (),
        )

    def done(self, body: bytes) -> int:
        """Return the number of partitions created or deleted, from the response for the allowed
        topics. Raises Malformed."""
        response = decode(_RESPONSES[self.api_key], self.api_version, body)
        return sum(map(self._done, pausing(getattr(response, _RESULTS[self.api_key]))))

    def with_throttle_time(self, body: bytes, throttle_time_ms: int) -> bytes:
        """Return the response body with at least this throttle time."""
        if not throttle_time_ms:
            return body
        response: Any = decode(_RESPONSES[self.api_key], self.api_version, body)
        longest = max(response.throttle_time_ms, throttle_time_ms)
        return encode(replace(response, throttle_time_ms=longest), self.api_version)

    def _key(self, item: Any) -> Key | None:
        """Return the name or id of an item's topic; None if the item has both or neither."""
        if self._items == "topic_names":
            return str(item)
        name: str | None = item.name
        topic_id: bytes = NO_ID if self.api_key != DELETE_TOPICS else item.topic_id
        if topic_id == NO_ID:
            return name
        return topic_id if name is None else None

    def _partitions(self, item: Any, topics: Topics) -> int:
        """Return the number of partitions to charge for an item."""
        key = self._key(item)
        if key is None or self._times[key] > 1:
            return 0
        topic = topics.found.get(key)
        if self.api_key == CREATE_TOPICS:
            count = 0 if topic is not None else _created(item)
        elif topic is None:
            count = 0 if topics.known else 1
        elif self.api_key == CREATE_PARTITIONS:
            count = _added(item, topic)
        else:
            twice = topic.name in self._times and topic.topic_id in self._times
            count = 0 if twice else topic.partitions
        return min(count, MAX_OF_A_TOPIC)

    def _refusal(self, key: Key, topic: CountedTopic | None) -> Message:
        name = key if topic is None else topic.name
        kind = item_type(_RESPONSES[self.api_key], _RESULTS[self.api_key])
        refusal: Message = kind(
            name=None if isinstance(name, bytes) else name,
            error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            error_message=_EXCEEDED,
        )
        if self.api_key == DELETE_TOPICS and topic is not None:
            return replace(refusal, topic_id=topic.topic_id)
        return refusal

    def _done(self, result: Any) -> int:
        if result.error_code != ErrorCode.NONE:
            return 0
        by_id = self._charged.get(getattr(result, "topic_id", NO_ID))
        charged = self._charged.get(result.name or "", by_id)
        partitions = getattr(result, "num_partitions", _BROKERS_DEFAULT)
        if partitions > 0 and charged != 0:
            return partitions
        # 1: the request was executed although the queried broker did not know the topic
        return 1 if charged is None else charged


def _created(item: Any) -> int:
    if item.assignments:
        by_hand = item.num_partitions == item.replication_factor == _BROKERS_DEFAULT
        return len(item.assignments) if by_hand else 0
    if item.replication_factor == 0 or item.replication_factor < _BROKERS_DEFAULT:
        return 0
    return 1 if item.num_partitions == _BROKERS_DEFAULT else max(0, item.num_partitions)


def _added(item: Any, topic: CountedTopic) -> int:
    added: int = item.count - topic.partitions
    if item.assignments is not None and len(item.assignments) != added:
        return 0
    return max(0, added)
