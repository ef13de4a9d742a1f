"""Guards of ShareFetch and ShareAcknowledge (KIP-932): Read on the group and each topic.

Topics are named by their ids. A share session goes on fetching what earlier requests added to it,
so each response is judged too: topics that may not be read any more lose their records and get
TOPIC_AUTHORIZATION_FAILED. A topic that is denied in a request never gets into a session. (Kafka
keeps it there and denies it in each response.) The rest of such a request is always forwarded, even
if no topic is left in it: the session's epoch must advance.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    Answer,
    Change,
    Inquiry,
    Judgement,
    TopicsUnknown,
)
from proxy.acl.guards.checks import may_group, may_topic, topic_errors
from proxy.acl.guards.entities import Values, entities, item_type, struct_type
from proxy.acl.guards.responses import answer, on_response, read_request, refused_partitions
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from proxy.wire.codec import encode, response_type

_TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
_FINAL_EPOCH: Final = -1
"""Session epoch that closes a session: nothing is fetched any more."""
_NO_LEADER: Final = {"leader_id": 0, "leader_epoch": 0}
"""Kafka's default if there is no new leader."""


def share_fetch(inquiry: Inquiry) -> Judgement:
    """Judge a ShareFetch."""
    request = read_request(inquiry, SHARE_FETCH)
    if refusal := _group_refusal(inquiry, SHARE_FETCH, request):
        return refusal
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    schema = response_type(SHARE_FETCH, inquiry.api_version)
    item = item_type(schema, "responses")
    partition = item_type(item, "partitions")
    refused = _refused_topics(item, _fetch_refusals(request, errors))

    def cut(response: Any) -> Any:
        if response.error_code is not ErrorCode.none:
            return response
        hidden = {
            topic.topic_id
            for topic in response.responses
            if not _may_be_read(inquiry, topic.topic_id)
        }
        if not hidden and not refused:
            return response
        shown = (
            replace(topic, partitions=tuple(_emptied(partition, each) for each in topic.partitions))
            if topic.topic_id in hidden
            else topic
            for topic in response.responses
        )
        return replace(response, responses=(*shown, *refused))

    kept = tuple(topic for topic in request.topics if topic.topic_id not in errors)
    return Change(
        request=encode(replace(request, topics=kept)) if errors else None,
        response=on_response(inquiry, SHARE_FETCH, cut),
    )


def share_acknowledge(inquiry: Inquiry) -> Judgement:
    """Judge a ShareAcknowledge."""
    request = read_request(inquiry, SHARE_ACKNOWLEDGE)
    if refusal := _group_refusal(inquiry, SHARE_ACKNOWLEDGE, request):
        return refusal
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    if not errors:
        return FORWARD
    item = item_type(response_type(SHARE_ACKNOWLEDGE, inquiry.api_version), "responses")
    refused = _refused_topics(item, refused_partitions(request.topics, "topic_id", errors))

    def merge(response: Any) -> Any:
        if response.error_code is not ErrorCode.none:
            return response
        return replace(response, responses=(*response.responses, *refused))

    kept = tuple(topic for topic in pausing(request.topics) if topic.topic_id not in errors)
    return Change(
        request=encode(replace(request, topics=kept)),
        response=on_response(inquiry, SHARE_ACKNOWLEDGE, merge),
    )


def _group_refusal(inquiry: Inquiry, api_key: int, request: Any) -> Answer | None:
    if request.group_id is None:
        error = ErrorCode.invalid_request
    elif not may_group(inquiry, Operation.READ, request.group_id):
        error = ErrorCode.group_authorization_failed
    else:
        return None
    return answer(
        inquiry,
        api_key,
        error_code=error,
        acquisition_lock_timeout=0,
        responses=[],
        node_endpoints=[],
    )


def _may_be_read(inquiry: Inquiry, topic_id: UUID | None) -> bool:
    """Return whether a topic of a response may be read; False if its name is unknown.

    The ids of a session were looked up when they were added to it, on this connection.
    """
    try:
        name = None if topic_id is None else inquiry.topics[topic_id.bytes]
    except TopicsUnknown:
        return False
    return name is not None and may_topic(inquiry, Operation.READ, name)


def _fetch_refusals(request: Any, errors: dict[UUID | None, ErrorCode]) -> list[Values]:
    acknowledges = any(
        partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    )
    fetches = request.share_session_epoch != _FINAL_EPOCH

    def fields(error: ErrorCode) -> Values:
        return {
            "error_code": error if fetches else ErrorCode.none,
            "acknowledge_error_code": error.value if acknowledges else 0,
            "records": b"",
            "acquired_records": [],
        }

    return refused_partitions(request.topics, "topic_id", errors, fields)


def _emptied(partition_type: type[Any], partition: Any) -> Any:
    """Return the result for a partition that may not be read any more."""
    return replace(
        partition,
        error_code=_TOPIC_DENIED,
        error_message=None,
        current_leader=_no_leader(partition_type),
        records=b"",
        acquired_records=(),
    )


def _refused_topics(item: type[Any], refusals: Iterable[Values]) -> tuple[Any, ...]:
    partition_type = item_type(item, "partitions")
    leader = _no_leader(partition_type)
    return entities(
        item,
        [
            {
                **topic,
                "partitions": [{**each, "current_leader": leader} for each in topic["partitions"]],
            }
            for topic in refusals
        ],
    )


def _no_leader(partition_type: type[Any]) -> Any:
    return struct_type(partition_type, "current_leader")(**_NO_LEADER)
