"""DescribeTopicPartitions: what is hidden is not told, not even by where a page ends."""

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from proxy.acl.guards import GUARDS
from proxy.acl.judgement import Answer, Change
from proxy.acl.model import Operation
from proxy.wire.codec import encode, request_type, response_type
from tests.proxy.acl.guards.given import judged, received, sent, topic
from tests.proxy.wire.instances import large

API = 75
REQUEST, RESPONSE = large(request_type(API, 0)), large(response_type(API, 0))
DENIED = ErrorCode.topic_authorization_failed
VISIBLE = topic(Operation.DESCRIBE, "a", "c") | topic(Operation.READ, "a")


def asking(*names: str, cursor: str | None = None, partition: int = 3) -> Any:
    one = REQUEST.topics[0]
    return replace(
        REQUEST,
        topics=tuple(replace(one, name=name) for name in names),
        cursor=cursor and replace(REQUEST.cursor, topic_name=cursor, partition_index=partition),
    )


def answering(*names: str, cursor: str | None = None, partition: int = 3) -> Any:
    one = replace(RESPONSE.topics[0], error_code=ErrorCode.none, topic_authorized_operations=3064)
    return replace(
        RESPONSE,
        topics=tuple(replace(one, name=name) for name in names),
        next_cursor=cursor
        and replace(RESPONSE.next_cursor, topic_name=cursor, partition_index=partition),
    )


def test_the_allowed_part_is_asked_for_and_the_rest_denied() -> None:
    request = asking("a", "b", "c", "missing")
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert sent(judgement, request) == asking("a", "c")
    response = received(judgement, request, answering("a", "c"))
    assert [(one.name, one.error_code) for one in response.topics] == [
        ("a", ErrorCode.none),
        ("c", ErrorCode.none),
        ("b", DENIED),
        ("missing", DENIED),
    ]
    for refused in response.topics[2:]:
        assert (refused.topic_id, refused.is_internal, refused.partitions) == (None, False, ())


def test_the_rights_told_are_those_of_the_principal() -> None:
    """The broker behind the proxy has no authorizer and would tell all of them."""
    request = asking("a", "c")
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert isinstance(judgement, Change)
    assert judgement.request is None
    a, c = received(judgement, request, answering("a", "c")).topics
    assert a.topic_authorized_operations == 1 << 8 | 1 << 3
    assert c.topic_authorized_operations == 1 << 8


def test_nothing_allowed_does_not_become_everything() -> None:
    """An empty list would ask the broker for all topics."""
    request = asking("b", "d")
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert isinstance(judgement, Answer)
    response = received(judgement, request)
    assert [(one.name, one.error_code) for one in response.topics] == [("b", DENIED), ("d", DENIED)]
    assert response.next_cursor is None


@pytest.mark.parametrize(
    ("request_", "passed", "denied"),
    [
        pytest.param(
            asking("a", "b", "c", cursor="a"), asking("a", "c", cursor="a"), ["b"], id="a"
        ),
        pytest.param(asking("a", "b", "c", cursor="b"), asking("c"), ["b"], id="at a hidden one"),
        pytest.param(asking("a", "b", "c", cursor="c"), None, [], id="behind the hidden one"),
    ],
)
def test_the_cursor_skips_topics_as_in_kafka(request_: Any, passed: Any, denied: list[str]) -> None:
    judgement = judged(GUARDS[API], request_, VISIBLE)
    assert sent(judgement, request_) == (request_ if passed is None else passed)
    response = received(judgement, request_, answering("c"))
    assert [one.name for one in response.topics] == ["c", *denied]


def test_a_cursor_at_a_hidden_last_topic_ends_the_list() -> None:
    judgement = judged(GUARDS[API], asking("a", "b", cursor="b"), VISIBLE)
    assert isinstance(judgement, Answer)


def test_all_topics_are_those_that_may_be_seen() -> None:
    request = asking()
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert sent(judgement, request) == request
    response = received(judgement, request, answering("a", "b", "c", "d"))
    assert [one.name for one in response.topics] == ["a", "c"]


def test_a_page_that_ends_at_a_visible_topic_says_so() -> None:
    request = asking()
    judgement = judged(GUARDS[API], request, VISIBLE)
    broker = answering("a", "b", cursor="c")
    assert received(judgement, request, broker).next_cursor == broker.next_cursor


def test_a_page_that_ends_at_a_hidden_topic_does_not_tell_its_name() -> None:
    """And yet the next page begins there: else a page of hidden topics would never end."""
    request = asking()
    judgement = judged(GUARDS[API], request, VISIBLE)
    told = judgement_response(judgement, answering("a", cursor="b-secret", partition=7))
    assert b"secret" not in encode(told)
    assert told.next_cursor.partition_index == 7
    again = asking(cursor=told.next_cursor.topic_name, partition=7)
    following = judged(GUARDS[API], again, VISIBLE)
    assert sent(following, again) == asking(cursor="b-secret", partition=7)


def judgement_response(judgement: Any, broker: Any) -> Any:
    return received(judgement, asking(), broker)


def test_every_seal_is_of_the_same_length() -> None:
    judgement = judged(GUARDS[API], asking(), VISIBLE)
    seals = [
        judgement_response(judgement, answering(cursor=name)).next_cursor.topic_name
        for name in ("b", "x" * 249)
    ]
    assert len(seals[0]) == len(seals[1])


@pytest.mark.parametrize("cursor", ["!", "!AAAA", "!" + "A" * 354, "!é", "!%%%%", "plain"], ids=str)
def test_a_forged_seal_is_but_a_name(cursor: str) -> None:
    """What a seal holds cannot be chosen by the client, nor does a wrong one fail in our hands."""
    request = asking(cursor=cursor)
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert isinstance(judgement, Change)
    assert judgement.request is None


def test_a_cursor_that_was_not_asked_for_is_left_to_the_broker() -> None:
    """Kafka refuses such a request as a whole; what came back would be cut all the same."""
    request = asking("a", "b", cursor="x")
    judgement = judged(GUARDS[API], request, VISIBLE)
    assert sent(judgement, request) == request
    assert [one.name for one in received(judgement, request, answering("a", "b")).topics] == ["a"]
