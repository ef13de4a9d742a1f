"""Offsets of groups and of share groups, and transactions."""

from typing import Any
from uuid import UUID

from proxy.acl.decision import FORWARD
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    group,
    judged,
    received,
    topic,
    transactional_id,
)
from tests.support.messages import request, response

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_ID
IDS = {"a": UUID(int=1), "b": UUID(int=3)}


def topics(*names: str) -> list[dict[str, Any]]:
    partitions = [{"partition_index": index} for index in (0, 7)]
    return [{"topic_id": IDS[name], "partitions": partitions} for name in names]


SEES = group(Operation.DESCRIBE, "g", "h") | topic(Operation.DESCRIBE, "a", "b")


def test_everything_by_id_fails_if_a_name_is_not_known() -> None:
    """It can be neither shown nor left out: no offset would read as nothing committed."""
    asked = request(9, 10, groups=[{"group_id": "g", "topics": None}])
    judgement = judged(GUARDS[9], asked, SEES, {IDS["a"].bytes: "a"})
    broker = response(9, 10, groups=[{"group_id": "g", "topics": topics("a", "b")}])
    (found,) = received(judgement, asked, broker).groups
    assert (found.error_code, found.topics) == (UNKNOWN, ())


TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
WRITE = transactional_id(Operation.WRITE, "t")


def test_internal_topics_are_the_brokers_to_refuse() -> None:
    """It does so for everybody; beside a denied topic they are denied, not left unattempted."""
    internal = {"name": "__consumer_offsets", "partitions": (0,)}
    other = {"name": "a", "partitions": (0,)}
    asked = request(24, 3, v3_and_below_transactional_id="t", v3_and_below_topics=[internal])
    assert judged(GUARDS[24], asked, WRITE) is FORWARD
    asked = request(24, 3, v3_and_below_transactional_id="t", v3_and_below_topics=[internal, other])
    results = received(judged(GUARDS[24], asked, WRITE), asked).results_by_topic_v3_and_below
    assert {one.results_by_partition[0].partition_error_code for one in results} == {TOPIC_DENIED}
