"""Responses of the proxy's own, and those of brokers with refusals added."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from proxy.acl.decision import FORWARD, Answer, BodyTransform, Change, Inquiry, Judgement
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.codec import decode, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import Message, replace

MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the "
        "message was sent to an incompatible broker. See the broker logs for more details."
    ),
}
"""Kafka's messages for errors (`Errors`)."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def read_request(inquiry: Inquiry, kind: type[M]) -> M:
    """Return the decoded request. Raises Malformed."""
    return decode(kind, inquiry.api_version, inquiry.body)


def answer(inquiry: Inquiry, response: Message) -> Answer:
    """Return an answer in place of the broker's."""
    return Answer(encode(response, inquiry.api_version))


def on_response(inquiry: Inquiry, kind: type[M], change: Callable[[M], M]) -> BodyTransform:
    """Return a transformation that applies `change` to the broker's response. An unchanged response
    is not encoded again."""
    return _transformed(inquiry.api_version, kind, change)


def _transformed(version: int, kind: type[M], change: Callable[[M], M]) -> BodyTransform:
    def transform(body: bytes) -> bytes:
        response = decode(kind, version, body)
        changed = change(response)
        return body if changed is response else encode(changed, version)

    return transform


def on_listing(
    inquiry: Inquiry, kind: type[Message], change: BodyTransform, *more: Hashable
) -> BodyTransform:
    """Return a transformation that applies `change` to a response about everything, such as all
    topics, and reuses the result for an equal response.

    It must depend on the response, the client's permissions and `more` alone. The throttle time at
    the beginning of a response may differ.
    """
    first = kind.FIELDS[0]
    version = inquiry.api_version
    start = 4 if first.name == "throttle_time_ms" and first.versions.has(version) else 0

    def transform(body: bytes) -> bytes:
        key = kind.HEAD.api_key, version, *more
        content = body[start:]
        return body[:start] + inquiry.authority.reused(key, content, lambda: change(body)[start:])

    return transform


def only(response: M, array: str, may_show: Callable[[Any], bool]) -> M:
    """Return the response, or an entity in it, with those items of an array that may be shown."""
    items = getattr(response, array)
    shown = tuple(item for item in items if may_show(item))
    return response if len(shown) == len(items) else replace(response, **{array: shown})


def judge_items(
    version: int,
    request: Message,
    response: type[Message],
    refuse: Callable[[Any], Sequence[Message] | None],
    *,
    items: str = "topics",
    results: str = "topics",
    order_by: tuple[str, ...] = (),
) -> Judgement:
    """Forward the allowed `items` of a request, and merge the results of the others.

    `refuse` returns None for an item that is allowed, and the result of one that is denied, in a
    tuple that is empty where Kafka has one result for several items. Results of denied items come
    last, unless Kafka has them in the request's order: `order_by` then names the fields that
    identify the item of a result.
    """
    requested = getattr(request, items)
    kept: list[Any] = []
    refused: list[Message] = []
    for item in pausing(requested):
        refusal = refuse(item)
        if refusal is None:
            kept.append(item)
        else:
            refused += refusal
    if not refused:
        return FORWARD
    if not kept:
        return Answer(encode(response(**{results: tuple(refused)}), version))

    def merge(passed: Message) -> Message:
        merged = [*getattr(passed, results), *refused]
        if order_by:
            key_of = attrgetter(*order_by)
            places = {key_of(item): place for place, item in enumerate(pausing(requested))}
            merged.sort(key=lambda result: places.get(key_of(result), len(places)))
        return replace(passed, **{results: tuple(merged)})

    return Change(
        request=encode(replace(request, **{items: tuple(kept)}), version),
        response=_transformed(version, response, merge),
    )


def interleaved(refused: Sequence[T | None], passed: Iterable[T]) -> tuple[T, ...]:
    """Insert the broker's results where nothing was refused (None), in the request's order."""
    results = iter(passed)
    merged: list[T] = []
    for refusal in refused:
        merged += islice(results, 1) if refusal is None else [refusal]
    return (*merged, *results)


def by_topic(
    topics: Iterable[Any],
    key: str,
    errors: Mapping[Any, ErrorCode],
    result: Callable[[Any, ErrorCode], T],
) -> Iterable[tuple[Any, tuple[T, ...]]]:
    """Return the results of the partitions of those topics that have an error, with the topic.

    `key` is the field that identifies a topic; `result` makes the result of a partition. A topic
    that is named twice has one result, as in Kafka.
    """
    found: dict[Any, list[T]] = {}
    for topic in pausing(topics):
        name = getattr(topic, key)
        if name in errors:
            error = errors[name]
            results = (result(each, error) for each in pausing(topic.partitions))
            found.setdefault(name, []).extend(results)
    return [(name, tuple(results)) for name, results in found.items()]


def merge_groups(
    refused_groups: Sequence[Message | None],
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
            if groups[place].error_code == ErrorCode.NONE:
                groups[place] = replace(groups[place], topics=(*groups[place].topics, *topics))
        return replace(response, groups=interleaved(refused_groups, groups))

    return merge
