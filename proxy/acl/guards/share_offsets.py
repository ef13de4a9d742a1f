"""Guards of the APIs for offsets of share groups (KIP-932)."""

from collections.abc import Container, Iterable
from typing import Any, Final

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.checks import may_describe, may_group, topic_errors
from proxy.acl.guards.responses import (
    MESSAGES,
    answer,
    by_topic,
    merge_groups,
    on_response,
    only,
    read_request,
)
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_MESSAGE: Final = MESSAGES[_GROUP_DENIED]
_TOPIC_MESSAGE: Final = MESSAGES[_TOPIC_DENIED]


def describe_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeShareGroupOffsets: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    response = messages.DescribeShareGroupOffsetsResponse
    request = read_request(inquiry, messages.DescribeShareGroupOffsetsRequest)
    refused: list[
        messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup | None
    ]
    refused, kept, refused_topics = [], [], []
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refused.append(
                response.DescribeShareGroupOffsetsResponseGroup(
                    group_id=group.group_id, error_code=_GROUP_DENIED
                )
            )
            continue
        refused.append(None)
        topics = group.topics or ()
        denied = topic_errors(inquiry, Operation.DESCRIBE, "topic_name", topics)
        hidden = (topic for topic in pausing(topics) if topic.topic_name in denied)
        refused_topics.append(tuple(map(_refused_topic, hidden)))
        kept.append(replace(group, topics=_without(topics, denied)) if denied else group)
    if refused and not kept:
        groups = tuple(one for one in refused if one is not None)
        return answer(inquiry, response(groups=groups))
    everything = any(group.topics is None for group in kept)
    if len(kept) == len(refused) and not any(refused_topics) and not everything:
        return FORWARD

    def shown(
        group: messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup,
    ) -> messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup:
        return only(group, "topics", lambda topic: may_describe(inquiry, topic.topic_name))

    return Change(
        request=encode(replace(request, groups=tuple(kept)), inquiry.api_version),
        response=on_response(inquiry, response, merge_groups(refused, refused_topics, shown)),
    )


def _without(topics: Iterable[Any], denied: Container[str]) -> tuple[Any, ...]:
    return tuple(topic for topic in pausing(topics) if topic.topic_name not in denied)


def _refused_topic(
    topic: messages.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic,
) -> messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic:
    response = messages.DescribeShareGroupOffsetsResponse
    return response.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=tuple(
            response.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=-1,
                error_code=_TOPIC_DENIED,
                error_message=_TOPIC_MESSAGE,
            )
            for index in topic.partitions
        ),
    )


def alter_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge an AlterShareGroupOffsets: Read on the group, and on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    response = messages.AlterShareGroupOffsetsResponse
    request = read_request(inquiry, messages.AlterShareGroupOffsetsRequest)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return answer(inquiry, response(error_code=_GROUP_DENIED, error_message=_GROUP_MESSAGE))
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD

    def refused(
        partition: messages.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition,
        error: ErrorCode,
    ) -> messages.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition:
        return response.AlterShareGroupOffsetsResponsePartition(
            partition_index=partition.partition_index,
            error_code=error,
            error_message=_TOPIC_MESSAGE,
        )

    first = (
        response.AlterShareGroupOffsetsResponseTopic(topic_name=name, partitions=partitions)
        for name, partitions in by_topic(request.topics, "topic_name", denied, refused)
    )
    return _merged(inquiry, response, request, denied, tuple(first))


def delete_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteShareGroupOffsets: Delete on the group, Read on each topic.

    The broker is asked even if every topic is denied: an error of the group comes first.
    """
    response = messages.DeleteShareGroupOffsetsResponse
    request = read_request(inquiry, messages.DeleteShareGroupOffsetsRequest)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return answer(inquiry, response(error_code=_GROUP_DENIED, error_message=_GROUP_MESSAGE))
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD
    first = (
        response.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=_TOPIC_DENIED, error_message=_TOPIC_MESSAGE
        )
        for topic in request.topics
        if topic.topic_name in denied
    )
    return _merged(inquiry, response, request, denied, tuple(first))


def _merged(
    inquiry: Inquiry,
    response: type[
        messages.AlterShareGroupOffsetsResponse | messages.DeleteShareGroupOffsetsResponse
    ],
    request: Any,
    denied: Container[str],
    first: tuple[Any, ...],
) -> Judgement:
    """Forward what is allowed, and put the refusals before the broker's results."""

    def merge(passed: Any) -> Any:
        if passed.error_code != ErrorCode.NONE:
            return passed
        return replace(passed, responses=(*first, *passed.responses))

    kept = _without(request.topics, denied)
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(inquiry, response, merge),
    )
