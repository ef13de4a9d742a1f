"""Guard of Metadata: Describe on each topic, Create where a topic would be created.

Kafka creates a missing topic that a request names, unless the request forbids it. Here the broker
may create topics only if that is allowed for every topic in the request: if one may not be created,
none is, because the proxy does not know beforehand which topics exist. Versions before 4 cannot
forbid it, so such a request is sent to the broker as version 4. Topics that are then missing are
denied if the brokers create topics automatically, and otherwise unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    Answer,
    BodyTransform,
    Change,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_cluster, may_describe, may_topic
from proxy.acl.guards.entities import NOT_THROTTLED, item_type, make, uuid_or_none
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import METADATA
from proxy.wire.codec import decode, encode, request_type, response_type
from proxy.wire.metadata_topics import Topic, keep, parse, with_operations

_FIRST_WITH_CREATION_FLAG: Final = 4
"""First version with allow_auto_topic_creation."""
_FIRST_BY_ID: Final = 12
"""First version in which topics may be named by their ids."""

_DENIED: Final = ErrorCode.topic_authorization_failed
_MISSING: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.invalid_topic_exception,
)
"""Errors of a broker that must not create a topic, for one that does not exist or is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestedTopic:
    """Topic of the request."""

    name: str | None
    """Name of the topic; None if no topic has its id."""
    topic_id: bytes | None
    """Id of the topic; None if the request names it by name."""
    entry: Any
    """Item of the request."""


def metadata(inquiry: Inquiry) -> Judgement:
    """Judge a Metadata request."""
    request = decode(request_type(METADATA, inquiry.api_version), inquiry.body)
    if request.topics is None or (inquiry.api_version == 0 and not request.topics):
        return Change(response=_cut(inquiry))
    requested = _requested(inquiry, request.topics)
    if requested is None:
        return Answer(_invalid(inquiry.api_version, request.topics))
    refused = {topic: error for topic in requested if (error := _error(inquiry, topic))}
    kept = [topic for topic in pausing(requested) if topic not in refused]
    creates = getattr(request, "allow_auto_topic_creation", True)
    not_creatable = _not_creatable(inquiry, kept) if creates else frozenset()
    operations = _wants_operations(request)
    if not refused and not not_creatable and not operations:
        return FORWARD
    cut = _cut(inquiry, _refused_entries(inquiry.api_version, refused), not_creatable)
    # Also with auto.create.topics.enable=false: our copy of the brokers' setting could be wrong
    forbid = bool(not_creatable)
    if (forbid or not kept) and inquiry.api_version < _FIRST_WITH_CREATION_FLAG:
        # An empty list would request all topics in version 0
        return _in_a_later_version(inquiry.api_version, kept, cut)
    changes: dict[str, Any] = {"topics": tuple(topic.entry for topic in kept)}
    if forbid:
        changes["allow_auto_topic_creation"] = False
    return Change(
        request=encode(replace(request, **changes)) if refused or forbid else None,
        response=cut,
    )


def _requested(inquiry: Inquiry, topics: Iterable[Any]) -> list[_RequestedTopic] | None:
    """Return the topics of the request; None if one has an id in a version without ids, or neither
    name nor id."""
    by_id = [topic for topic in pausing(topics) if getattr(topic, "topic_id", None) is not None]
    by_name = [topic for topic in topics if topic.name is None] and not by_id
    if (by_id and inquiry.api_version < _FIRST_BY_ID) or by_name:
        return None
    if by_id:  # like Kafka, ignore their names
        entries = {topic.topic_id.bytes: topic for topic in pausing(by_id)}
        names = names_of(inquiry.topics, entries)
        return [
            _RequestedTopic(name=names[one], topic_id=one, entry=entries[one])
            for one in pausing(entries)
        ]
    entries = {topic.name: topic for topic in pausing(topics)}
    return [
        _RequestedTopic(name=name, topic_id=None, entry=entry)
        for name, entry in pausing(entries.items())
    ]


def _invalid(api_version: int, topics: Iterable[Any]) -> bytes:
    """Return Kafka's response to an invalid request."""
    response = response_type(METADATA, api_version)
    entry = item_type(response, "topics")
    return encode(
        make(
            response,
            throttle_time=NOT_THROTTLED,
            brokers=(),
            topics=tuple(
                make(
                    entry,
                    error_code=ErrorCode.invalid_request,
                    name=topic.name or "",
                    topic_id=getattr(topic, "topic_id", None),
                    is_internal=False,
                    partitions=(),
                )
                for topic in pausing(topics)
            ),
            error_code=ErrorCode.none,
        )
    )


def _error(inquiry: Inquiry, topic: _RequestedTopic) -> ErrorCode | None:
    if topic.name is None:
        return ErrorCode.unknown_topic_id
    return None if may_topic(inquiry, Operation.DESCRIBE, topic.name) else _DENIED


def _not_creatable(inquiry: Inquiry, topics: Iterable[_RequestedTopic]) -> frozenset[str]:
    if may_cluster(inquiry, Operation.CREATE, report=False):
        return frozenset()
    names = [topic.name for topic in pausing(topics) if topic.name is not None]
    return frozenset(
        name for name in names if not may_topic(inquiry, Operation.CREATE, name, report=False)
    )


def _wants_operations(request: Any) -> bool:
    return getattr(request, "include_topic_authorized_operations", False) or getattr(
        request, "include_cluster_authorized_operations", False
    )


def _refused_entries(api_version: int, refused: dict[_RequestedTopic, ErrorCode]) -> list[bytes]:
    entries = []
    for topic, error in pausing(refused.items()):
        # A request by name gets no id, one by id gets no name (KIP-516)
        name = None if topic.topic_id is not None else topic.name
        entries.append(_entry(api_version, error, name, topic.topic_id))
    return entries


def _entry(api_version: int, error: ErrorCode, name: str | None, topic_id: bytes | None) -> bytes:
    topic_type = item_type(response_type(METADATA, api_version), "topics")
    return encode(
        make(
            topic_type,
            error_code=error,
            name=name,
            topic_id=uuid_or_none(topic_id),
            is_internal=False,
            partitions=(),
        )
    )


def _cut(
    inquiry: Inquiry,
    refused: Iterable[bytes] = (),
    not_creatable: frozenset[str] = frozenset(),
) -> BodyTransform:
    """Return a transformation that removes the topics that may not be described from a response,
    and adds the entries of refused topics.

    `not_creatable` are the requested topics that the client may describe but not create.
    """
    version = inquiry.api_version
    denied_if_missing = not_creatable if inquiry.brokers_make_topics else frozenset()

    def entry(body: bytes, topic: Topic) -> bytes | None:
        if topic.name is None:
            return body[topic.start : topic.end]
        if not may_describe(inquiry, topic.name):
            return None
        if topic.error_code in _MISSING and topic.name in denied_if_missing:
            return _entry(version, _DENIED, topic.name, None)
        if not topic.operations_at:
            return body[topic.start : topic.end]
        changed = bytearray(body[topic.start : topic.end])
        operations = inquiry.authority.operations(ResourceType.TOPIC, topic.name)
        with_operations(changed, topic.operations_at - topic.start, operations)
        return bytes(changed)

    def cut(body: bytes) -> bytes:
        found = parse(version, body)
        entries = (entry(body, topic) for topic in pausing(found.topics))
        shown = [one for one in entries if one is not None]
        if found.cluster_operations_at:
            changed = bytearray(body)
            with_operations(changed, found.cluster_operations_at, _cluster_operations(inquiry))
            body = bytes(changed)
        return keep(version, body, found, [*shown, *refused])

    return cut


def _cluster_operations(inquiry: Inquiry) -> int:
    """Return the authorized operations on the cluster; 0 if the principal may not describe it."""
    if may_cluster(inquiry, Operation.DESCRIBE, report=False):
        return inquiry.authority.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return 0


def _in_a_later_version(
    version: int, kept: Iterable[_RequestedTopic], cut: BodyTransform
) -> Judgement:
    """Return the judgement that sends the request in the first version that can forbid the creation
    of topics."""
    later = _FIRST_WITH_CREATION_FLAG
    topic_type = item_type(request_type(METADATA, later), "topics")
    request = request_type(METADATA, later)(
        topics=tuple(make(topic_type, name=topic.name) for topic in pausing(kept)),
        allow_auto_topic_creation=False,
    )

    def back(body: bytes) -> bytes:
        response = decode(response_type(METADATA, later), body)
        return cut(encode(_in_version(response_type(METADATA, version), response)))

    return Change(request=encode(request), response=back, api_version=later)


def _in_version(entity_type: type[Any], entity: Any) -> Any:
    """Return the entity in an earlier version, which has fewer fields."""
    values = {}
    for field in fields(entity_type):
        value = getattr(entity, field.name)
        if isinstance(value, tuple) and value and hasattr(value[0], "__version__"):
            item = item_type(entity_type, field.name)
            value = tuple(_in_version(item, one) for one in pausing(value))
        values[field.name] = value
    return entity_type(**values)
