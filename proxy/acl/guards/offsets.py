"""Guards of the offsets of groups, and of share groups (KIP-932).

Since version 10 of OffsetCommit and OffsetFetch (KIP-848) and version 6 of TxnOffsetCommit
(KIP-1319) topics are named by their ids.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement, TopicsUnknown, names_of
from proxy.acl.guards.common import (
    GROUP_DENIED,
    MESSAGES,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    adding,
    interleaved,
    item_type,
    only,
    refused_topic,
    refused_topics,
    topic_errors,
)
from proxy.acl.model import Operation
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import NO_ID

_FIRST_BY_ID: Final = 10
"""First version of OffsetCommit and of OffsetFetch with topic ids."""
_FIRST_TXN_BY_ID: Final = 6
"""First version of TxnOffsetCommit with topic ids."""
_FIRST_WITH_GROUPS: Final = 8
"""First version of OffsetFetch with several groups (KIP-709)."""
_FIRST_WITH_GROUP_ERROR: Final = 2
"""First version of OffsetFetch whose response has an error for the whole group."""

Errors = Mapping[Any, ErrorCode]
"""Errors of the topics that are refused, by name or id, depending on the version."""


def offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetCommit: Read on the group, and on each topic."""
    request = inquiry.read(messages.OffsetCommitRequest)
    refusal = None if inquiry.may_group(Operation.READ, request.group_id) else GROUP_DENIED
    return _commit(inquiry, request, messages.OffsetCommitResponse, _key(inquiry), refusal)


def txn_offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge a TxnOffsetCommit: Write on the transactional id, Read on the group and each topic."""
    request = inquiry.read(messages.TxnOffsetCommitRequest)
    refusal = None
    if not inquiry.may_transact(Operation.WRITE, request.transactional_id):
        refusal = TRANSACTIONAL_ID_DENIED
    elif not inquiry.may_group(Operation.READ, request.group_id):
        refusal = GROUP_DENIED
    key = _key(inquiry, _FIRST_TXN_BY_ID)
    return _commit(inquiry, request, messages.TxnOffsetCommitResponse, key, refusal)


def _key(inquiry: Inquiry, first_by_id: int = _FIRST_BY_ID) -> str:
    return "topic_id" if inquiry.api_version >= first_by_id else "name"


def _commit(
    inquiry: Inquiry, request: Any, response: Any, key: str, refusal: ErrorCode | None
) -> Judgement:
    """Judge the topics of a request. `key` is the field that identifies a topic, and `refusal` an
    error that applies to all topics."""
    kind = item_type(response, "topics")
    if refusal is not None:
        refused = tuple(refused_topic(kind, refusal, topic) for topic in request.topics)
        return inquiry.answer(response(topics=refused))
    errors = topic_errors(inquiry, Operation.READ, key, request.topics)
    first = refused_topics(kind, request.topics, key, errors)
    if errors and not _without(request, key, errors).topics:
        return inquiry.answer(response(topics=first))
    return _forward_rest(inquiry, request, response, key, errors, first)


def _forward_rest(
    inquiry: Inquiry, request: Any, response: Any, key: str, errors: Errors, first: tuple[Any, ...]
) -> Judgement:
    """Forward the topics without an error, and put the refusals before the broker's results."""
    if not errors:
        return FORWARD
    array = "topics" if "topics" in response.DEFAULTS else "responses"
    return Change(
        request=inquiry.encoded(_without(request, key, errors)),
        response=inquiry.on_response(response, adding(array, before=first)),
    )


def _without(group: Any, key: str, errors: Errors) -> Any:
    """Return the group without the refused topics. The list may be empty, which requests no topics,
    but not null, which requests all."""
    if not errors:
        return group
    kept = tuple(topic for topic in pausing(group.topics) if getattr(topic, key) not in errors)
    return replace(group, topics=kept)


def offset_delete(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetDelete: Delete on the group, Read on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    response = messages.OffsetDeleteResponse
    request = inquiry.read(messages.OffsetDeleteRequest)
    if not inquiry.may_group(Operation.DELETE, request.group_id):
        return inquiry.answer(response(error_code=GROUP_DENIED))
    errors = topic_errors(inquiry, Operation.READ, "name", request.topics)
    first = refused_topics(response.OffsetDeleteResponseTopic, request.topics, "name", errors)
    return _forward_rest(inquiry, request, response, "name", errors, first)


def offset_fetch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetFetch: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    request = inquiry.read(messages.OffsetFetchRequest)
    if inquiry.api_version < _FIRST_WITH_GROUPS:
        return _fetch_of_one_group(inquiry, request)
    key, shown = _key(inquiry), partial(_shown, inquiry)
    response = messages.OffsetFetchResponse
    return _judge_groups(inquiry, request, response, key, shown, committed_offset=-1)


def _judge_groups(
    inquiry: Inquiry,
    request: Any,
    response: Any,
    key: str,
    shown: Callable[[Any], Any],
    **values: Any,
) -> Judgement:
    """Judge a request for the offsets of several groups.

    `key` is the field that names a topic; `shown` removes from a group of the broker's response the
    topics that may not be described; `values` are fields of a refused partition.
    """
    group_kind = item_type(response, "groups")
    kind = item_type(group_kind, "topics")
    refused: list[Any] = []
    kept: list[Any] = []
    hidden: list[tuple[Any, ...]] = []
    for group in request.groups:
        if not inquiry.may_group(Operation.DESCRIBE, group.group_id):
            refused.append(group_kind(group_id=group.group_id, error_code=GROUP_DENIED))
            continue
        refused.append(None)
        errors = topic_errors(inquiry, Operation.DESCRIBE, key, group.topics or ())
        kept.append(_without(group, key, errors))
        hidden.append(_refused_each(kind, group.topics, key, errors, **values))
    if refused and not kept:
        return inquiry.answer(response(groups=tuple(refused)))
    some_of_all = any(group.topics is None for group in kept)
    if len(kept) == len(refused) and not any(hidden) and not some_of_all:
        return FORWARD

    def merge(passed: Any) -> Any:
        groups = [shown(group) for group in passed.groups]
        for place, topics in enumerate(hidden[: len(groups)]):
            if groups[place].error_code == ErrorCode.NONE:
                groups[place] = replace(groups[place], topics=(*groups[place].topics, *topics))
        return replace(passed, groups=interleaved(refused, groups))

    return Change(
        request=inquiry.encoded(replace(request, groups=tuple(kept))),
        response=inquiry.on_response(response, merge),
    )


def _refused_each(
    kind: Any, topics: Iterable[Any] | None, key: str, errors: Errors, **values: Any
) -> tuple[Any, ...]:
    """Return the results of the refused topics, one for each time that a topic is named."""
    return tuple(
        refused_topic(kind, errors[getattr(topic, key)], topic, **values)
        for topic in pausing(topics or ())
        if getattr(topic, key) in errors
    )


def _fetch_of_one_group(inquiry: Inquiry, request: messages.OffsetFetchRequest) -> Judgement:
    """Judge a version in which the group's fields are in the message itself."""
    response, topics = messages.OffsetFetchResponse, request.topics
    allowed = inquiry.may_group(Operation.DESCRIBE, request.group_id)
    if allowed:
        errors = topic_errors(inquiry, Operation.DESCRIBE, "name", topics or ())
    else:
        errors = dict.fromkeys((topic.name for topic in topics or ()), GROUP_DENIED)
    kind = response.OffsetFetchResponseTopic
    refused = _refused_each(kind, topics, "name", errors, committed_offset=-1)
    if not allowed:
        old = inquiry.api_version < _FIRST_WITH_GROUP_ERROR
        return inquiry.answer(response(topics=refused if old else (), error_code=GROUP_DENIED))
    if not errors and topics is not None:
        return FORWARD

    def merge(passed: messages.OffsetFetchResponse) -> messages.OffsetFetchResponse:
        if passed.error_code != ErrorCode.NONE:
            return passed
        shown: messages.OffsetFetchResponse = _shown(inquiry, passed)
        return replace(shown, topics=(*shown.topics, *refused))

    changed = _without(request, "name", errors)
    return Change(
        request=inquiry.encoded(changed) if errors else None,
        response=inquiry.on_response(response, merge),
    )


def _shown(inquiry: Inquiry, group: Any) -> Any:
    """Return the group with only the topics that may be described.

    A topic whose name is unknown cannot be judged. Without it, the response would mean that nothing
    is committed, so the whole group is refused. This happens only to requests for all topics in a
    version with ids; Kafka's own clients use a version with names for these.
    """
    if _key(inquiry) == "name":
        return only(group, "topics", lambda topic: inquiry.may_describe(topic.name))
    try:
        ids = [each.topic_id for each in group.topics if each.topic_id != NO_ID]
        names = names_of(inquiry.topics, ids)
    except TopicsUnknown:
        return replace(group, topics=(), error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    allowed = {topic_id for topic_id, name in names.items() if name and inquiry.may_describe(name)}
    return only(group, "topics", lambda each: each.topic_id in allowed)


_GROUP_MESSAGE: Final = MESSAGES[GROUP_DENIED]
_TOPIC_MESSAGE: Final = MESSAGES[TOPIC_DENIED]


def describe_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeShareGroupOffsets: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """

    def shown(group: Any) -> Any:
        return only(group, "topics", lambda topic: inquiry.may_describe(topic.topic_name))

    request = inquiry.read(messages.DescribeShareGroupOffsetsRequest)
    response = messages.DescribeShareGroupOffsetsResponse
    return _judge_groups(
        *(inquiry, request, response, "topic_name", shown),
        start_offset=-1,
        error_message=_TOPIC_MESSAGE,
    )


def alter_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge an AlterShareGroupOffsets: Read on the group, and on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    key, response = "topic_name", messages.AlterShareGroupOffsetsResponse
    request = inquiry.read(messages.AlterShareGroupOffsetsRequest)
    if not inquiry.may_group(Operation.READ, request.group_id):
        return inquiry.answer(response(error_code=GROUP_DENIED, error_message=_GROUP_MESSAGE))
    errors = topic_errors(inquiry, Operation.READ, key, request.topics)
    kind = response.AlterShareGroupOffsetsResponseTopic
    first = refused_topics(kind, request.topics, key, errors, error_message=_TOPIC_MESSAGE)
    return _forward_rest(inquiry, request, response, key, errors, first)


def delete_share_group_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteShareGroupOffsets: Delete on the group, Read on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    key, response = "topic_name", messages.DeleteShareGroupOffsetsResponse
    request = inquiry.read(messages.DeleteShareGroupOffsetsRequest)
    if not inquiry.may_group(Operation.DELETE, request.group_id):
        return inquiry.answer(response(error_code=GROUP_DENIED, error_message=_GROUP_MESSAGE))
    errors = topic_errors(inquiry, Operation.READ, key, request.topics)
    first = tuple(
        response.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=TOPIC_DENIED, error_message=_TOPIC_MESSAGE
        )
        for topic in request.topics
        if topic.topic_name in errors
    )
    return _forward_rest(inquiry, request, response, key, errors, first)
