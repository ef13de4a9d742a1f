"""Topologies, descriptions and subscriptions of groups."""

import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.decision import FORWARD, Answer, Change
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    NOTHING,
    Right,
    cluster,
    group,
    inquiry,
    judged,
    received,
    sent,
    topic,
    transactional_id,
)
from tests.support.messages import message, request, response, versions
from tests.support.tables import table

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
DESCRIBED = Operation.DESCRIBE


def test_a_sync_group_without_protocol_is_the_brokers_to_refuse() -> None:
    """Kafka checks it before it authorizes, so the error does not reveal the group."""
    assert judged(GUARDS[14], request(14, 5, group_id="g", protocol_type="p")) is FORWARD


TOPOLOGY = {
    "subtopologies": [
        {
            "source_topics": ["in"],
            "repartition_sink_topics": ["sink"],
            "repartition_source_topics": [{"name": "repartition"}],
            "state_changelog_topics": [{"name": "changelog"}],
        }
    ]
}
STREAMS_TOPICS = ("in", "sink", "repartition", "changelog")


@pytest.mark.parametrize("version", versions(88))
@pytest.mark.parametrize("hidden", STREAMS_TOPICS)
def test_one_hidden_topic_refuses_a_topology(hidden: str, version: int) -> None:
    asked = request(88, version, group_id="g", topology=TOPOLOGY)
    seen = [name for name in STREAMS_TOPICS if name != hidden]
    rights = group(Operation.READ, "g") | topic(DESCRIBED, *seen) | cluster(Operation.CREATE)
    assert received(judged(GUARDS[88], asked, rights), asked).error_code == TOPIC_DENIED


@pytest.mark.parametrize(
    ("creates", "passes"),
    [
        (cluster(Operation.CREATE), True),
        (topic(Operation.CREATE, "repartition", "changelog"), True),
        (topic(Operation.CREATE, "repartition"), False),
        (NOTHING, False),
    ],
)
def test_a_topology_makes_no_topic_that_its_sender_may_not_make(
    creates: frozenset[Right], passes: bool
) -> None:
    """The broker would make it with its own rights: that is no way around Create."""
    asked = request(88, 0, group_id="g", topology=TOPOLOGY)
    rights = group(Operation.READ, "g") | topic(DESCRIBED, *STREAMS_TOPICS) | creates
    assert (judged(GUARDS[88], asked, rights) is FORWARD) is passes


# ---------------------------------------------------------------------- lists and descriptions


def test_a_cut_list_reports_no_denials() -> None:
    """Else a monitoring tool that lists groups would fill the log."""
    given = inquiry(request(16, 5))
    judgement = GUARDS[16](given)
    received(judgement, request(16, 5), response(16, 5, groups=[{"group_id": "secret"}]))
    assert given.authority.denials == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", versions(42))
def test_groups_that_may_not_be_deleted_come_last(version: int) -> None:
    asked = request(42, version, groups_names=["x", "a", "x"])
    judgement = judged(GUARDS[42], asked, group(Operation.DELETE, "a"))
    assert sent(judgement, asked).groups_names == ("a",)
    results = received(judgement, asked, response(42, version, results=[{"group_id": "a"}])).results
    assert [(one.group_id, one.error_code) for one in results] == [
        ("a", ErrorCode.NONE),
        ("x", GROUP_DENIED),
    ]
    assert isinstance(judged(GUARDS[42], asked), Answer)


def asked_for(api_key: int, version: int, *names: str, operations: bool = False) -> Any:
    listed = list(names)
    return request(
        api_key, version, groups=listed, group_ids=listed, include_authorized_operations=operations
    )


ASSIGNED = {"topic_partitions": [{"topic_name": "secret"}]}
HIDING = [
    (69, {"members": [{"assignment": ASSIGNED}]}),
    (69, {"members": [{"target_assignment": ASSIGNED}]}),
    (77, {"members": [{"assignment": ASSIGNED}]}),
    (89, {"topology": {"subtopologies": [{"source_topics": ["secret"]}]}}),
    (89, {"topology": {"subtopologies": [{"repartition_sink_topics": ["secret"]}]}}),
    (89, {"topology": {"subtopologies": [{"repartition_source_topics": [{"name": "secret"}]}]}}),
    (89, {"topology": {"subtopologies": [{"state_changelog_topics": [{"name": "secret"}]}]}}),
]


@pytest.mark.parametrize(("api_key", "tells"), HIDING)
def test_one_hidden_topic_fails_the_group(api_key: int, tells: dict[str, Any]) -> None:
    version = versions(api_key)[-1]
    asked = asked_for(api_key, version, "a", "b")
    broker = response(
        api_key, version, groups=[{"group_id": "a", "group_epoch": 9, **tells}, {"group_id": "b"}]
    )
    judgement = judged(GUARDS[api_key], asked, group(DESCRIBED, "a", "b"))
    hidden, other = received(judgement, asked, broker).groups
    assert (hidden.error_code, hidden.group_epoch, hidden.members) == (TOPIC_DENIED, 0, ())
    assert getattr(hidden, "topology", None) is None
    assert other == message(type(other), {"group_id": "b"})
    shown = judged(GUARDS[api_key], asked, group(DESCRIBED, "*") | topic(DESCRIBED, "secret"))
    assert isinstance(shown, Change)
    assert received(shown, asked, broker) == broker


def test_a_group_that_is_hidden_for_a_topic_loses_the_description_of_its_topology() -> None:
    node = {"name": "source", "node_type": 1, "source_topics": ["secret"]}
    described = {"subtopologies": [{"subtopology_id": "0", "nodes": [node]}]}
    group_of_broker = {
        "group_id": "a",
        "topology": {"subtopologies": [{"source_topics": ["secret"]}]},
        "topology_description": described,
        "topology_description_status": 3,
        "assignor_name": "sticky",
    }
    asked, cut = (
        request(89, 1, group_ids=names, include_topology_description=True)
        for names in (["a", "secret"], ["a"])
    )
    judgement = judged(GUARDS[89], asked, group(DESCRIBED, "a"))
    assert sent(judgement, asked) == cut
    (_, hidden) = received(judgement, asked, response(89, 1, groups=[group_of_broker])).groups
    assert hidden.error_code == TOPIC_DENIED
    assert (hidden.topology_description, hidden.topology_description_status) == (None, 0)
    assert hidden.assignor_name is None


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
    [*table(__file__, "regular_expressions"), ("o" * 250 + ".*", ""), ("(" * 10_000, "")],
)
def test_a_regular_expression_asks_for_all_that_begins_as_it_must(
    regex: str, beginning: str
) -> None:
    assert wanted(regex) == [f"{beginning}*"]


@pytest.mark.parametrize("regex", [r"eu\.orders", r"^eu\.orders$", r"eu\.orders$"])
def test_one_that_matches_one_name_asks_for_it(regex: str) -> None:
    assert wanted(regex) == ["eu.orders"]


PIECES = [*"ab-.*?+()^$|", r"\.", "{0,1}", "(?:", "[ab]", r"\w"]


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
    """Kafka 4.1 refuses them from every client; a later version may not."""
    topology = {"subtopologies": [{"source_topic_regex": ["a.*", "b.*"]}]}
    asked = request(88, 0, group_id="g", topology=topology)
    assert judged(GUARDS[88], asked, describing("a*", "b*")) is FORWARD
    refused = received(judged(GUARDS[88], asked, describing("a*")), asked)
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Offsets, and topics of transactions


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
