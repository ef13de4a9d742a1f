"""Checks and responses shared by several guards."""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from proxy.acl.decision import (
    FORWARD,
    Answer,
    BodyTransform,
    Change,
    Inquiry,
    Judgement,
    changing,
    names_of,
)
from proxy.acl.model import Operation
from proxy.scheduling.steps import pausing
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import NO_ID, Message, replace

TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTIONAL_ID_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

MESSAGES: Final = {
    TOPIC_DENIED: "Topic authorization failed.",
    GROUP_DENIED: "Group authorization failed.",
    CLUSTER_DENIED: "Cluster authorization failed.",
    TRANSACTIONAL_ID_DENIED: "Transactional Id authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the "
        "message was sent to an incompatible broker. See the broker logs for more details."
    ),
}
"""Kafka's messages for errors (`Errors`)."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def on_listing(
    inquiry: Inquiry, kind: type[Message], change: BodyTransform, *more: Hashable
) -> BodyTransform:
    """Return a transformation that applies `change` to a response about everything, such as all
    topics, and reuses the result for an equal response.

    The result must depend only on the response, the client's permissions and `more`. The throttle
    time at the beginning of a response may differ.
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

    `refuse` returns None for an allowed item, and a tuple with the result of a denied one; the
    tuple is empty if Kafka has one result for several items. Results of denied items come last. If
    Kafka keeps the order of the request, `order_by` names the fields that identify the item of a
    result.
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
        response=changing(version, response, merge),
    )


def adding(array: str, *, before: Iterable[Any] = (), after: Iterable[Any] = ()) -> Any:
    """Return a function that puts results before and after those of the broker, unless its response
    has an error as a whole."""

    def merge(passed: Any) -> Any:
        if getattr(passed, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return passed
        return replace(passed, **{array: (*before, *getattr(passed, array), *after)})

    return merge


def interleaved(refused: Sequence[T | None], passed: Iterable[T]) -> tuple[T, ...]:
    """Insert the broker's results where nothing was refused (None), in the request's order."""
    results = iter(passed)
    merged: list[T] = []
    for refusal in refused:
        merged += islice(results, 1) if refusal is None else [refusal]
    return (*merged, *results)


def item_type(kind: type[Message], array: str) -> Any:
    """Return the entity type of the items of an array."""
    (struct,) = (field.struct for field in kind.FIELDS if field.name == array)
    return struct


_NAMES: Final = ("name", "topic", "topic_name")
_PARTITIONS: Final = ("partition_indexes", "partitions")
_INDEXES: Final = ("partition_index", "partition", "index", "partition_id")
_CODES: Final = ("error_code", "partition_error_code")
"""Names of the error field in the messages of different APIs."""


def refused_topic(kind: Any, error: ErrorCode | None, *topics: Any, **values: Any) -> Any:
    """Return the result, an entity of `kind`, for a topic that is refused with an error.

    The result names the topic and its partitions as the request does. Each partition has the error,
    if any, and `values` in its other fields. `topics` has several items if the request names the
    topic several times.
    """
    array, partition, index, code, name = _fields_of_result(kind)
    if error is not None:
        values[code] = error
    results = tuple(
        partition(**{index: each}, **values) for topic in topics for each in _indexes(topic)
    )
    named = {array: results}
    requested, _ = _fields_of_request(topics[0].__class__)
    if requested and (given := getattr(topics[0], requested)):
        named[name] = given
    if topic_id := getattr(topics[0], "topic_id", None):
        named["topic_id"] = topic_id
    return kind(**named)


@cache
def _fields_of_result(kind: Any) -> tuple[str, Any, str, str, str]:
    """Return the field of a topic's partitions, their type, the fields of their index and error,
    and that of the topic's name."""
    (array,) = (field for field in kind.FIELDS if field.struct)
    partition = array.struct
    index, code = _one_of(_INDEXES, partition.DEFAULTS), _one_of(_CODES, partition.DEFAULTS)
    return array.name, partition, index, code, _one_of(_NAMES, kind.DEFAULTS)


@cache
def _fields_of_request(kind: Any) -> tuple[str, str]:
    """Return the fields of a topic's name and of its partitions."""
    return _one_of(_NAMES, dir(kind)), _one_of(_PARTITIONS, dir(kind))


def _one_of(names: Iterable[str], known: Container[str]) -> str:
    return next((name for name in names if name in known), "")


def _indexes(topic: Any) -> Iterator[int]:
    _, partitions = _fields_of_request(topic.__class__)
    for each in pausing(getattr(topic, partitions)):
        yield each if isinstance(each, int) else getattr(each, _index_of(each.__class__))


@cache
def _index_of(kind: Any) -> str:
    return _one_of(_INDEXES, kind.DEFAULTS)


def refused_topics(
    kind: Any, topics: Iterable[Any], key: str, errors: Mapping[Any, ErrorCode], **values: Any
) -> tuple[Any, ...]:
    """Return the results of those topics that have an error, as `refused_topic` makes them.

    `key` is the field that identifies a topic. As in Kafka, a topic that is named twice has one
    result.
    """
    found: dict[Any, list[Any]] = {}
    for topic in pausing(topics):
        if (name := getattr(topic, key)) in errors:
            found.setdefault(name, []).append(topic)
    return tuple(refused_topic(kind, errors[one], *same, **values) for one, same in found.items())


def topic_error(
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
            return ErrorCode.UNKNOWN_TOPIC_ID
    assert name is not None
    return None if inquiry.may_topic(operation, name) else TOPIC_DENIED


def topic_errors(
    inquiry: Inquiry, operation: Operation, key: str, topics: Iterable[Any]
) -> dict[Any, ErrorCode]:
    """Return the errors of the topics on which the operation is refused.

    `key` is the field that identifies a topic: `topic_id`, or the field of its name. An unknown id
    is refused here, because a topic could get this id before the broker reads the request. Raises
    `TopicsUnknown`.
    """
    keys = list(dict.fromkeys(getattr(topic, key) for topic in pausing(topics)))
    if key == "topic_id":
        names = names_of(inquiry.topics, [each for each in keys if each != NO_ID])
    errors = {}
    for each in keys:
        name = each if key != "topic_id" else names.get(each)
        if name is None:
            errors[each] = ErrorCode.UNKNOWN_TOPIC_ID
        elif not inquiry.may_topic(operation, name):
            errors[each] = TOPIC_DENIED
    return errors
