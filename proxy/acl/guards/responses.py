"""Responses of the proxy's own, and those of brokers with refusals added."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Answer, BodyTransform, Change, Inquiry, Judgement
from proxy.acl.guards.entities import NOT_THROTTLED, Values, entities, entity, item_type
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.codec import decode, encode, request_type, response_type

MESSAGES: Final = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
    ErrorCode.unknown_topic_id: "This server does not host this topic ID.",
    ErrorCode.invalid_request: (
        "This most likely occurs because of a request being malformed by the client library or the "
        "message was sent to an incompatible broker. See the broker logs for more details."
    ),
}
"""Kafka's messages for errors (`Errors`)."""


def read_request(inquiry: Inquiry, api_key: int) -> Any:
    """Return the decoded request. Raises Malformed."""
    return decode(request_type(api_key, inquiry.api_version), inquiry.body)


def answer(inquiry: Inquiry, api_key: int, **values: Any) -> Answer:
    """Return an answer in place of the broker's."""
    response = response_type(api_key, inquiry.api_version)
    return Answer(encode(entity(response, {"throttle_time": NOT_THROTTLED, **values})))


def on_response(inquiry: Inquiry, api_key: int, change: Callable[[Any], Any]) -> BodyTransform:
    """Return a transformation that applies `change` to the broker's response. An unchanged response
    is not encoded again."""
    schema = response_type(api_key, inquiry.api_version)

    def transform(body: bytes) -> bytes:
        response = decode(schema, body)
        changed = change(response)
        return body if changed is response else encode(changed)

    return transform


def only(response: Any, array: str, may_show: Callable[[Any], bool]) -> Any:
    """Return the response, or an entity in it, with those items of an array that may be shown."""
    items = getattr(response, array)
    shown = tuple(item for item in items if may_show(item))
    return response if len(shown) == len(items) else replace(response, **{array: shown})


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
    requested = getattr(request, items)
    kept, refusals = [], []
    for item in pausing(requested):
        refusal = refuse(item)
        if refusal is None:
            kept.append(item)
        elif refusal:
            refusals.append(refusal)
    if not refusals:
        return FORWARD
    if not kept:
        return answer(inquiry, api_key, **{results: refusals})
    refused = entities(item_type(response_type(api_key, inquiry.api_version), results), refusals)

    def merge(response: Any) -> Any:
        merged = [*getattr(response, results), *refused]
        if order_by:
            key_of = attrgetter(*order_by)
            places = {key_of(item): place for place, item in enumerate(pausing(requested))}
            merged.sort(key=lambda result: places.get(key_of(result), len(places)))
        return replace(response, **{results: tuple(merged)})

    return Change(
        request=encode(replace(request, **{items: tuple(kept)})),
        response=on_response(inquiry, api_key, merge),
    )


def interleaved(refused: Sequence[Any | None], passed: Iterable[Any]) -> tuple[Any, ...]:
    """Insert the broker's results where nothing was refused (None), in the request's order."""
    results = iter(passed)
    merged: list[Any] = []
    for refusal in refused:
        merged += islice(results, 1) if refusal is None else [refusal]
    return (*merged, *results)


def refused_partitions(
    topics: Iterable[Any],
    key: str,
    errors: Mapping[Any, ErrorCode],
    fields: Callable[[ErrorCode], Values] = lambda error: {"error_code": error},
) -> list[Values]:
    """Return the results of the partitions of those topics that have an error.

    `key` is the field that identifies a topic; `fields` returns what the result of a partition has
    beside its index. A topic that is named twice has one result, as in Kafka.
    """
    by_topic: dict[Any, list[Values]] = {}
    for topic in pausing(topics):
        name = getattr(topic, key)
        if name in errors:
            refusal = fields(errors[name])
            by_topic.setdefault(name, []).extend(
                {"partition_index": each.partition_index, **refusal}
                for each in pausing(topic.partitions)
            )
    return [{key: name, "partitions": results} for name, results in by_topic.items()]


def merge_groups(
    refused_groups: Sequence[Any | None],
    refused_topics: Sequence[tuple[Any, ...]],
    shown: Callable[[Any], Any],
) -> Callable[[Any], Any]:
    """Return a change of a response about the offsets of groups.

    `refused_groups` has the results of the refused groups, and None for each that is forwarded;
    `refused_topics` the results of the refused topics of each that is forwarded; `shown` cuts a
    group of the broker's response.
    """

    def merge(response: Any) -> Any:
        groups = [shown(group) for group in response.groups]
        for place, topics in enumerate(refused_topics[: len(groups)]):
            if groups[place].error_code is ErrorCode.none:
                groups[place] = replace(groups[place], topics=(*groups[place].topics, *topics))
        return replace(response, groups=interleaved(refused_groups, groups))

    return merge
