"""Guards of share group offsets (KIP-932)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.entities import item_type
from proxy.acl.guards.items import (
    MESSAGES,
    Values,
    answer,
    entities,
    entity,
    may_topic,
    read_request,
)
from proxy.acl.guards.parts import (
    interleaved,
    may_describe,
    may_group,
    on_response,
    refuse_parts,
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
        denied = _denied(inquiry, Operation.DESCRIBE, group.topics or ())
        hidden.append([topic for topic in group.topics or () if topic.topic_name in denied])
        kept.append(replace(group, topics=_without(group.topics, denied)) if denied else group)
    if refused and not kept:
        return answer(inquiry, api_key, groups=refused)
    everything = any(group.topics is None for group in kept)
    if len(kept) == len(refused) and not any(hidden) and not everything:
        return FORWARD
    item = item_type(response_type(api_key, inquiry.api_version), "groups")
    placed = [each and entity(item, each) for each in refused]
    last = [entities(item_type(item, "topics"), map(_undescribed, topics)) for topics in hidden]

    def merge(response: Any) -> Any:
        groups = [_shown(inquiry, group) for group in response.groups]
        for place, topics in enumerate(last[: len(groups)]):
            if groups[place].error_code is ErrorCode.none:
                groups[place] = replace(groups[place], topics=(*groups[place].topics, *topics))
        return replace(response, groups=interleaved(placed, groups))

    return Change(
        request=encode(replace(request, groups=tuple(kept))),
        response=on_response(inquiry, api_key, merge),
    )


def _denied(inquiry: Inquiry, operation: Operation, topics: Iterable[Any]) -> set[str]:
    names = dict.fromkeys(topic.topic_name for topic in pausing(topics))
    return {name for name in names if not may_topic(inquiry, operation, name)}


def _without(topics: Iterable[Any], denied: set[str]) -> tuple[Any, ...]:
    return tuple(topic for topic in pausing(topics) if topic.topic_name not in denied)


def _shown(inquiry: Inquiry, group: Any) -> Any:
    topics = tuple(each for each in group.topics if may_describe(inquiry, each.topic_name))
    return replace(group, topics=topics)


def _undescribed(topic: Any) -> Values:
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
    denied = _denied(inquiry, Operation.READ, request.topics)
    if not denied:
        return FORWARD
    refusals = refuse_parts(
        (
            (topic.topic_name, [each.partition_index for each in topic.partitions], _DENIAL)
            for topic in request.topics
            if topic.topic_name in denied
        ),
        "topic_name",
        "partitions",
    )
    return _merged(inquiry, ALTER_SHARE_GROUP_OFFSETS, request, denied, refusals)


def delete_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteShareGroupOffsets: Delete on the group, Read on each topic."""
    request = read_request(inquiry, DELETE_SHARE_GROUP_OFFSETS)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return _group_denied(inquiry, DELETE_SHARE_GROUP_OFFSETS)
    denied = _denied(inquiry, Operation.READ, request.topics)
    if not denied:
        return FORWARD
    refusals: list[Values] = [
        {"topic_name": topic.topic_name, "topic_id": None, **_DENIAL}
        for topic in request.topics
        if topic.topic_name in denied
    ]
    if len(refusals) == len(request.topics):
        return answer(
            inquiry,
            DELETE_SHARE_GROUP_OFFSETS,
            error_code=ErrorCode.none,
            responses=refusals,
        )
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
    inquiry: Inquiry, api_key: int, request: Any, denied: set[str], refusals: Iterable[Values]
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
