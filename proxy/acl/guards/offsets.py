"""Guards of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Since version 10 of OffsetCommit and OffsetFetch (KIP-848) and version 6 of TxnOffsetCommit
(KIP-1319) topics are named by their ids.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from proxy.acl.decision import (
    FORWARD,
    Change,
    Inquiry,
    Judgement,
    TopicsUnknown,
    names_of,
)
from proxy.acl.guards.checks import may_describe, may_group, may_transact, topic_errors
from proxy.acl.guards.responses import (
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
from proxy.wire.schema import NO_ID

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
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


class _Results(NamedTuple):
    """Entity types of a response with results of partitions, by topic."""

    response: type[Any]
    topic: type[Any]
    partition: type[Any]

    def of(self, key: str, name: Any, partitions: Iterable[Any], error: ErrorCode) -> Any:
        """Return the result of a topic, which `key` names, with the same error for partitions."""
        results = (
            self.partition(partition_index=each.partition_index, error_code=error)
            for each in partitions
        )
        return self.topic(**{key: name, "partitions": tuple(results)})

    def refusals(self, topics: Iterable[Any], key: str, errors: Errors) -> tuple[Any, ...]:
        """Return the results of the topics that have an error."""
        found = by_topic(topics, key, errors, lambda partition, _: partition)
        return tuple(self.of(key, name, each, errors[name]) for name, each in found)


_COMMIT: Final = _Results(
    messages.OffsetCommitResponse,
    messages.OffsetCommitResponse.OffsetCommitResponseTopic,
    messages.OffsetCommitResponse.OffsetCommitResponsePartition,
)
_TXN_COMMIT: Final = _Results(
    messages.TxnOffsetCommitResponse,
    messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
    messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
)
_DELETE: Final = _Results(
    messages.OffsetDeleteResponse,
    messages.OffsetDeleteResponse.OffsetDeleteResponseTopic,
    messages.OffsetDeleteResponse.OffsetDeleteResponsePartition,
)
_FETCH: Final = _Results(
    messages.OffsetFetchResponse,
    messages.OffsetFetchResponse.OffsetFetchResponseTopics,
    messages.OffsetFetchResponse.OffsetFetchResponsePartitions,
)
_FETCH_OF_ONE_GROUP: Final = _Results(
    messages.OffsetFetchResponse,
    messages.OffsetFetchResponse.OffsetFetchResponseTopic,
    messages.OffsetFetchResponse.OffsetFetchResponsePartition,
)


def offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetCommit: Read on the group, and on each topic."""
    request = read_request(inquiry, messages.OffsetCommitRequest)
    refusal = None
    if not may_group(inquiry, Operation.READ, request.group_id):
        refusal = _GROUP_DENIED
    return _commit(inquiry, request, _COMMIT, _key(inquiry), refusal)


def txn_offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge a TxnOffsetCommit: Write on the transactional id, Read on the group and each topic."""
    request = read_request(inquiry, messages.TxnOffsetCommitRequest)
    refusal = None
    if not may_transact(inquiry, Operation.WRITE, request.transactional_id):
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not may_group(inquiry, Operation.READ, request.group_id):
        refusal = _GROUP_DENIED
    key = _key(inquiry, _FIRST_TXN_BY_ID)
    return _commit(inquiry, request, _TXN_COMMIT, key, refusal)


def _key(inquiry: Inquiry, first_by_id: int = _FIRST_BY_ID) -> str:
    return "topic_id" if inquiry.api_version >= first_by_id else "name"


def _commit(
    inquiry: Inquiry,
    request: Any,
    results: _Results,
    key: str,
    refusal: ErrorCode | None,
) -> Judgement:
    """Judge the topics of a request, which `key` names; `refusal` is the error of all of them."""
    topics: tuple[Any, ...] = request.topics
    if refusal is not None:
        refused = (results.of(key, getattr(one, key), one.partitions, refusal) for one in topics)
        return answer(inquiry, results.response(topics=tuple(refused)))
    errors = topic_errors(inquiry, Operation.READ, key, topics)
    if not errors:
        return FORWARD
    first = results.refusals(topics, key, errors)
    kept = tuple(topic for topic in pausing(topics) if getattr(topic, key) not in errors)
    if not kept:
        return answer(inquiry, results.response(topics=first))
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(
            inquiry,
            results.response,
            lambda response: replace(response, topics=(*first, *response.topics)),
        ),
    )


def offset_delete(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetDelete: Delete on the group, Read on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    request = read_request(inquiry, messages.OffsetDeleteRequest)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return answer(inquiry, messages.OffsetDeleteResponse(error_code=_GROUP_DENIED))
    errors = topic_errors(inquiry, Operation.READ, "name", request.topics)
    if not errors:
        return FORWARD
    first = _DELETE.refusals(request.topics, "name", errors)

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
    refused: list[messages.OffsetFetchResponse.OffsetFetchResponseGroup | None]
    refused, kept, refused_topics = [], [], []
    changed = False
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refusal = messages.OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=_GROUP_DENIED
            )
            refused.append(refusal)
            continue
        errors = _fetch_errors(inquiry, group.topics)
        refused.append(None)
        kept.append(_without(inquiry, group, errors))
        refused_topics.append(_refused_topics(inquiry, _FETCH, group.topics, errors))
        changed = changed or bool(errors) or group.topics is None
    if not kept and refused:
        groups = tuple(one for one in refused if one is not None)
        return answer(inquiry, messages.OffsetFetchResponse(groups=groups))
    if not changed and len(kept) == len(refused):
        return FORWARD
    merge = merge_groups(refused, refused_topics, lambda group: _shown(inquiry, group))
    return Change(
        request=encode(replace(request, groups=tuple(kept)), inquiry.api_version),
        response=on_response(inquiry, messages.OffsetFetchResponse, merge),
    )


def _fetch_of_one_group(inquiry: Inquiry, request: messages.OffsetFetchRequest) -> Judgement:
    """Judge a version in which the group's fields are in the message itself."""
    topics = request.topics
    if not may_group(inquiry, Operation.DESCRIBE, request.group_id):
        errors = dict.fromkeys((topic.name for topic in topics or ()), _GROUP_DENIED)
        refused = _refused_topics(inquiry, _FETCH_OF_ONE_GROUP, topics, errors)
        old = inquiry.api_version < _FIRST_WITH_GROUP_ERROR
        whole = messages.OffsetFetchResponse(
            topics=refused if old else (), error_code=_GROUP_DENIED
        )
        return answer(inquiry, whole)
    errors = _fetch_errors(inquiry, topics)
    if not errors and topics is not None:
        return FORWARD
    last = _refused_topics(inquiry, _FETCH_OF_ONE_GROUP, topics, errors)

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
    inquiry: Inquiry, results: _Results, topics: Iterable[Any] | None, errors: Errors
) -> tuple[Any, ...]:
    key = _key(inquiry)
    return tuple(
        results.topic(
            **{
                key: getattr(topic, key),
                "partitions": tuple(
                    results.partition(
                        partition_index=index,
                        committed_offset=-1,
                        error_code=errors[getattr(topic, key)],
                    )
                    for index in topic.partition_indexes
                ),
            }
        )
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
