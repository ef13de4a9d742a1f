"""Guard of Produce: Write on each topic, and on the transactional id.

A Produce with acks=0 has no response that could report a denial: as in Kafka, what is allowed is
written, then the connection is closed.
"""

from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    Change,
    Close,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_transact, topic_error
from proxy.acl.guards.entities import item_type, make, uuid_or_none
from proxy.acl.guards.responses import answer, on_response
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import PRODUCE
from proxy.wire.codec import response_type
from proxy.wire.produce_requests import ProducedTopic, ProduceRequest, keep, parse

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
        return answer(inquiry, PRODUCE, responses=_entries(inquiry.api_version, denied))

    def merge(response: Any) -> Any:
        refused = _entries(inquiry.api_version, denied)
        return replace(response, responses=(*response.responses, *refused))

    return Change(
        request=keep(inquiry.api_version, inquiry.body, request, kept),
        response=on_response(inquiry, PRODUCE, merge),
    )


def _denied(inquiry: Inquiry, request: ProduceRequest) -> Denied:
    if any(topic.transactional for topic in request.topics) and not _may_transact(inquiry, request):
        return dict.fromkeys(request.topics, ErrorCode.transactional_id_authorization_failed)
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


def _entries(api_version: int, denied: Denied) -> tuple[Any, ...]:
    topic_type = item_type(response_type(PRODUCE, api_version), "responses")
    partition_type = item_type(topic_type, "partition_responses")
    return tuple(
        make(
            topic_type,
            name=topic.name,
            topic_id=uuid_or_none(topic.topic_id),
            partition_responses=tuple(
                make(
                    partition_type,
                    index=index,
                    error_code=error,
                    base_offset=_UNKNOWN_OFFSET,
                    record_errors=(),
                )
                for index in pausing(topic.partitions)
            ),
        )
        for topic, error in pausing(denied.items())
    )
