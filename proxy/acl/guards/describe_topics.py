"""Guard of DescribeTopicPartitions (KIP-966): Describe on each topic.

A request without topics lists all of them. The broker hides none: the boundaries of its pages would
reveal topics that the client may not describe. Unless all may be described, the proxy therefore
requests the permitted ones by name, as many as a page can hold; the broker pages among these.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from proxy.acl.decision import BodyTransform, Change, Inquiry, Judgement, TopicsUnlisted
from proxy.acl.guards.checks import may_topic
from proxy.acl.guards.responses import answer, on_listing, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.items import Items
from proxy.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    replace,
)
from proxy.wire.metadata_topics import error_code
from proxy.wire.primitives import INT32

_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_CURSOR: Final = b"\xff"
"""Encoded null of the cursor, which follows the topics."""
_OPERATIONS: Final = 4 + 1
"""Size of the authorized operations and of no tagged fields, at the end of a topic, in bytes."""
_MAX_PARTITIONS: Final = 2_000
"""Maximum number of partitions in a page, whatever the client allows: the default of Kafka's
`max.request.partition.size.limit`."""


def describe_topic_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTopicPartitions."""
    request = read_request(inquiry, DescribeTopicPartitionsRequest)
    if not request.topics:
        return _of_all(inquiry, request)
    cursor = request.cursor
    names = [topic.name for topic in pausing(request.topics)]
    if cursor is not None and (cursor.partition_index < 0 or cursor.topic_name not in names):
        # As in Kafka, whatever the permissions
        refusals = _refusals(names, ErrorCode.INVALID_REQUEST)
        return answer(inquiry, DescribeTopicPartitionsResponse(topics=refusals))
    requested = {
        topic.name: topic
        for topic in pausing(request.topics)
        if cursor is None or _sort_key(topic.name) >= _sort_key(cursor.topic_name)
    }
    permitted = {name for name in requested if may_topic(inquiry, Operation.DESCRIBE, name)}
    kept = tuple(topic for name, topic in requested.items() if name in permitted)
    refused = [name for name in requested if name not in permitted]
    if not kept:  # an empty list would request all
        return answer(inquiry, DescribeTopicPartitionsResponse(topics=_refusals(refused)))
    if not refused:
        return Change(response=_cut(inquiry))
    if cursor is not None and cursor.topic_name not in permitted:
        cursor = None
    smaller = replace(request, topics=kept, cursor=cursor)
    return Change(request=encode(smaller, inquiry.api_version), response=_cut(inquiry, refused))


def _of_all(inquiry: Inquiry, request: DescribeTopicPartitionsRequest) -> Judgement:
    """Judge a request for all topics. Raises TopicsUnlisted."""
    if inquiry.authority.may_every(Operation.DESCRIBE, ResourceType.TOPIC, "", report=False):
        return Change(response=_cut(inquiry))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:  # Kafka refuses each named topic
        return answer(inquiry, DescribeTopicPartitionsResponse())
    # Each topic has a partition, except the first, of which the cursor may leave none
    max_topics = 1 + min(max(request.response_partition_limit, 1), _MAX_PARTITIONS)
    first = "" if cursor is None else cursor.topic_name
    names = [*islice(_visible(inquiry, first), max_topics + 1)]
    page, next_topic = names[:max_topics], names[max_topics:]
    if not page:  # an empty list would request all
        return answer(inquiry, DescribeTopicPartitionsResponse())
    if cursor is not None and cursor.topic_name != page[0]:
        cursor = None
    topics = tuple(DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in page)
    smaller = replace(request, topics=topics, cursor=cursor)
    return Change(
        request=encode(smaller, inquiry.api_version), response=_page(inquiry, *next_topic)
    )


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


def _refusals(
    names: list[str], error: ErrorCode = _DENIED
) -> tuple[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic, ...]:
    """Return refusals without an id or the internal flag: they must not show whether a topic
    exists."""
    topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return tuple(topic(error_code=error, name=name) for name in names)


def _cut(inquiry: Inquiry, refused: Iterable[str] = ()) -> BodyTransform:
    """Return a transformation that keeps the permitted topics, with their authorized operations,
    and appends the refusals."""
    version = inquiry.api_version
    names = tuple(refused)

    def cut(body: bytes) -> bytes:
        topics = Items(DescribeTopicPartitionsResponse, version, "topics", body)
        refusals = (encode(one, version) for one in _refusals(list(names)))
        return topics.replaced([*_shown(inquiry, topics), *refusals])

    return on_listing(inquiry, DescribeTopicPartitionsResponse, cut, names)


def _page(inquiry: Inquiry, next_topic: str | None = None) -> BodyTransform:
    """Return a transformation that makes one page of all topics from the response about some.

    `next_topic` is the first topic that was not requested; None if there are no more.
    """
    version = inquiry.api_version
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=next_topic or "")

    def page(body: bytes) -> bytes:
        topics = Items(DescribeTopicPartitionsResponse, version, "topics", body)
        # A topic that was deleted meanwhile is reported only to clients that named it
        shown = [one for one in _shown(inquiry, topics) if error_code(one) == ErrorCode.NONE]
        changed = topics.replaced(shown)
        at = len(changed) - (len(body) - topics.end)
        if next_topic is None or changed[at : at + 1] != _NO_CURSOR:
            return changed
        return changed[:at] + b"\x01" + encode(cursor, version) + changed[at + 1 :]

    return on_listing(inquiry, DescribeTopicPartitionsResponse, page, next_topic)


def _shown(inquiry: Inquiry, topics: Items) -> Iterator[bytes]:
    """Yield the bytes of each topic that may be described, with its authorized operations."""
    names = [name or "" for name in topics.names]
    may = inquiry.authority.may_each(Operation.DESCRIBE, ResourceType.TOPIC, names)
    shown = [place for place, name in enumerate(names) if may[place] and name]
    some = [names[place] for place in shown]
    rights = inquiry.authority.operations_each(ResourceType.TOPIC, some)
    for place, operations in pausing(zip(shown, rights, strict=True)):
        yield topics.content(place)[:-_OPERATIONS] + INT32.pack(operations) + b"\0"
