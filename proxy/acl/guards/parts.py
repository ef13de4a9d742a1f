"""Common part of the guards of groups and transactions: responses put together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from proxy.acl.decision import BodyTransform, Inquiry
from proxy.acl.guards.items import Values
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.codec import decode, encode, response_type


def may_group(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a group."""
    return inquiry.authority.may(operation, ResourceType.GROUP, name, report=report)


def may_transact(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a transactional id."""
    return inquiry.authority.may(operation, ResourceType.TRANSACTIONAL_ID, name, report=report)


def may_describe(inquiry: Inquiry, topic: str) -> bool:
    """Return whether a topic may be listed; a denial is not reported."""
    return inquiry.authority.may(Operation.DESCRIBE, ResourceType.TOPIC, topic, report=False)


def may_describe_all(inquiry: Inquiry, topics: Iterable[str]) -> bool:
    """Return whether all of these topics may be described; every denial is reported."""
    may = inquiry.authority.may
    denied = [name for name in set(topics) if not may(Operation.DESCRIBE, ResourceType.TOPIC, name)]
    return not denied


def on_response(inquiry: Inquiry, api_key: int, change: Callable[[Any], Any]) -> BodyTransform:
    """Return a transformation that applies `change` to the broker's response. An unchanged response
    is not encoded again."""
    schema = response_type(api_key, inquiry.api_version)

    def transform(body: bytes) -> bytes:
        response = decode(schema, body)
        changed = change(response)
        return body if changed is response else encode(changed)

    return transform


def interleaved(refused: Sequence[Any | None], passed: Iterable[Any]) -> tuple[Any, ...]:
    """Insert the broker's results where nothing was refused (None), in the request's order."""
    results = iter(passed)
    merged: list[Any] = []
    for refusal in refused:
        merged += [refusal] if refusal is not None else _next(results)
    return (*merged, *results)


def _next(results: Iterable[Any]) -> list[Any]:
    for result in results:
        return [result]
    return []


def refuse_parts(
    topics: Iterable[tuple[Any, Iterable[int], Values]], key: str, partitions: str
) -> list[Values]:
    """Return the refusals of partitions, given as (topic, indexes, fields of each).

    A topic that is named twice has one result, as in Kafka.
    """
    by_topic: dict[Any, list[Values]] = {}
    for topic, indexes, said in pausing(topics):
        results = by_topic.setdefault(topic, [])
        results += [{"partition_index": index, **said} for index in pausing(indexes)]
    return [{key: topic, partitions: results} for topic, results in by_topic.items()]
