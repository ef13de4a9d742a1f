"""Subscriptions to regular expressions, which the broker matches with the proxy's rights."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.decision import FORWARD, Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import NOTHING, Right, group, inquiry, judged, received, topic
from tests.support.messages import request

MEMBER = group(Operation.READ, "g")


def heartbeat(regex: str | None, *names: str) -> Any:
    return request(
        68, 1, group_id="g", subscribed_topic_names=list(names), subscribed_topic_regex=regex
    )


def wanted(regex: str) -> list[str]:
    """What a member must be allowed to describe; `a*` is all that begins so."""
    asked = inquiry(heartbeat(regex), MEMBER)
    GUARDS[68](asked)
    return [name for _, _, name in asked.authority.denials]  # type: ignore[attr-defined]


def describing(*names: str) -> frozenset[Right]:
    return MEMBER | topic(Operation.DESCRIBE, *names)


@pytest.mark.parametrize(
    ("regex", "beginning"),
    [
        ("orders-.*", "orders-"),
        ("^orders-.*$", "orders-"),
        (r"eu\.orders\-\d+", "eu.orders-"),
        ("eu.orders", "eu"),
        ("orders(-eu)?", "orders"),
        ("orders(?:-eu)?", "orders"),
        ("orders[12]", "orders"),
        (r"orders\w", "orders"),
        ("orders-$.*", "orders-"),
        # A letter that need not be there
        ("orders-*", "orders"),
        ("orders-?.*", "orders"),
        ("orders-{0,1}x", "orders"),
        ("orders-+", "orders"),
        (r"orders\.*", "orders"),
        ("o*rders", ""),
        # What begins with anything, or otherwise than it is written
        (".*", ""),
        ("(?i)orders-.*", ""),
        ("orders|.*", ""),
        ("orders-(eu|us)", ""),
        ("[o]rders", ""),
        ("(orders)-.*", ""),
        ("^", ""),
        ("^*orders", ""),
        ("^^orders", ""),
        (r"\Qorders\E.*", ""),
        (r"\x6frders", ""),
        (r"\Aorders", ""),
        # A quantifier passes over these: `ab` matches
        (r"abc\Q\E*", ""),
        ("abc(?i)*", ""),
        ("abc(?-s)?", ""),
        # Not in a topic's name
        ("order\u017f.*", ""),
        ("orders ", ""),
        ("orders\n", ""),
        ("o" * 250 + ".*", ""),
        ("(" * 10_000, ""),
    ],
)
def test_a_regular_expression_asks_for_all_that_begins_as_it_must(
    regex: str, beginning: str
) -> None:
    assert wanted(regex) == [f"{beginning}*"]


@pytest.mark.parametrize("regex", ["eu.orders", r"eu\.orders", r"^eu\.orders$", r"eu\.orders$"])
def test_one_that_matches_one_name_asks_for_it(regex: str) -> None:
    assert wanted(regex) == (["eu*"] if regex == "eu.orders" else ["eu.orders"])


PIECES = [
    "a",
    "b",
    "-",
    r"\.",
    ".",
    "*",
    "?",
    "+",
    "{0,1}",
    "(",
    "(?:",
    ")",
    "[ab]",
    "^",
    "$",
    "|",
    r"\w",
]


def compiles(regex: str) -> bool:
    try:
        re.compile(regex)
    except re.error:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(
    regex=st.lists(st.sampled_from(PIECES), max_size=6).map("".join).filter(compiles),
    data=st.data(),
)
def test_what_matches_begins_so(regex: str, data: st.DataObject) -> None:
    """By Python's engine, which reads these as RE2/J does."""
    name = data.draw(st.from_regex(regex, fullmatch=True))
    for needed in wanted(regex):
        assert name == needed or name.startswith(needed.removesuffix("*"))


@pytest.mark.parametrize(
    ("rights", "passes"),
    [
        (describing("orders-*"), True),
        (describing("ord*"), True),
        (describing("*"), True),
        (describing("orders-eu*"), False),
        (describing("orders-"), False),
        (MEMBER, False),
        (topic(Operation.DESCRIBE, "*"), False),
        (NOTHING, False),
    ],
)
def test_a_subscription_to_topics_that_may_not_be_described_is_refused(
    rights: frozenset[Right], passes: bool
) -> None:
    asked = heartbeat("orders-.*")
    assert (judged(GUARDS[68], asked, rights) is FORWARD) is passes


def test_it_is_refused_as_a_name_is() -> None:
    """Kafka's answer to a topic that may not be described: the code alone."""
    by_regex, by_name = heartbeat(".*"), heartbeat(None, "secret")
    refused = received(judged(GUARDS[68], by_regex, MEMBER), by_regex)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert refused == received(judged(GUARDS[68], by_name, MEMBER), by_name)


@pytest.mark.parametrize("regex", [None, ""])
def test_none_and_the_end_of_one_ask_for_nothing(regex: str | None) -> None:
    assert judged(GUARDS[68], heartbeat(regex), MEMBER) is FORWARD


def test_names_and_a_regular_expression_are_both_asked_for() -> None:
    asked = heartbeat("orders-.*", "secret")
    assert isinstance(judged(GUARDS[68], asked, describing("orders-*")), Answer)
    assert judged(GUARDS[68], asked, describing("orders-*", "secret")) is FORWARD


def test_those_of_a_topology_are_asked_for() -> None:
    """Kafka 4.1 refuses them whoever sends them; a later one may not."""
    topology = {"subtopologies": [{"source_topic_regex": ["a.*", "b.*"]}]}
    asked = request(88, 0, group_id="g", topology=topology)
    assert judged(GUARDS[88], asked, describing("a*", "b*")) is FORWARD
    refused = received(judged(GUARDS[88], asked, describing("a*")), asked)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
