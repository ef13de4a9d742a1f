"""Guards of the offsets of groups, and of share groups (KIP-932).

Since version 10 of OffsetCommit and OffsetFetch (KIP-848) and version 6 of TxnOffsetCommit
(KIP-1319) topics are named by their ids.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from proxy.acl.decision import (
    FORWARD,
    Change,
    Inquiry,
    Judgement,
    TopicsUnknown,
    names_of,
)
from proxy.acl.guards.common import (
    GROUP_DENIED,
    MESSAGES,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    answer,
    item_type,
    may_describe,
    may_group,
    may_transact,
    merge_groups,
    on_response,
    only,
    read_request,
    refused_topic,
    refused_topics,
    topic_errors,
)
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import NO_ID, Message

_FIRST_BY_ID: Final = 10
"""First version of OffsetCommit and of OffsetFetch with topic ids."""
_FIRST_TXN_BY_ID: Final = 6
"""First version of TxnOffsetCommit with topic ids."""
_FIRST_WITH_GROUPS: Final = 8
"""First version of OffsetFetch with several groups (KIP-709)."""
_FIRST_WITH_GROUP_ERROR: Final = 2
"""First version of OffsetFetch whose response has an error besides those of partitions."""

Errors = Mapping[Any, ErrorCode]
"""Errors of the topics that are refused, by name or id, depending on the version."""


def offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetCommit: Read on the group, and on each topic."""
    request = read_request(inquiry, messages.OffsetCommitRequest)
    refusal = None
    if not may_group(inquiry, Operation.READ, request.group_id):
        refusal = GROUP_DENIED
    return _commit(inquiry, request, messages.OffsetCommitResponse, _key(inquiry), refusal)


def txn_offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge a TxnOffsetCommit: Write on the transactional id, Read on the group and each topic."""
    request = read_request(inquiry, messages.TxnOffsetCommitRequest)
    refusal = None
    if not may_transact(inquiry, Operation.WRITE, request.transactional_id):
        refusal = TRANSACTIONAL_ID_DENIED
    elif not may_group(inquiry, Operation.READ, request.group_id):
        refusal = GROUP_DENIED
    key = _key(inquiry, _FIRST_TXN_BY_ID)
    return _commit(inquiry, request, messages.TxnOffsetCommitResponse, key, refusal)


def _key(inquiry: Inquiry, first_by_id: int = _FIRST_BY_ID) -> str:
    return "topic_id" if inquiry.api_version >= first_by_id else "name"


def _commit(
    inquiry: Inquiry,
    request: Any,
    response: Any,
    key: str,
    refusal: ErrorCode | None,
) -> Judgement:
    """Judge the topics of a request, which `key` names; `refusal` is the error of all of them."""
    topics: tuple[Any, ...] = request.topics
    kind = item_type(response, "topics")
    if refusal is not None:
        refused = tuple(refused_topic(kind, refusal, topic) for topic in topics)
        return answer(inquiry, response(topics=refused))
    errors = topic_errors(inquiry, Operation.READ, key, topics)
    if not errors:
        return FORWARD
    first = refused_topics(kind, topics, key, errors)
    kept = tuple(topic for topic in pausing(topics) if getattr(topic, key) not in errors)
    if not kept:
        return answer(inquiry, response(topics=first))
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(
            inquiry,
            response,
            lambda passed: replace(passed, topics=(*first, *passed.topics)),
        ),
    )


def offset_delete(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetDelete: Delete on the group, Read on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    request = read_request(inquiry, messages.OffsetDeleteRequest)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return answer(inquiry, messages.OffsetDeleteResponse(error_code=GROUP_DENIED))
    errors = topic_errors(inquiry, Operation.READ, "name", request.topics)
    if not errors:
        return FORWARD
    kind = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
    first = refused_topics(kind, request.topics, "name", errors)

    def merge(response: messages.OffsetDeleteResponse) -> messages.OffsetDeleteResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        return replace(response, topics=(*first, *response.topics))

    kept = tuple(topic for topic in pausing(request.topics) if topic.name not in errors)
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(inquiry, messages.OffsetDeleteResponse, merge),
    )


def offset_fetch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetFetch: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    request = read_request(inquiry, messages.OffsetFetchRequest)
    if inquiry.api_version < _FIRST_WITH_GROUPS:
        return _fetch_of_one_group(inquiry, request)
    fetched = messages.OffsetFetchResponse.OffsetFetchResponseTopics
    refused: list[messages.OffsetFetchResponse.OffsetFetchResponseGroup | None]
    hidden: list[tuple[Message, ...]]
    refused, kept, hidden = [], [], []
    changed = False
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refusal = messages.OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=GROUP_DENIED
            )
            refused.append(refusal)
            continue
        errors = _fetch_errors(inquiry, group.topics)
        refused.append(None)
        kept.append(_without(inquiry, group, errors))
        hidden.append(_refused_topics(inquiry, fetched, group.topics, errors))
        changed = changed or bool(errors) or group.topics is None
    if not kept and refused:
        groups = tuple(one for one in refused if one is not None)
        return answer(inquiry, messages.OffsetFetchResponse(groups=groups))
    if not changed and len(kept) == len(refused):
        return FORWARD
    merge = merge_groups(refused, hidden, lambda group: _shown(inquiry, group))
    return Change(
        request=encode(replace(request, groups=tuple(kept)), inquiry.api_version),
        response=on_response(inquiry, messages.OffsetFetchResponse, merge),
    )


def _fetch_of_one_group(inquiry: Inquiry, request: messages.OffsetFetchRequest) -> Judgement:
    """Judge a version in which the group's fields are in the message itself."""
    topics, fetched = request.topics, messages.OffsetFetchResponse.OffsetFetchResponseTopic
    if not may_group(inquiry, Operation.DESCRIBE, request.group_id):
        errors = dict.fromkeys((topic.name for topic in topics or ()), GROUP_DENIED)
        refused = _refused_topics(inquiry, fetched, topics, errors)
        old = inquiry.api_version < _FIRST_WITH_GROUP_ERROR
        whole = messages.OffsetFetchResponse(topics=refused if old else (), error_code=GROUP_DENIED)
        return answer(inquiry, whole)
    errors = _fetch_errors(inquiry, topics)
    if not errors and topics is not None:
        return FORWARD
    last = _refused_topics(inquiry, fetched, topics, errors)

    def merge(response: messages.OffsetFetchResponse) -> messages.OffsetFetchResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        shown: messages.OffsetFetchResponse = _shown(inquiry, response)
        return replace(shown, topics=(*shown.topics, *last))

    changed = _without(inquiry, request, errors)
    return Change(
        request=encode(changed, inquiry.api_version) if errors else None,
        response=on_response(inquiry, messages.OffsetFetchResponse, merge),
    )


def _fetch_errors(inquiry: Inquiry, topics: Iterable[Any] | None) -> dict[Any, ErrorCode]:
    return topic_errors(inquiry, Operation.DESCRIBE, _key(inquiry), topics or ())


def _without(inquiry: Inquiry, group: Any, errors: Errors) -> Any:
    """Return the group without the refused topics: an empty list requests none, null would request
    all."""
    if not errors:
        return group
    key = _key(inquiry)
    kept = tuple(topic for topic in pausing(group.topics) if getattr(topic, key) not in errors)
    return replace(group, topics=kept)


def _refused_topics(
    inquiry: Inquiry, kind: type[Message], topics: Iterable[Any] | None, errors: Errors
) -> tuple[Any, ...]:
    key = _key(inquiry)
    return tuple(
        refused_topic(kind, errors[getattr(topic, key)], topic, committed_offset=-1)
        for topic in topics or ()
        if getattr(topic, key) in errors
    )


def _shown(inquiry: Inquiry, group: Any) -> Any:
    """Return the group with only the topics that may be described.

    A topic whose name is unknown cannot be judged. Leaving it out would mean that nothing is
    committed, so the whole group is then refused: only a request for all topics in a version with
    ids can meet that, and Kafka's own clients send it in a version with names.
    """
    if _key(inquiry) == "name":
        return only(group, "topics", lambda topic: may_describe(inquiry, topic.name))
    try:
        ids = [each.topic_id for each in group.topics if each.topic_id != NO_ID]
        names = names_of(inquiry.topics, ids)
    except TopicsUnknown:
        return replace(group, topics=(), error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    allowed = {topic_id for topic_id, name in names.items() if name and may_describe(inquiry, name)}
    return only(group, "topics", lambda each: each.topic_id in allowed)


_GROUP_MESSAGE: Final = MESSAGES[GROUP_DENIED]
_TOPIC_MESSAGE: Final = MESSAGES[TOPIC_DENIED]


def describe_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeShareGroupOffsets: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    response = messages.DescribeShareGroupOffsetsResponse
    request = read_request(inquiry, messages.DescribeShareGroupOffsetsRequest)
    refused: list[
        messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup | None
    ]
    hidden: list[tuple[Message, ...]]
    refused, kept, hidden = [], [], []
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refused.append(
                response.DescribeShareGroupOffsetsResponseGroup(
                    group_id=group.group_id, error_code=GROUP_DENIED
                )
            )
            continue
        refused.append(None)
        topics = group.topics or ()
        denied = topic_errors(inquiry, Operation.DESCRIBE, "topic_name", topics)
        hidden.append(
            tuple(
                refused_topic(
                    response.DescribeShareGroupOffsetsResponseTopic,
                    TOPIC_DENIED,
                    topic,
                    start_offset=-1,
                    error_message=_TOPIC_MESSAGE,
                )
                for topic in pausing(topics)
                if topic.topic_name in denied
            )
        )
        kept.append(replace(group, topics=_kept(topics, denied)) if denied else group)
    if refused and not kept:
        groups = tuple(one for one in refused if one is not None)
        return answer(inquiry, response(groups=groups))
    everything = any(group.topics is None for group in kept)
    if len(kept) == len(refused) and not any(hidden) and not everything:
        return FORWARD

    def shown(
        group: messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup,
    ) -> messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup:
        return only(group, "topics", lambda topic: may_describe(inquiry, topic.topic_name))

    return Change(
        request=encode(replace(request, groups=tuple(kept)), inquiry.api_version),
        response=on_response(inquiry, response, merge_groups(refused, hidden, shown)),
    )


def _kept(topics: Iterable[Any], denied: Container[str]) -> tuple[Any, ...]:
    return tuple(topic for topic in pausing(topics) if topic.topic_name not in denied)


def alter_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge an AlterShareGroupOffsets: Read on the group, and on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    response = messages.AlterShareGroupOffsetsResponse
    request = read_request(inquiry, messages.AlterShareGroupOffsetsRequest)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return answer(inquiry, response(error_code=GROUP_DENIED, error_message=_GROUP_MESSAGE))
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD

    kind = response.AlterShareGroupOffsetsResponseTopic
    first = refused_topics(kind, request.topics, "topic_name", denied, error_message=_TOPIC_MESSAGE)
    return _merged(inquiry, response, request, denied, first)


def delete_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteShareGroupOffsets: Delete on the group, Read on each topic.

    The broker is asked even if every topic is denied: an error of the group comes first.
    """
    response = messages.DeleteShareGroupOffsetsResponse
    request = read_request(inquiry, messages.DeleteShareGroupOffsetsRequest)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return answer(inquiry, response(error_code=GROUP_DENIED, error_message=_GROUP_MESSAGE))
    denied = topic_errors(inquiry, Operation.READ, "topic_name", request.topics)
    if not denied:
        return FORWARD
    first = (
        response.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=TOPIC_DENIED, error_message=_TOPIC_MESSAGE
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

    kept = _kept(request.topics, denied)
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(inquiry, response, merge),
    )
