"""Offsets of groups and of share groups, and transactions."""

from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Answer, Change, TopicsUnknown
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    Right,
    group,
    judged,
    received,
    sent,
    topic,
    transactional_id,
)
from tests.support.messages import request, response

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_ID
IDS = {"a": UUID(int=1), "secret": UUID(int=2), "b": UUID(int=3), "gone": UUID(int=4)}

READS = (
    group(Operation.READ, "g")
    | transactional_id(Operation.WRITE, "t")
    | topic(Operation.READ, "a", "b")
)


def topics(*names: str, **each: Any) -> list[dict[str, Any]]:
    """Topics under their name and their id, each with the partitions 0 and 7."""
    return [
        {
            "name": name,
            "topic_name": name,
            "topic_id": IDS[name],
            "partitions": [{"partition_index": index, **each} for index in (0, 7)],
        }
        for name in names
    ]


def commit(api_key: int, version: int, *names: str) -> Any:
    return request(api_key, version, group_id="g", transactional_id="t", topics=topics(*names))


def errors(found: Any) -> list[tuple[str, list[ErrorCode]]]:
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    return [
        (
            one.name if hasattr(one, "name") else by_id[one.topic_id],
            [partition.error_code for partition in one.partitions],
        )
        for one in found
    ]


COMMITS_BY_ID = [(8, 10), (28, 6)]


@pytest.mark.parametrize(("api_key", "version"), COMMITS_BY_ID)
def test_ids_are_looked_up_all_at_once(api_key: int, version: int) -> None:
    with pytest.raises(TopicsUnknown) as unknown:
        judged(GUARDS[api_key], commit(api_key, version, "a", "b"), READS, {})
    assert unknown.value.ids == {IDS["a"].bytes, IDS["b"].bytes}


@pytest.mark.parametrize(("api_key", "version"), COMMITS_BY_ID)
def test_no_id_is_looked_up_for_a_denied_group(api_key: int, version: int) -> None:
    asked = commit(api_key, version, "a", "b")
    rights = READS - group(Operation.READ, "g")
    assert isinstance(judged(GUARDS[api_key], asked, rights, {}), Answer)


def test_offset_delete() -> None:
    rights = group(Operation.DELETE, "g") | topic(Operation.READ, "a")
    asked = request(47, 0, group_id="g", topics=topics("secret", "a"))
    judgement = judged(GUARDS[47], asked, rights)
    assert [one.name for one in sent(judgement, asked).topics] == ["a"]
    merged = received(judgement, asked, response(47, 0, topics=topics("a")))
    assert [one.name for one in merged.topics] == ["secret", "a"]
    failed = response(47, 0, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert received(judgement, asked, failed) == failed
    denied = received(judged(GUARDS[47], asked, topic(Operation.READ, "*")), asked)
    assert (denied.error_code, denied.topics) == (GROUP_DENIED, ())
    assert isinstance(judged(GUARDS[47], asked, group(Operation.DELETE, "g")), Change)
    assert (
        judged(GUARDS[47], asked, group(Operation.DELETE, "*") | topic(Operation.READ, "*"))
        is FORWARD
    )


# ---------------------------------------------------------------------- OffsetFetch

SEES = group(Operation.DESCRIBE, "g", "h") | topic(Operation.DESCRIBE, "a", "b")


def of(found: Any) -> list[tuple[str, list[ErrorCode]]]:
    return errors(found.topics)


def test_everything_by_id_fails_if_a_name_is_not_known() -> None:
    """It can be neither shown nor left out: no offset would read as nothing committed."""
    asked = request(9, 10, groups=[{"group_id": "g", "topics": None}])
    judgement = judged(GUARDS[9], asked, SEES, {IDS["a"].bytes: "a"})
    broker = response(9, 10, groups=[{"group_id": "g", "topics": topics("a", "b")}])
    (found,) = received(judgement, asked, broker).groups
    assert (found.error_code, found.topics) == (UNKNOWN, ())


# ---------------------------------------------------------------------- share groups


@pytest.mark.parametrize(
    ("api_key", "rights"), [(91, group(Operation.READ, "g")), (92, group(Operation.DELETE, "g"))]
)
def test_changing_share_group_offsets(api_key: int, rights: frozenset[Right]) -> None:
    guard = GUARDS[api_key]
    asked = request(api_key, 0, group_id="g", topics=topics("a", "secret"))
    denied = received(judged(guard, asked, topic(Operation.READ, "*")), asked)
    assert (denied.error_code, denied.error_message) == (
        GROUP_DENIED,
        "Group authorization failed.",
    )
    judgement = judged(guard, asked, rights | topic(Operation.READ, "a"))
    assert [one.topic_name for one in sent(judgement, asked).topics] == ["a"]
    merged = received(judgement, asked, response(api_key, 0, responses=topics("a")))
    assert [one.topic_name for one in merged.responses] == ["secret", "a"]
    assert merged.responses[0].topic_id is None
    failed = response(api_key, 0, error_code=ErrorCode.NON_EMPTY_GROUP)
    assert received(judgement, asked, failed) == failed
    assert judged(guard, asked, rights | topic(Operation.READ, "*")) is FORWARD
    nothing = judged(guard, asked, rights)
    assert sent(nothing, asked).topics == ()
    assert received(nothing, asked, failed) == failed, "an error of the group comes first"


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
