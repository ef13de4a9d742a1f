"""Guards of ShareFetch and ShareAcknowledge (KIP-932): Read on the group and each topic.

Topics are named by their ids. A share session goes on fetching what earlier requests added to it,
so each response is judged too: topics that may not be read any more lose their records and get
TOPIC_AUTHORIZATION_FAILED. A topic that is denied in a request never gets into a session. (Kafka
keeps it there and denies it in each response.) The rest of such a request is always forwarded, even
if no topic is left in it: the session's epoch must advance.
"""

from typing import Any, Final

from proxy.acl.decision import (
    FORWARD,
    Change,
    Inquiry,
    Judgement,
    TopicsUnknown,
)
from proxy.acl.guards.checks import may_group, may_topic, topic_errors
from proxy.acl.guards.responses import answer, by_topic, on_response, read_request
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import NO_ID

_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_FINAL_EPOCH: Final = -1
"""Session epoch that closes a session: nothing is fetched any more."""


def share_fetch(inquiry: Inquiry) -> Judgement:
    """Judge a ShareFetch."""
    request = read_request(inquiry, messages.ShareFetchRequest)
    if error := _group_error(inquiry, request.group_id):
        return answer(inquiry, messages.ShareFetchResponse(error_code=error))
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    refused = _refused_topics(request, errors)

    def cut(response: messages.ShareFetchResponse) -> messages.ShareFetchResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        hidden = {
            topic.topic_id
            for topic in response.responses
            if not _may_be_read(inquiry, topic.topic_id)
        }
        if not hidden and not refused:
            return response
        shown = (
            replace(topic, partitions=tuple(map(_emptied, topic.partitions)))
            if topic.topic_id in hidden
            else topic
            for topic in response.responses
        )
        return replace(response, responses=(*shown, *refused))

    kept = tuple(topic for topic in request.topics if topic.topic_id not in errors)
    changed = replace(request, topics=kept)
    return Change(
        request=encode(changed, inquiry.api_version) if errors else None,
        response=on_response(inquiry, messages.ShareFetchResponse, cut),
    )


def share_acknowledge(inquiry: Inquiry) -> Judgement:
    """Judge a ShareAcknowledge."""
    request = read_request(inquiry, messages.ShareAcknowledgeRequest)
    if error := _group_error(inquiry, request.group_id):
        return answer(inquiry, messages.ShareAcknowledgeResponse(error_code=error))
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    if not errors:
        return FORWARD

    def result(
        partition: messages.ShareAcknowledgeRequest.AcknowledgePartition, error: ErrorCode
    ) -> messages.ShareAcknowledgeResponse.PartitionData:
        return messages.ShareAcknowledgeResponse.PartitionData(
            partition_index=partition.partition_index, error_code=error
        )

    refused = tuple(
        messages.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse(
            topic_id=each, partitions=partitions
        )
        for each, partitions in by_topic(request.topics, "topic_id", errors, result)
    )

    def merge(response: messages.ShareAcknowledgeResponse) -> messages.ShareAcknowledgeResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        return replace(response, responses=(*response.responses, *refused))

    kept = tuple(topic for topic in pausing(request.topics) if topic.topic_id not in errors)
    return Change(
        request=encode(replace(request, topics=kept), inquiry.api_version),
        response=on_response(inquiry, messages.ShareAcknowledgeResponse, merge),
    )


def _group_error(inquiry: Inquiry, group_id: str | None) -> ErrorCode | None:
    if group_id is None:
        return ErrorCode.INVALID_REQUEST
    if not may_group(inquiry, Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


def _may_be_read(inquiry: Inquiry, topic_id: bytes) -> bool:
    """Return whether a topic of a response may be read; False if its name is unknown.

    The ids of a session were looked up when they were added to it, on this connection.
    """
    try:
        name = None if topic_id == NO_ID else inquiry.topics[topic_id]
    except TopicsUnknown:
        return False
    return name is not None and may_topic(inquiry, Operation.READ, name)


def _refused_topics(
    request: messages.ShareFetchRequest, errors: dict[Any, ErrorCode]
) -> tuple[messages.ShareFetchResponse.ShareFetchableTopicResponse, ...]:
    acknowledges = any(
        partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    )
    fetches = request.share_session_epoch != _FINAL_EPOCH

    def result(
        partition: messages.ShareFetchRequest.FetchPartition, error: ErrorCode
    ) -> messages.ShareFetchResponse.PartitionData:
        return messages.ShareFetchResponse.PartitionData(
            partition_index=partition.partition_index,
            error_code=error if fetches else ErrorCode.NONE,
            acknowledge_error_code=error if acknowledges else ErrorCode.NONE,
        )

    return tuple(
        messages.ShareFetchResponse.ShareFetchableTopicResponse(
            topic_id=each, partitions=partitions
        )
        for each, partitions in by_topic(request.topics, "topic_id", errors, result)
    )


def _emptied(
    partition: messages.ShareFetchResponse.PartitionData,
) -> messages.ShareFetchResponse.PartitionData:
    """Return the result for a partition that may not be read any more."""
    return replace(
        partition,
        error_code=_TOPIC_DENIED,
        error_message=None,
        current_leader=messages.ShareFetchResponse.LeaderIdAndEpoch(),
        records=b"",
        acquired_records=(),
    )
