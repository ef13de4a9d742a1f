"""Guards of Metadata and DescribeTopicPartitions: Describe on each topic.

Metadata also requires Create for topics that would be created. Kafka creates a missing topic that a
request names, unless the request forbids it. Here the broker may create topics only if the client
may create every topic in the request, because the proxy does not know beforehand which topics
exist. Otherwise the request forbids creation; versions before 4 cannot, so such a request is sent
to the broker as version 4. Topics that are then missing are denied if the brokers create topics
automatically, and otherwise unknown.

A DescribeTopicPartitions (KIP-966) without topics lists all of them. The boundaries of the broker's
pages would reveal topics that the client may not describe. Unless the client may describe all
topics, the proxy therefore requests the permitted ones by name, as many as a page can hold, and the
broker divides these into pages.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from proxy.acl.decision import (
    FORWARD,
    Answer,
    BodyTransform,
    Change,
    Inquiry,
    Judgement,
    TopicsUnlisted,
    names_of,
)
from proxy.acl.guards.common import TOPIC_DENIED, on_listing
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.steps import pausing
from proxy.wire.codec import decode, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.items import Items
from proxy.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
    replace,
)
from proxy.wire.metadata import (
    FIRST_WITH_OPERATIONS,
    LAST_WITH_CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    MetadataTopics,
    error_code,
)
from proxy.wire.primitives import INT32, Malformed
from proxy.wire.schema import NO_ID

_FIRST_WITH_CREATION_FLAG: Final = 4
"""First version with allow_auto_topic_creation."""
_FIRST_BY_ID: Final = 12
"""First version in which topics may be named by their ids."""

_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
"""Errors that a broker returns for a missing or invalid topic if it must not create topics."""

_Topic = MetadataResponse.MetadataResponseTopic


class _RequestedTopic(NamedTuple):
    """Topic of the request."""

    name: str | None
    """Name of the topic; None if no topic has its id."""
    topic_id: bytes | None
    """Id of the topic; None if the request names it by name."""
    entry: MetadataRequest.MetadataRequestTopic
    """Item of the request."""


def metadata(inquiry: Inquiry) -> Judgement:
    """Judge a Metadata request."""
    request = inquiry.read(MetadataRequest)
    operations = (
        request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
    if request.topics is None or (inquiry.api_version == 0 and not request.topics):
        everything = inquiry.authority.may_every(
            Operation.DESCRIBE, ResourceType.TOPIC, "", report=False
        )
        if everything and not operations:
            return FORWARD
        return Change(response=on_listing(inquiry, MetadataResponse, _cut(inquiry)))
    requested = _requested(inquiry, request.topics)
    if requested is None:
        return _invalid(inquiry, request.topics)
    refused = {topic: error for topic in requested if (error := _error(inquiry, topic))}
    kept = [topic for topic in pausing(requested) if topic not in refused]
    creates = request.allow_auto_topic_creation
    not_creatable = _not_creatable(inquiry, kept) if creates else frozenset()
    if not refused and not not_creatable and not operations:
        return FORWARD
    cut = _cut(inquiry, _refused_entries(inquiry.api_version, refused), not_creatable)
    # Also with auto.create.topics.enable=false: our copy of the brokers' setting could be wrong
    forbid = bool(not_creatable)
    changed = replace(
        request,
        topics=tuple(topic.entry for topic in kept),
        allow_auto_topic_creation=creates and not forbid,
    )
    if (forbid or not kept) and inquiry.api_version < _FIRST_WITH_CREATION_FLAG:
        # An empty list would request all topics in version 0
        return _in_a_later_version(inquiry.api_version, changed, cut)
    return Change(request=inquiry.encoded(changed) if refused or forbid else None, response=cut)


def _requested(
    inquiry: Inquiry, topics: Iterable[MetadataRequest.MetadataRequestTopic]
) -> list[_RequestedTopic] | None:
    """Return the topics of the request. None if a topic has an id in a version without ids, or
    neither name nor id."""
    by_id = [topic for topic in pausing(topics) if topic.topic_id != NO_ID]
    by_name = [topic for topic in topics if topic.name is None] and not by_id
    if (by_id and inquiry.api_version < _FIRST_BY_ID) or by_name:
        return None
    if by_id:  # like Kafka, ignore their names
        entries = {topic.topic_id: topic for topic in pausing(by_id)}
        names = names_of(inquiry.topics, entries)
        return [
            _RequestedTopic(name=names[one], topic_id=one, entry=entries[one])
            for one in pausing(entries)
        ]
    named = {topic.name: topic for topic in pausing(topics)}
    return [
        _RequestedTopic(name=name, topic_id=None, entry=entry)
        for name, entry in pausing(named.items())
    ]


def _invalid(inquiry: Inquiry, topics: Iterable[MetadataRequest.MetadataRequestTopic]) -> Answer:
    """Return Kafka's response to an invalid request."""
    error = ErrorCode.INVALID_REQUEST
    entries = (
        _Topic(error_code=error, name=topic.name or "", topic_id=topic.topic_id) for topic in topics
    )
    return inquiry.answer(MetadataResponse(topics=tuple(entries)))


def _error(inquiry: Inquiry, topic: _RequestedTopic) -> ErrorCode | None:
    if topic.name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return None if inquiry.may_topic(Operation.DESCRIBE, topic.name) else TOPIC_DENIED


def _not_creatable(inquiry: Inquiry, topics: Iterable[_RequestedTopic]) -> frozenset[str]:
    if inquiry.may_cluster(Operation.CREATE, report=False):
        return frozenset()
    names = [topic.name for topic in pausing(topics) if topic.name is not None]
    return frozenset(
        name for name in names if not inquiry.may_topic(Operation.CREATE, name, report=False)
    )


def _refused_entries(api_version: int, refused: dict[_RequestedTopic, ErrorCode]) -> list[bytes]:
    entries = []
    for topic, error in pausing(refused.items()):
        # The response to a request by name has no id; that to a request by id has no name (KIP-516)
        name = None if topic.topic_id is not None else topic.name
        entry = _Topic(error_code=error, name=name, topic_id=topic.topic_id or NO_ID)
        entries.append(encode(entry, api_version))
    return entries


def _cut(
    inquiry: Inquiry, refused: Iterable[bytes] = (), not_creatable: frozenset[str] = frozenset()
) -> BodyTransform:
    """Return a transformation that removes the topics that may not be described from a response,
    and adds the entries of refused topics.

    `not_creatable` are the requested topics that the client may describe but not create.
    """
    version = inquiry.api_version
    denied_if_missing = not_creatable if inquiry.brokers_make_topics else frozenset()

    def cut(body: bytes) -> bytes:
        topics = MetadataTopics(version, body)
        names = [name or "" for name in topics.names]
        may = inquiry.authority.may_each(Operation.DESCRIBE, ResourceType.TOPIC, names)
        shown = [place for place, name in enumerate(topics.names) if may[place] or name is None]
        entries = [topics.content(place) for place in pausing(shown)]
        for number, place in enumerate(shown):
            if names[place] in denied_if_missing and error_code(entries[number]) in _MISSING:
                entries[number] = encode(
                    _Topic(error_code=TOPIC_DENIED, name=names[place]), version
                )
        if version >= FIRST_WITH_OPERATIONS:
            _put_operations(inquiry, entries, [names[place] for place in shown])
        changed = topics.replaced([*entries, *refused])
        if not FIRST_WITH_OPERATIONS <= version <= LAST_WITH_CLUSTER_OPERATIONS:
            return changed
        at = len(changed) - (len(body) - topics.end)
        if len(body) < topics.end + 4:
            raise Malformed("ends inside the topics")
        if changed[at : at + 4] == NOT_REQUESTED:
            return changed
        return changed[:at] + INT32.pack(_cluster_operations(inquiry)) + changed[at + 4 :]

    return cut


def _put_operations(inquiry: Inquiry, entries: list[bytes], names: list[str]) -> None:
    """Replace the authorized operations near the end of each entry, if they were requested."""
    end = 1 if inquiry.api_version >= MetadataResponse.HEAD.first_flexible else 0
    at = -4 - end
    asked = [
        place
        for place, entry in enumerate(entries)
        if names[place] and entry[at : len(entry) - end] != NOT_REQUESTED
    ]
    some = [names[place] for place in asked]
    rights = inquiry.authority.operations_each(ResourceType.TOPIC, some)
    for place, operations in zip(asked, rights, strict=True):
        entry = entries[place]
        entries[place] = entry[:at] + INT32.pack(operations) + entry[len(entry) - end :]


def _cluster_operations(inquiry: Inquiry) -> int:
    """Return the authorized operations on the cluster; 0 if the principal may not describe it."""
    if inquiry.may_cluster(Operation.DESCRIBE, report=False):
        return inquiry.authority.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return 0


def _in_a_later_version(version: int, request: MetadataRequest, cut: BodyTransform) -> Judgement:
    """Return the judgement that sends the request in the first version that can forbid the creation
    of topics."""
    later = _FIRST_WITH_CREATION_FLAG
    forbidding = replace(request, allow_auto_topic_creation=False)

    def back(body: bytes) -> bytes:
        return cut(encode(decode(MetadataResponse, later, body), version))

    return Change(request=encode(forbidding, later), response=back, api_version=later)


_NO_CURSOR: Final = b"\xff"
"""Encoded null of the cursor, which follows the topics."""
_OPERATIONS: Final = 4 + 1
"""Size in bytes of the end of a topic: the authorized operations, and an empty list of tagged
fields."""
_MAX_PARTITIONS: Final = 2_000
"""Maximum number of partitions in a page, regardless of the client's limit: the default of Kafka's
`max.request.partition.size.limit`."""


def describe_topic_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTopicPartitions."""
    request = inquiry.read(DescribeTopicPartitionsRequest)
    if not request.topics:
        return _of_all(inquiry, request)
    cursor = request.cursor
    names = [topic.name for topic in pausing(request.topics)]
    if cursor is not None and (cursor.partition_index < 0 or cursor.topic_name not in names):
        # As in Kafka, regardless of permissions
        refusals = _refusals(names, ErrorCode.INVALID_REQUEST)
        return inquiry.answer(DescribeTopicPartitionsResponse(topics=refusals))
    requested = {
        topic.name: topic
        for topic in pausing(request.topics)
        if cursor is None or _sort_key(topic.name) >= _sort_key(cursor.topic_name)
    }
    permitted = {name for name in requested if inquiry.may_topic(Operation.DESCRIBE, name)}
    kept = tuple(topic for name, topic in requested.items() if name in permitted)
    refused = [name for name in requested if name not in permitted]
    if not kept:  # an empty list would request all
        return inquiry.answer(DescribeTopicPartitionsResponse(topics=_refusals(refused)))
    if not refused:
        return Change(response=_cut_partitions(inquiry))
    if cursor is not None and cursor.topic_name not in permitted:
        cursor = None
    smaller = replace(request, topics=kept, cursor=cursor)
    return Change(request=inquiry.encoded(smaller), response=_cut_partitions(inquiry, refused))


def _of_all(inquiry: Inquiry, request: DescribeTopicPartitionsRequest) -> Judgement:
    """Judge a request for all topics. Raises TopicsUnlisted."""
    if inquiry.authority.may_every(Operation.DESCRIBE, ResourceType.TOPIC, "", report=False):
        return Change(response=_cut_partitions(inquiry))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:  # Kafka refuses each named topic
        return inquiry.answer(DescribeTopicPartitionsResponse())
    # Each topic adds a partition to the page, except the first if the cursor is after its last one
    max_topics = 1 + min(max(request.response_partition_limit, 1), _MAX_PARTITIONS)
    first = "" if cursor is None else cursor.topic_name
    names = [*islice(_visible(inquiry, first), max_topics + 1)]
    page, next_topic = names[:max_topics], names[max_topics:]
    if not page:  # an empty list would request all
        return inquiry.answer(DescribeTopicPartitionsResponse())
    if cursor is not None and cursor.topic_name != page[0]:
        cursor = None
    topics = tuple(DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in page)
    smaller = replace(request, topics=topics, cursor=cursor)
    return Change(request=inquiry.encoded(smaller), response=_page(inquiry, *next_topic))


def _visible(inquiry: Inquiry, first: str) -> Iterator[str]:
    """Yield the names of all topics that may be described, sorted, from `first` on."""
    names = inquiry.listed
    if names is None:
        raise TopicsUnlisted
    # Names are ASCII, so they sort as in Java, even if `first` is not ASCII
    for name in pausing(islice(names, bisect_left(names, first), None)):
        if inquiry.may_topic(Operation.DESCRIBE, name, report=False):
            yield name


def _sort_key(name: str) -> bytes:
    """Return a key that sorts strings as Java does."""
    return name.encode("utf-16-be")


def _refusals(
    names: list[str], error: ErrorCode = TOPIC_DENIED
) -> tuple[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic, ...]:
    """Return refusals without an id or the internal flag, which would reveal whether a topic
    exists."""
    topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return tuple(topic(error_code=error, name=name) for name in names)


def _cut_partitions(inquiry: Inquiry, refused: Iterable[str] = ()) -> BodyTransform:
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
    """Return a transformation that turns the response for some topics into one page of all topics.

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
