"""Common part of guards: items allowed or refused one by one, and answers.

A refusal is written as plain names and values, lists within lists as in Kafka's description of the
message; fields that a version lacks are left out of its response.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Answer, BodyTransform, Change, Inquiry, Judgement
from proxy.acl.guards.entities import NOT_THROTTLED, item_type
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pause, pausing
from proxy.wire.codec import decode, encode, request_type, response_type

Values = Mapping[str, Any]
"""Fields of a message; an array of structs is a list of such mappings."""

MESSAGES: Final = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.unknown_topic_id: "This server does not host this topic ID.",
    ErrorCode.invalid_request: (
        "This most likely occurs because of a request being malformed by the client library or the "
        "message was sent to an incompatible broker. See the broker logs for more details."
    ),
}
"""Kafka's messages for errors (`Errors`)."""


def may_cluster(inquiry: Inquiry, operation: Operation, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on the cluster."""
    return inquiry.authority.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, report=report)


def may_topic(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a topic."""
    return inquiry.authority.may(operation, ResourceType.TOPIC, name, report=report)


def topic_refusal(
    inquiry: Inquiry,
    operation: Operation,
    name: str | None,
    topic_id: bytes | None,
    names: Mapping[bytes, str | None],
) -> ErrorCode | None:
    """Return the error with which the operation is refused on a topic, by name or id; None if it is
    allowed.

    `names` holds the names of the topic ids in the request; None stands for an unknown id.
    """
    if topic_id is not None:
        name = names[topic_id]
        if name is None:
            return ErrorCode.unknown_topic_id
    assert name is not None
    return None if may_topic(inquiry, operation, name) else ErrorCode.topic_authorization_failed


def read_request(inquiry: Inquiry, api_key: int) -> Any:
    """Return the decoded request. Raises Malformed."""
    return decode(request_type(api_key, inquiry.api_version), inquiry.body)


@cache
def _field_names(entity_type: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity_type))


def entity(entity_type: Any, values: Values) -> Any:
    """Return an entity, including nested ones."""
    pause(len(values))
    names = _field_names(entity_type)
    return entity_type(
        **{
            name: entities(item_type(entity_type, name), value)
            if isinstance(value, list)
            else value
            for name, value in values.items()
            if name in names
        }
    )


def entities(entity_type: Any, values: Iterable[Values]) -> tuple[Any, ...]:
    """Return the items of an array."""
    return tuple(entity(entity_type, each) for each in pausing(values))


def answer(inquiry: Inquiry, api_key: int, **values: Any) -> Answer:
    """Return an answer in place of the broker's."""
    response = response_type(api_key, inquiry.api_version)
    return Answer(encode(entity(response, {"throttle_time": NOT_THROTTLED, **values})))


def judge_items(
    inquiry: Inquiry,
    api_key: int,
    request: Any,
    *,
    items: str,
    results: str,
    refuse: Callable[[Any], Values | None],
    order_by: tuple[str, ...] = (),
) -> Judgement:
    """Forward the allowed `items` of a request, and merge the results of the others.

    `refuse` returns the result of an item that is denied, and None if it is allowed; an empty one
    where Kafka has one result for several items. Results of denied items come last, unless Kafka
    has them in the request's order: `order_by` then names the fields that identify the item of a
    result.
    """
    asked = getattr(request, items)
    kept, refusals = [], []
    for item in pausing(asked):
        refusal = refuse(item)
        if refusal is None:
            kept.append(item)
        elif refusal:
            refusals.append(refusal)
    if not refusals:
        return FORWARD
    if not kept:
        return answer(inquiry, api_key, **{results: refusals})
    schema = response_type(api_key, inquiry.api_version)
    refused = entities(item_type(schema, results), refusals)
    return Change(
        request=encode(replace(request, **{items: tuple(kept)})),
        response=_merge(schema, results, refused, order_by, asked),
    )


def _merge(
    schema: Any,
    results: str,
    refused: tuple[Any, ...],
    order_by: tuple[str, ...],
    asked: Iterable[Any],
) -> BodyTransform:
    def merge(body: bytes) -> bytes:
        response = decode(schema, body)
        merged = [*getattr(response, results), *refused]
        if order_by:
            key_of = attrgetter(*order_by)
            places = {key_of(item): place for place, item in enumerate(pausing(asked))}
            merged.sort(key=lambda result: places.get(key_of(result), len(places)))
        return encode(replace(response, **{results: tuple(merged)}))

    return merge
