"""Guard of Produce: Write on each topic, and on the transactional id.

A Produce with acks=0 has no response that could report a denial: as in Kafka, what is allowed is
written, then the connection is closed.
"""

from typing import Final

from proxy.acl.decision import (
    FORWARD,
    Change,
    Close,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_transact, topic_error
from proxy.acl.guards.responses import answer, on_response
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import ProduceResponse, replace
from proxy.wire.produce_requests import ProducedTopic, ProduceRequest, keep, parse
from proxy.wire.schema import NO_ID

_UNKNOWN_OFFSET: Final = -1
"""Kafka's offset of a batch that was not written."""

Denied = dict[ProducedTopic, ErrorCode]
"""Errors of the topics that may not be written to."""


def produce(inquiry: Inquiry) -> Judgement:
    """Judge a Produce."""
    request = parse(inquiry.api_version, inquiry.body)
    denied = _denied(inquiry, request)
    if not denied:
        return FORWARD
    kept = [topic for topic in pausing(request.topics) if topic not in denied]
    if not request.acks:
        if not kept:
            return Close()
        body = keep(inquiry.api_version, inquiry.body, request, kept)
        return Change(request=body, close=True)
    if not kept:
        return answer(inquiry, ProduceResponse(responses=_entries(denied)))

    def merge(response: ProduceResponse) -> ProduceResponse:
        return replace(response, responses=(*response.responses, *_entries(denied)))

    return Change(
        request=keep(inquiry.api_version, inquiry.body, request, kept),
        response=on_response(inquiry, ProduceResponse, merge),
    )


def _denied(inquiry: Inquiry, request: ProduceRequest) -> Denied:
    if any(topic.transactional for topic in request.topics) and not _may_transact(inquiry, request):
        return dict.fromkeys(request.topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    ids = (topic.topic_id for topic in request.topics if topic.topic_id is not None)
    names = names_of(inquiry.topics, ids)
    errors = (
        (one, topic_error(inquiry, Operation.WRITE, one.name, one.topic_id, names))
        for one in request.topics
    )
    return {topic: error for topic, error in errors if error}


def _may_transact(inquiry: Inquiry, request: ProduceRequest) -> bool:
    name = request.transactional_id
    return name is not None and may_transact(inquiry, Operation.WRITE, name)


def _entries(denied: Denied) -> tuple[ProduceResponse.TopicProduceResponse, ...]:
    return tuple(
        ProduceResponse.TopicProduceResponse(
            name=topic.name or "",
            topic_id=topic.topic_id or NO_ID,
            partition_responses=tuple(
                ProduceResponse.PartitionProduceResponse(
                    index=index, error_code=error, base_offset=_UNKNOWN_OFFSET
                )
                for index in topic.partitions
            ),
        )
        for topic, error in pausing(denied.items())
    )
