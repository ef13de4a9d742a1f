"""Guard of DescribeTopicPartitions (KIP-966): Describe on each topic.

A request without topics asks for all. The broker, which hides nothing, would page through them, and
begin and end its pages where only who sees all topics can know. Unless all may be described, it is
therefore asked for those that may, by name, as many as a page can hold; it pages among these.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import BodyTransform, Change, Inquiry, Judgement, TopicsUnlisted
from proxy.acl.guards.entities import item_type, struct_type
from proxy.acl.guards.items import answer, entities, entity, may_topic, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.codec import decode, encode, request_type, response_type

DESCRIBE_TOPIC_PARTITIONS: Final = 75

_DENIED: Final = ErrorCode.topic_authorization_failed
_MAX_PARTITIONS: Final = 2_000
"""Of a page, whatever the client allows: Kafka's `max.request.partition.size.limit` by default."""


def describe_topic_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTopicPartitions."""
    request = read_request(inquiry, DESCRIBE_TOPIC_PARTITIONS)
    if not request.topics:
        return _of_all(inquiry, request)
    cursor = request.cursor
    names = [topic.name for topic in pausing(request.topics)]
    if cursor is not None and (cursor.partition_index < 0 or cursor.topic_name not in names):
        refusals = _refusals(names, ErrorCode.invalid_request)  # as in Kafka, whatever the rights
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=refusals)
    asked = {
        topic.name: topic
        for topic in pausing(request.topics)
        if cursor is None or _sort_key(topic.name) >= _sort_key(cursor.topic_name)
    }
    seen = {name for name in asked if may_topic(inquiry, Operation.DESCRIBE, name)}
    kept = tuple(topic for name, topic in asked.items() if name in seen)
    refused = [name for name in asked if name not in seen]
    if not kept:  # none must not become all
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=_refusals(refused))
    if not refused:
        return Change(response=_cut(inquiry))
    if cursor is not None and cursor.topic_name not in seen:
        cursor = None
    smaller = replace(request, topics=kept, cursor=cursor)
    return Change(request=encode(smaller), response=_cut(inquiry, refused))


def _of_all(inquiry: Inquiry, request: Any) -> Judgement:
    """Judge a request for all topics. Raises TopicsUnlisted."""
    if inquiry.authority.may_every(Operation.DESCRIBE, ResourceType.TOPIC, "", report=False):
        return Change(response=_cut(inquiry))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:  # refused by Kafka, topic by topic named
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=[], next_cursor=None)
    # Each has a partition, but for the first, of which the cursor may leave none
    most = 1 + min(max(request.response_partition_limit, 1), _MAX_PARTITIONS)
    names = [*islice(_visible(inquiry, "" if cursor is None else cursor.topic_name), most + 1)]
    page, behind = names[:most], names[most:]
    if not page:  # none must not become all
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=[], next_cursor=None)
    if cursor is not None and cursor.topic_name != page[0]:
        cursor = None
    item = item_type(request_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version), "topics")
    topics = entities(item, ({"name": name} for name in page))
    smaller = replace(request, topics=topics, cursor=cursor)
    return Change(request=encode(smaller), response=_page(inquiry, *behind))


def _visible(inquiry: Inquiry, first: str) -> Iterator[str]:
    """Yield the names of all topics that may be described, in order, not before `first`."""
    names = inquiry.listed
    if names is None:
        raise TopicsUnlisted
    # They are ASCII, and so sorted as Java does, whatever `first` is
    for name in pausing(islice(names, bisect_left(names, first), None)):
        if may_topic(inquiry, Operation.DESCRIBE, name, report=False):
            yield name


def _sort_key(name: str) -> bytes:
    """Return what sorts as Java compares strings."""
    return name.encode("utf-16-be")


def _refusals(names: list[str], error: ErrorCode = _DENIED) -> list[dict[str, Any]]:
    """No id, and not whether it is internal: it is not looked whether they exist."""
    return [
        {
            "error_code": error,
            "name": name,
            "topic_id": None,
            "partitions": [],
        }
        for name in pausing(names)
    ]


def _cut(inquiry: Inquiry, refused: list[str] | None = None) -> BodyTransform:
    """Show what may be seen, with the rights on it, and the refusals behind."""
    schema = response_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version)
    refusals = entities(item_type(schema, "topics"), _refusals(refused or []))

    def cut(body: bytes) -> bytes:
        response = decode(schema, body)
        return encode(replace(response, topics=(*_shown(inquiry, response), *refusals)))

    return cut


def _page(inquiry: Inquiry, behind: str | None = None) -> BodyTransform:
    """Make a page of all topics of what the broker says of some.

    `behind`: the first of which it was not asked; None: there are no more.
    """
    schema = response_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version)

    def page(body: bytes) -> bytes:
        response = decode(schema, body)
        # Deleted meanwhile, which is told to nobody who did not name it
        there = tuple(one for one in _shown(inquiry, response) if one.error_code is ErrorCode.none)
        cursor = response.next_cursor
        if cursor is None and behind is not None:
            kind = struct_type(schema, "next_cursor")
            cursor = entity(kind, {"topic_name": behind, "partition_index": 0})
        return encode(replace(response, topics=there, next_cursor=cursor))

    return page


def _shown(inquiry: Inquiry, response: Any) -> Iterator[Any]:
    """Yield the topics that may be seen, with the rights on them."""
    for topic in pausing(response.topics):
        if topic.name is not None and may_topic(
            inquiry, Operation.DESCRIBE, topic.name, report=False
        ):
            rights = inquiry.authority.operations(ResourceType.TOPIC, topic.name)
            yield replace(topic, topic_authorized_operations=rights)
