"""Guard of DescribeTopicPartitions (KIP-966): Describe on each topic.

A request without topics lists all of them. The broker hides none: the boundaries of its pages would
reveal topics that the client may not describe. Unless all may be described, the proxy therefore
requests the permitted ones by name, as many as a page can hold; the broker pages among these.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import BodyTransform, Change, Inquiry, Judgement, TopicsUnlisted
from proxy.acl.guards.checks import may_topic
from proxy.acl.guards.entities import entities, entity, item_type, struct_type
from proxy.acl.guards.responses import answer, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import DESCRIBE_TOPIC_PARTITIONS
from proxy.wire.codec import decode, encode, request_type, response_type

_DENIED: Final = ErrorCode.topic_authorization_failed
_MAX_PARTITIONS: Final = 2_000
"""Maximum number of partitions in a page, whatever the client allows: the default of Kafka's
`max.request.partition.size.limit`."""


def describe_topic_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTopicPartitions."""
    request = read_request(inquiry, DESCRIBE_TOPIC_PARTITIONS)
    if not request.topics:
        return _of_all(inquiry, request)
    cursor = request.cursor
    names = [topic.name for topic in pausing(request.topics)]
    if cursor is not None and (cursor.partition_index < 0 or cursor.topic_name not in names):
        # As in Kafka, whatever the permissions
        refusals = _refusals(names, ErrorCode.invalid_request)
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=refusals)
    requested = {
        topic.name: topic
        for topic in pausing(request.topics)
        if cursor is None or _sort_key(topic.name) >= _sort_key(cursor.topic_name)
    }
    permitted = {name for name in requested if may_topic(inquiry, Operation.DESCRIBE, name)}
    kept = tuple(topic for name, topic in requested.items() if name in permitted)
    refused = [name for name in requested if name not in permitted]
    if not kept:  # an empty list would request all
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=_refusals(refused))
    if not refused:
        return Change(response=_cut(inquiry))
    if cursor is not None and cursor.topic_name not in permitted:
        cursor = None
    smaller = replace(request, topics=kept, cursor=cursor)
    return Change(request=encode(smaller), response=_cut(inquiry, refused))


def _of_all(inquiry: Inquiry, request: Any) -> Judgement:
    """Judge a request for all topics. Raises TopicsUnlisted."""
    if inquiry.authority.may_every(Operation.DESCRIBE, ResourceType.TOPIC, "", report=False):
        return Change(response=_cut(inquiry))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:  # Kafka refuses each named topic
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=[], next_cursor=None)
    # Each topic has a partition, except the first, of which the cursor may leave none
    max_topics = 1 + min(max(request.response_partition_limit, 1), _MAX_PARTITIONS)
    first = "" if cursor is None else cursor.topic_name
    names = [*islice(_visible(inquiry, first), max_topics + 1)]
    page, next_topic = names[:max_topics], names[max_topics:]
    if not page:  # an empty list would request all
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=[], next_cursor=None)
    if cursor is not None and cursor.topic_name != page[0]:
        cursor = None
    item = item_type(request_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version), "topics")
    topics = entities(item, ({"name": name} for name in page))
    smaller = replace(request, topics=topics, cursor=cursor)
    return Change(request=encode(smaller), response=_page(inquiry, *next_topic))


def _visible(inquiry: Inquiry, first: str) -> Iterator[str]:
    """Yield the names of all topics that may be described, sorted, from `first` on."""
    names = inquiry.listed
    if names is None:
        raise TopicsUnlisted
    # Names are ASCII, so they sort as in Java, whatever `first` is
    for name in pausing(islice(names, bisect_left(names, first), None)):
        if may_topic(inquiry, Operation.DESCRIBE, name, report=False):
            yield name


def _sort_key(name: str) -> bytes:
    """Return a key that sorts strings as Java does."""
    return name.encode("utf-16-be")


def _refusals(names: list[str], error: ErrorCode = _DENIED) -> list[dict[str, Any]]:
    """Return refusals without an id or the internal flag: they must not show whether a topic
    exists."""
    return [
        {"error_code": error, "name": name, "topic_id": None, "partitions": []}
        for name in pausing(names)
    ]


def _cut(inquiry: Inquiry, refused: list[str] | None = None) -> BodyTransform:
    """Return a transformation that keeps the permitted topics, with their authorized operations,
    and appends the refusals."""
    schema = response_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version)
    refusals = entities(item_type(schema, "topics"), _refusals(refused or []))

    def cut(body: bytes) -> bytes:
        response = decode(schema, body)
        return encode(replace(response, topics=(*_shown(inquiry, response), *refusals)))

    return cut


def _page(inquiry: Inquiry, next_topic: str | None = None) -> BodyTransform:
    """Return a transformation that makes one page of all topics from the response about some.

    `next_topic` is the first topic that was not requested; None if there are no more.
    """
    schema = response_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version)

    def page(body: bytes) -> bytes:
        response = decode(schema, body)
        # A topic that was deleted meanwhile is reported only to clients that named it
        shown = tuple(one for one in _shown(inquiry, response) if one.error_code is ErrorCode.none)
        cursor = response.next_cursor
        if cursor is None and next_topic is not None:
            kind = struct_type(schema, "next_cursor")
            cursor = entity(kind, {"topic_name": next_topic, "partition_index": 0})
        return encode(replace(response, topics=shown, next_cursor=cursor))

    return page


def _shown(inquiry: Inquiry, response: Any) -> Iterator[Any]:
    """Yield the topics that may be described, with their authorized operations."""
    for topic in pausing(response.topics):
        if topic.name is not None and may_topic(
            inquiry, Operation.DESCRIBE, topic.name, report=False
        ):
            rights = inquiry.authority.operations(ResourceType.TOPIC, topic.name)
            yield replace(topic, topic_authorized_operations=rights)
