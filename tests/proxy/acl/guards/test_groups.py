"""Members of groups, and what is told of groups."""

from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Answer, Change
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation, ResourceType
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

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
DESCRIBED = Operation.DESCRIBE


def every_version(*api_keys: int) -> list[tuple[int, int]]:
    return [(key, version) for key in api_keys for version in versions(key)]


@pytest.mark.parametrize(("api_key", "version"), every_version(11, 12, 13, 14, 68, 76, 88, 93))
def test_members_need_read_on_the_group(api_key: int, version: int) -> None:
    asked = request(api_key, version, group_id="g", protocol_type="p", protocol_name="n")
    assert judged(GUARDS[api_key], asked, group(Operation.READ, "g")) is FORWARD
    denied = judged(GUARDS[api_key], asked, group(Operation.DESCRIBE, "g"))
    assert isinstance(denied, Answer)
    assert received(denied, asked).error_code == GROUP_DENIED


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        # written by Kafka 4.1.0's own classes
        (11, 0, "001effffffff00000000000000000000"),
        (11, 5, "00000000001effffffff00000000000000000000"),
        (11, 6, "00000000001effffffff0101010100"),
        (11, 7, "00000000001effffffff000001010100"),
        (11, 9, "00000000001effffffff00000100010100"),
        (14, 3, "00000000001e00000000"),
        (14, 5, "00000000001e00000100"),
        (68, 0, "00000000001e00000000000000000000ff00"),
        (76, 1, "00000000001e00000000000000000000ff00"),
        # by Kafka 4.4.0's
        (88, 0, "00000000001e0001" + "00" * 16 + "01" + "00" * 9),
        (88, 1, "00000000001e0001" + "00" * 12 + "ff" * 8 + "01" + "00" * 10),
        (93, 0, "00000000001e0000"),
    ],
)
def test_a_denied_member_reads_kafkas_bytes(api_key: int, version: int, body: str) -> None:
    asked = request(api_key, version, group_id="g", protocol_type="p", protocol_name="n")
    assert judged(GUARDS[api_key], asked) == Answer(bytes.fromhex(body))


def test_a_sync_group_without_protocol_is_the_brokers_to_refuse() -> None:
    """Kafka checks it before it authorizes, so it says nothing of the group."""
    assert judged(GUARDS[14], request(14, 5, group_id="g", protocol_type="p")) is FORWARD


@pytest.mark.parametrize("api_key", [68, 76])
def test_one_hidden_topic_refuses_a_heartbeat(api_key: int) -> None:
    version = versions(api_key)[-1]
    asked = request(api_key, version, group_id="g", subscribed_topic_names=["a", "secret"])
    rights = group(Operation.READ, "g") | topic(DESCRIBED, "a")
    assert received(judged(GUARDS[api_key], asked, rights), asked).error_code == TOPIC_DENIED
    assert judged(GUARDS[api_key], asked, rights | topic(DESCRIBED, "secret")) is FORWARD


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


# ---------------------------------------------------------------------- FindCoordinator


@pytest.mark.parametrize("version", range(4))
def test_find_one_coordinator(version: int) -> None:
    asked = request(10, version, key="g")
    assert judged(GUARDS[10], asked, group(DESCRIBED, "g")) is FORWARD
    answer = received(judged(GUARDS[10], asked, transactional_id(DESCRIBED, "g")), asked)
    assert (answer.error_code, answer.node_id, answer.host) == (GROUP_DENIED, -1, "")
    assert getattr(answer, "error_message", None) == (
        "Group authorization failed." if version else None
    )


@pytest.mark.parametrize("version", [4, 5, 6])
def test_coordinators_come_in_the_order_of_their_keys(version: int) -> None:
    asked = request(10, version, key_type=1, coordinator_keys=["x", "a", "y", "b"])
    judgement = judged(GUARDS[10], asked, transactional_id(DESCRIBED, "a", "b"))
    assert sent(judgement, asked).coordinator_keys == ("a", "b")
    broker = response(10, version, coordinators=[{"key": "a"}, {"key": "b"}])
    found = received(judgement, asked, broker).coordinators
    denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [(one.key, one.error_code) for one in found] == [
        ("x", denied),
        ("a", ErrorCode.NONE),
        ("y", denied),
        ("b", ErrorCode.NONE),
    ]


def test_share_coordinators_are_for_brokers() -> None:
    asked = request(10, 6, key_type=2, coordinator_keys=["g:id:0"])
    (found,) = received(judged(GUARDS[10], asked), asked).coordinators
    assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert judged(GUARDS[10], asked, cluster(Operation.CLUSTER_ACTION)) is FORWARD
    early = request(10, 5, key_type=2, coordinator_keys=["g:id:0"])
    assert judged(GUARDS[10], early) is FORWARD


# ---------------------------------------------------------------------- lists and descriptions


@pytest.mark.parametrize("version", versions(16))
def test_a_list_of_groups_is_cut(version: int) -> None:
    asked = request(16, version)
    assert judged(GUARDS[16], asked, cluster(DESCRIBED)) is FORWARD
    broker = response(16, version, groups=[{"group_id": "g"}, {"group_id": "secret"}])
    judgement = judged(GUARDS[16], asked, group(DESCRIBED, "g"))
    assert [one.group_id for one in received(judgement, asked, broker).groups] == ["g"]


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


def test_the_message_of_a_group_that_is_not_deleted_is_the_brokers() -> None:
    asked = request(42, 3, groups_names=["x", "a"])
    failed = {"group_id": "a", "error_code": ErrorCode.NON_EMPTY_GROUP, "error_message": "why"}
    judgement = judged(GUARDS[42], asked, group(Operation.DELETE, "a"))
    results = received(judgement, asked, response(42, 3, results=[failed])).results
    assert [(one.group_id, one.error_message) for one in results] == [("a", "why"), ("x", None)]


DESCRIPTIONS = every_version(15, 69, 77, 89)


def asked_for(api_key: int, version: int, *names: str, operations: bool = False) -> Any:
    listed = list(names)
    return request(
        api_key, version, groups=listed, group_ids=listed, include_authorized_operations=operations
    )


@pytest.mark.parametrize(("api_key", "version"), DESCRIPTIONS)
def test_groups_that_may_not_be_described_come_first(api_key: int, version: int) -> None:
    asked = asked_for(api_key, version, "a", "secret", "b")
    judgement = judged(GUARDS[api_key], asked, group(DESCRIBED, "a", "b"))
    assert sent(judgement, asked) == asked_for(api_key, version, "a", "b")
    broker = response(api_key, version, groups=[{"group_id": "a"}, {"group_id": "b"}])
    groups = received(judgement, asked, broker).groups
    assert [(one.group_id, one.error_code) for one in groups] == [
        ("secret", GROUP_DENIED),
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
    ]
    assert isinstance(judged(GUARDS[api_key], asked), Answer)


@pytest.mark.parametrize(
    ("api_key", "version"), [one for one in DESCRIPTIONS if one[1] >= 3 or one[0] != 15]
)
def test_operations_are_the_principals(api_key: int, version: int) -> None:
    """A broker without authorizer tells everybody that they may do everything."""
    asked = asked_for(api_key, version, "a", "gone", operations=True)
    rights = group(DESCRIBED, "a", "gone") | group(Operation.READ, "a")
    judgement = judged(GUARDS[api_key], asked, rights)
    everything = {"authorized_operations": 0b1111111111}
    dead = {"group_id": "gone", "error_code": ErrorCode.GROUP_ID_NOT_FOUND, **everything}
    broker = response(api_key, version, groups=[{"group_id": "a", **everything}, dead])
    reported = [one.authorized_operations for one in received(judgement, asked, broker).groups]
    assert reported == [1 << Operation.READ | 1 << Operation.DESCRIBE, 0b1111111111]


def test_a_description_without_operations_or_topics_passes() -> None:
    assert judged(GUARDS[15], asked_for(15, 6, "a"), group(DESCRIBED, "a")) is FORWARD


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
    asked = request(89, 1, group_ids=["a"], include_topology_description=True)
    broker = response(89, 1, groups=[group_of_broker])
    judgement = judged(GUARDS[89], asked, group(DESCRIBED, "a"))
    (hidden,) = received(judgement, asked, broker).groups
    assert hidden.error_code == TOPIC_DENIED
    reported = (
        hidden.topology_description,
        hidden.topology_description_status,
        hidden.assignor_name,
    )
    assert reported == (None, 0, None)


def test_what_is_kept_of_the_question_includes_the_description() -> None:
    asked = request(89, 1, group_ids=["a", "secret"], include_topology_description=True)
    judgement = judged(GUARDS[89], asked, group(DESCRIBED, "a"))
    assert sent(judgement, asked) == request(
        89, 1, group_ids=["a"], include_topology_description=True
    )


def test_a_refused_description_is_kafkas_bytes() -> None:
    """Written by Kafka 4.4.0's own classes."""
    refused = judged(GUARDS[89], asked_for(89, 1, "g"))
    body = "0000000002001e000267010000000000000000ff0180000000ff00000000"
    assert refused == Answer(bytes.fromhex(body))


def test_topics_of_an_update_of_a_topology_are_not_judged() -> None:
    node = {"name": "source", "node_type": 1, "source_topics": ["secret"]}
    described = {"subtopologies": [{"subtopology_id": "0", "nodes": [node]}]}
    asked = request(93, 0, group_id="g", topology_description=described)
    assert judged(GUARDS[93], asked, group(Operation.READ, "g")) is FORWARD


def test_any_type_of_resource_but_a_group_is_of_no_use() -> None:
    rights = {(operation, ResourceType.TOPIC, "*") for operation in Operation}
    assert isinstance(judged(GUARDS[12], request(12, 4, group_id="g"), rights), Answer)
