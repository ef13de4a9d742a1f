"""Guards of the APIs for offsets of share groups (KIP-932)."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.checks import may_describe, may_group, topic_errors
from proxy.acl.guards.entities import Values, entities, entity, item_type
from proxy.acl.guards.responses import (
    MESSAGES,
    answer,
    merge_groups,
    on_response,
    only,
    read_request,
    refused_partitions,
)
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from proxy.wire.codec import encode, response_type

_GROUP_DENIED: Final = ErrorCode.group_authorization_failed
_TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
_DENIAL: Final = {"error_code": _TOPIC_DENIED, "error_message": MESSAGES[_TOPIC_DENIED]}


def describe_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeShareGroupOffsets: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    api_key = DESCRIBE_SHARE_GROUP_OFFSETS
    request = read_request(inquiry, api_key)
    refused: list[Any] = []
    kept, hidden = [], []
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refused.append({"group_id": group.group_id, "topics": [], "error_code": _GROUP_DENIED})
            continue
        refused.append(None)
        denied = topic_errors(inquiry, Operation.DESCRIBE, "topic_name", group.topics or ())
        hidden.append([topic for topic in group.topics or () if topic.topic_name in denied])
        kept.append(replace(group, topics=_without(group.topics, denied)) if denied else group)
    if refused and not kept:
        return answer(inquiry, api_key, groups=refused)
    everything = any(group.topics is None for group in kept)
    if len(kept) == len(refused) and not any(hidden) and not everything:
        return FORWARD
    item = item_type(response_type(api_key, inquiry.api_version), "groups")
    refused_groups = [each and entity(item, each) for each in refused]
    refused_topics = [
        entities(item_type(item, "topics"), map(_refused_topic, topics)) for topics in hidden
    ]

    def shown(group: Any) -> Any:
        return only(group, "topics", lambda topic: may_describe(inquiry, topic.topic_name))

    return Change(
        request=encode(replace(request, groups=tuple(kept))),
        response=on_response(inquiry, api_key, merge_groups(refused_groups, refused_topics, shown)),
    )


def _without(topics: Iterable[Any], denied: Container[str]) -> tuple[Any, ...]:
    return tuple(topic for topic in pausing(topics) if topic.topic_name not in denied)


def _refused_topic(topic: Any) -> Values:
    partitions = [
        {"partition_index": index, "start_offset": -1, "leader_epoch": 0, "lag": -1, **_DENIAL}
        for index in pausing(topic.partitions)
    ]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": partitions}


def alter_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge an AlterShareGroupOffsets: Read on the group, and on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    request = read_request(inquiry, ALTER_SHARE_GROUP_OFFSETS)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return _group_denied(inquiry, ALTER_SHARE_GROUP_OFFSETS)
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD
    refusals = refused_partitions(request.topics, "topic_name", denied, lambda _: _DENIAL)
    return _merged(inquiry, ALTER_SHARE_GROUP_OFFSETS, request, denied, refusals)


def delete_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteShareGroupOffsets: Delete on the group, Read on each topic.

    The broker is asked even if every topic is denied: an error of the group comes first.
    """
    request = read_request(inquiry, DELETE_SHARE_GROUP_OFFSETS)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return _group_denied(inquiry, DELETE_SHARE_GROUP_OFFSETS)
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD
    refusals: list[Values] = [
        {"topic_name": topic.topic_name, "topic_id": None, **_DENIAL}
        for topic in request.topics
        if topic.topic_name in denied
    ]
    return _merged(inquiry, DELETE_SHARE_GROUP_OFFSETS, request, denied, refusals)


def _group_denied(inquiry: Inquiry, api_key: int) -> Judgement:
    return answer(
        inquiry,
        api_key,
        error_code=_GROUP_DENIED,
        error_message=MESSAGES[_GROUP_DENIED],
        responses=[],
    )


def _merged(
    inquiry: Inquiry, api_key: int, request: Any, denied: Container[str], refusals: Iterable[Values]
) -> Judgement:
    """Forward what is allowed, and put the refusals before the broker's results."""
    item = item_type(response_type(api_key, inquiry.api_version), "responses")
    first = entities(item, [{"topic_id": None, **each} for each in refusals])

    def merge(response: Any) -> Any:
        if response.error_code is not ErrorCode.none:
            return response
        return replace(response, responses=(*first, *response.responses))

    return Change(
        request=encode(replace(request, topics=_without(request.topics, denied))),
        response=on_response(inquiry, api_key, merge),
    )
