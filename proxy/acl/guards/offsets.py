"""Guards of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Since version 10 of OffsetCommit and OffsetFetch (KIP-848) and version 6 of TxnOffsetCommit
(KIP-1319) topics are named by their ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    Change,
    Inquiry,
    Judgement,
    TopicsUnknown,
    names_of,
)
from proxy.acl.guards.checks import may_describe, may_group, may_transact, topic_errors
from proxy.acl.guards.entities import Values, entities, entity, item_type
from proxy.acl.guards.responses import (
    answer,
    merge_groups,
    on_response,
    only,
    read_request,
    refused_partitions,
)
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, TXN_OFFSET_COMMIT
from proxy.wire.codec import encode, response_type

_GROUP_DENIED: Final = ErrorCode.group_authorization_failed
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id
_FIRST_BY_ID: Final = {OFFSET_COMMIT: 10, OFFSET_FETCH: 10, TXN_OFFSET_COMMIT: 6}
"""First versions with topic ids, by API key."""
_FIRST_WITH_GROUPS: Final = 8
"""First version of OffsetFetch with several groups (KIP-709)."""
_FIRST_WITH_GROUP_ERROR: Final = 2
"""First version of OffsetFetch whose response has an error besides those of partitions."""

Errors = Mapping[Any, ErrorCode]
"""Errors of the topics that are refused, by name or id, depending on the version."""


def offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetCommit: Read on the group, and on each topic."""
    request = read_request(inquiry, OFFSET_COMMIT)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return _commit_refusal(inquiry, OFFSET_COMMIT, request.topics, _GROUP_DENIED)
    return _commit(inquiry, OFFSET_COMMIT, request)


def txn_offset_commit(inquiry: Inquiry) -> Judgement:
    """Judge a TxnOffsetCommit: Write on the transactional id, Read on the group and each topic."""
    request = read_request(inquiry, TXN_OFFSET_COMMIT)
    if not may_transact(inquiry, Operation.WRITE, request.transactional_id):
        denied = ErrorCode.transactional_id_authorization_failed
        return _commit_refusal(inquiry, TXN_OFFSET_COMMIT, request.topics, denied)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return _commit_refusal(inquiry, TXN_OFFSET_COMMIT, request.topics, _GROUP_DENIED)
    return _commit(inquiry, TXN_OFFSET_COMMIT, request)


def _key(inquiry: Inquiry, api_key: int) -> str:
    return "topic_id" if inquiry.api_version >= _FIRST_BY_ID[api_key] else "name"


def _commit_refusal(
    inquiry: Inquiry, api_key: int, topics: Iterable[Any], error: ErrorCode
) -> Judgement:
    key = _key(inquiry, api_key)
    refusals = [
        {
            key: getattr(topic, key),
            "partitions": [
                {"partition_index": each.partition_index, "error_code": error}
                for each in pausing(topic.partitions)
            ],
        }
        for topic in pausing(topics)
    ]
    return answer(inquiry, api_key, topics=refusals)


def _commit(inquiry: Inquiry, api_key: int, request: Any) -> Judgement:
    key = _key(inquiry, api_key)
    errors = topic_errors(inquiry, Operation.READ, key, request.topics)
    if not errors:
        return FORWARD
    refusals = refused_partitions(request.topics, key, errors)
    kept = tuple(topic for topic in pausing(request.topics) if getattr(topic, key) not in errors)
    if not kept:
        return answer(inquiry, api_key, topics=refusals)
    first = entities(item_type(response_type(api_key, inquiry.api_version), "topics"), refusals)
    return Change(
        request=encode(replace(request, topics=kept)),
        response=on_response(
            inquiry,
            api_key,
            lambda response: replace(response, topics=(*first, *response.topics)),
        ),
    )


def offset_delete(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetDelete: Delete on the group, Read on each topic.

    The request is forwarded even if no topic is left: the broker may have an error for the group.
    """
    request = read_request(inquiry, OFFSET_DELETE)
    if not may_group(inquiry, Operation.DELETE, request.group_id):
        return answer(inquiry, OFFSET_DELETE, error_code=_GROUP_DENIED, topics=[])
    errors = topic_errors(inquiry, Operation.READ, "name", request.topics)
    if not errors:
        return FORWARD
    item = item_type(response_type(OFFSET_DELETE, inquiry.api_version), "topics")
    first = entities(item, refused_partitions(request.topics, "name", errors))

    def merge(response: Any) -> Any:
        if response.error_code is not ErrorCode.none:
            return response
        return replace(response, topics=(*first, *response.topics))

    kept = tuple(topic for topic in pausing(request.topics) if topic.name not in errors)
    return Change(
        request=encode(replace(request, topics=kept)),
        response=on_response(inquiry, OFFSET_DELETE, merge),
    )


def offset_fetch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetFetch: Describe on each group and on each topic.

    A request for all topics of a group (null) is answered with those that may be described.
    """
    request = read_request(inquiry, OFFSET_FETCH)
    if inquiry.api_version < _FIRST_WITH_GROUPS:
        return _fetch_of_one_group(inquiry, request)
    schema = response_type(OFFSET_FETCH, inquiry.api_version)
    item = item_type(schema, "groups")
    refused: list[Any] = []
    kept, refused_topics = [], []
    changed = False
    for group in request.groups:
        if not may_group(inquiry, Operation.DESCRIBE, group.group_id):
            refused.append({"group_id": group.group_id, "topics": [], "error_code": _GROUP_DENIED})
            continue
        errors = _fetch_errors(inquiry, group.topics)
        refused.append(None)
        kept.append(_without(inquiry, group, errors))
        refused_topics.append(
            entities(item_type(item, "topics"), _refused_topics(inquiry, group, errors))
        )
        changed = changed or bool(errors) or group.topics is None
    if not kept and refused:
        return answer(inquiry, OFFSET_FETCH, groups=refused)
    if not changed and len(kept) == len(refused):
        return FORWARD
    refused_groups = [each and entity(item, each) for each in refused]
    merge = merge_groups(refused_groups, refused_topics, lambda group: _shown(inquiry, group))
    return Change(
        request=encode(replace(request, groups=tuple(kept))),
        response=on_response(inquiry, OFFSET_FETCH, merge),
    )


def _fetch_of_one_group(inquiry: Inquiry, request: Any) -> Judgement:
    """Judge a version in which the group's fields are in the message itself."""
    if not may_group(inquiry, Operation.DESCRIBE, request.group_id):
        errors = dict.fromkeys((topic.name for topic in request.topics or ()), _GROUP_DENIED)
        old = inquiry.api_version < _FIRST_WITH_GROUP_ERROR
        topics = _refused_topics(inquiry, request, errors) if old else []
        return answer(inquiry, OFFSET_FETCH, topics=topics, error_code=_GROUP_DENIED)
    errors = _fetch_errors(inquiry, request.topics)
    if not errors and request.topics is not None:
        return FORWARD
    item = item_type(response_type(OFFSET_FETCH, inquiry.api_version), "topics")
    last = entities(item, _refused_topics(inquiry, request, errors))

    def merge(response: Any) -> Any:
        if getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none:
            return response
        shown = _shown(inquiry, response)
        return replace(shown, topics=(*shown.topics, *last))

    return Change(
        request=encode(_without(inquiry, request, errors)) if errors else None,
        response=on_response(inquiry, OFFSET_FETCH, merge),
    )


def _fetch_errors(inquiry: Inquiry, topics: Iterable[Any] | None) -> dict[Any, ErrorCode]:
    return topic_errors(inquiry, Operation.DESCRIBE, _key(inquiry, OFFSET_FETCH), topics or ())


def _without(inquiry: Inquiry, group: Any, errors: Errors) -> Any:
    """Return the group without the refused topics: an empty list requests none, null would request
    all."""
    if not errors:
        return group
    key = _key(inquiry, OFFSET_FETCH)
    kept = tuple(topic for topic in pausing(group.topics) if getattr(topic, key) not in errors)
    return replace(group, topics=kept)


def _refused_topics(inquiry: Inquiry, group: Any, errors: Errors) -> list[Values]:
    key = _key(inquiry, OFFSET_FETCH)
    return [
        {
            key: getattr(topic, key),
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": -1,
                    "committed_leader_epoch": -1,
                    "metadata": "",
                    "error_code": errors[getattr(topic, key)],
                }
                for index in pausing(topic.partition_indexes)
            ],
        }
        for topic in group.topics or ()
        if getattr(topic, key) in errors
    ]


def _shown(inquiry: Inquiry, group: Any) -> Any:
    """Return the group with only the topics that may be described.

    A topic whose name is unknown cannot be judged. Leaving it out would mean that nothing is
    committed, so the whole group is then refused: only a request for all topics in a version with
    ids can meet that, and Kafka's own clients send it in a version with names.
    """
    if _key(inquiry, OFFSET_FETCH) == "name":
        return only(group, "topics", lambda topic: may_describe(inquiry, topic.name))
    try:
        ids = [each.topic_id.bytes for each in group.topics if each.topic_id is not None]
        names = names_of(inquiry.topics, ids)
    except TopicsUnknown:
        return replace(group, topics=(), error_code=_UNKNOWN_ID)
    allowed = {topic_id for topic_id, name in names.items() if name and may_describe(inquiry, name)}
    return only(group, "topics", lambda each: each.topic_id and each.topic_id.bytes in allowed)
