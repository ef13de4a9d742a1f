"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch, DescribeProducers: topic by topic."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import Right, cluster, judged, received, sent, topic
from tests.support.kio_messages import request_type, response_type
from tests.support.messages import large

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED

CASES = [
    pytest.param(2, 1, Operation.DESCRIBE, id="ListOffsets v1"),
    pytest.param(2, 6, Operation.DESCRIBE, id="ListOffsets v6"),
    pytest.param(2, 11, Operation.DESCRIBE, id="ListOffsets v11"),
    pytest.param(21, 0, Operation.DELETE, id="DeleteRecords v0"),
    pytest.param(21, 2, Operation.DELETE, id="DeleteRecords v2"),
    pytest.param(23, 2, Operation.DESCRIBE, id="OffsetForLeaderEpoch v2"),
    pytest.param(23, 4, Operation.DESCRIBE, id="OffsetForLeaderEpoch v4"),
    pytest.param(61, 0, Operation.READ, id="DescribeProducers v0"),
]


def name_field(api_key: int) -> str:
    return "topic" if api_key == 23 else "name"


def about(schema: type[Any], api_key: int, *names: str) -> Any:
    """A request or response about these topics, each with one partition, twice."""
    filled = large(schema)
    topics = (replace(filled.topics[0], **{name_field(api_key): name}) for name in names)
    return replace(filled, topics=tuple(topics))


def results(api_key: int) -> int:
    """How many the one partition has that is named twice."""
    return 1 if api_key == 21 else 2


def names(api_key: int, message: Any) -> list[str]:
    return [getattr(topic, name_field(api_key)) for topic in message.topics]


@pytest.mark.parametrize(("api_key", "version", "operation"), CASES)
def test_the_allowed_part_is_done_and_the_rest_denied(
    api_key: int, version: int, operation: Operation
) -> None:
    request = about(request_type(api_key, version), api_key, "a", "secret", "b")
    judgement = judged(GUARDS[api_key], request, topic(operation, "a", "b"))
    asked = sent(judgement, request)
    assert asked == about(request_type(api_key, version), api_key, "a", "b")
    broker = about(response_type(api_key, version), api_key, "a", "b")
    response = received(judgement, request, broker)
    in_request_order = ["a", "secret", "b"] if api_key == 61 else ["a", "b", "secret"]
    assert names(api_key, response) == in_request_order
    denied = response.topics[in_request_order.index("secret")]
    assert [partition.error_code for partition in denied.partitions] == [DENIED] * results(api_key)
    rest = tuple(topic for topic in response.topics if topic is not denied)
    assert replace(response, topics=rest) == broker


@pytest.mark.parametrize(("api_key", "version", "operation"), CASES)
def test_another_right_is_none(api_key: int, version: int, operation: Operation) -> None:
    others: set[Right] = set()
    for other in Operation:
        if other is not operation:
            others |= topic(other, "*")
    request = about(request_type(api_key, version), api_key, "a")
    judgement = judged(GUARDS[api_key], request, others)
    assert isinstance(judgement, Answer)
    (denied,) = received(judgement, request).topics
    assert [partition.error_code for partition in denied.partitions] == [DENIED] * results(api_key)


def _numbers(partition: Any) -> dict[str, Any]:
    return {
        name: getattr(partition, name)
        for name in ("timestamp", "offset", "leader_epoch", "end_offset", "low_watermark")
        if hasattr(partition, name)
    }


@pytest.mark.parametrize(("api_key", "version", "operation"), CASES)
def test_a_denial_tells_the_partition_and_no_number(
    api_key: int,
    version: int,
    operation: Operation,  # noqa: ARG001 - not given
) -> None:
    request = about(request_type(api_key, version), api_key, "secret")
    (denied,) = received(judged(GUARDS[api_key], request), request).topics
    index: Callable[[Any], int] = lambda p: p.partition if api_key == 23 else p.partition_index  # noqa: E731
    assert [index(partition) for partition in denied.partitions] == [-70_000] * results(api_key)
    for partition in denied.partitions:
        assert set(_numbers(partition).values()) <= {-1}


@pytest.mark.parametrize("version", [2, 4])
def test_cluster_action_stands_for_describe_in_offset_for_leader_epoch(version: int) -> None:
    """It was a question of brokers before KIP-320, and they have no other right."""
    request = about(request_type(23, version), 23, "a")
    assert judged(GUARDS[23], request, cluster(Operation.CLUSTER_ACTION)) is FORWARD


def test_a_topic_named_twice_is_denied_twice() -> None:
    """As Kafka does: clients find their answer by place or by name."""
    request = about(request_type(2, 5), 2, "secret", "secret")
    assert names(2, received(judged(GUARDS[2], request), request)) == ["secret", "secret"]


def test_a_topic_whose_records_are_to_be_deleted_has_one_result() -> None:
    """And each of its partitions has one, as in Kafka, however often they are named."""
    request = about(request_type(21, 2), 21, "secret", "mine", "secret")
    judgement = judged(GUARDS[21], request, topic(Operation.DELETE, "mine"))
    response = received(judgement, request, about(response_type(21, 2), 21, "mine"))
    assert [(one.name, len(one.partitions)) for one in response.topics] == [
        ("mine", 2),
        ("secret", 1),
    ]
