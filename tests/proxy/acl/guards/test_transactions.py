"""Producer ids and transactions."""

import pytest

from proxy.acl.decision import FORWARD, Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    NOTHING,
    Right,
    cluster,
    group,
    judged,
    received,
    sent,
    topic,
    transactional_id,
)
from tests.support.messages import request, response, versions

DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
WRITE = transactional_id(Operation.WRITE, "t")


@pytest.mark.parametrize("version", versions(22))
@pytest.mark.parametrize(
    ("rights", "passes"),
    [
        (cluster(Operation.IDEMPOTENT_WRITE), True),
        (topic(Operation.WRITE, "any"), True),
        (topic(Operation.READ, "any") | WRITE, False),
    ],
)
def test_a_producer_id_without_transaction(
    version: int, rights: frozenset[Right], passes: bool
) -> None:
    asked = request(22, version, transactional_id=None)
    judgement = judged(GUARDS[22], asked, rights)
    assert (judgement is FORWARD) is passes
    if not passes:
        answer = received(judgement, asked)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", versions(22))
def test_a_producer_id_with_transaction(version: int) -> None:
    asked = request(22, version, transactional_id="t")
    assert judged(GUARDS[22], asked, WRITE) is FORWARD
    elsewhere = judged(GUARDS[22], asked, cluster(Operation.IDEMPOTENT_WRITE))
    assert received(elsewhere, asked).error_code == DENIED


def test_two_phase_commit_needs_its_own_right() -> None:
    asked = request(22, 6, transactional_id="t", enable2_pc=True)
    assert received(judged(GUARDS[22], asked, WRITE), asked).error_code == DENIED
    both = WRITE | transactional_id(Operation.TWO_PHASE_COMMIT, "t")
    assert judged(GUARDS[22], asked, both) is FORWARD


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (WRITE | topic(Operation.WRITE, "a", "b"), None),
        (topic(Operation.WRITE, "a", "b"), {"a": DENIED, "b": DENIED}),
        (
            WRITE | topic(Operation.WRITE, "a"),
            {"a": ErrorCode.OPERATION_NOT_ATTEMPTED, "b": TOPIC_DENIED},
        ),
        (WRITE, {"a": TOPIC_DENIED, "b": TOPIC_DENIED}),
    ],
)
def test_one_denied_topic_fails_the_transaction(
    version: int, rights: frozenset[Right], expected: dict[str, ErrorCode] | None
) -> None:
    asked = request(
        24,
        version,
        v3_and_below_transactional_id="t",
        v3_and_below_topics=[
            {"name": "a", "partitions": (0, 7)},
            {"name": "b", "partitions": (1,)},
        ],
    )
    judgement = judged(GUARDS[24], asked, rights)
    if expected is None:
        assert judgement is FORWARD
        return
    results = received(judgement, asked).results_by_topic_v3_and_below
    assert {
        (one.name, partition.partition_index, partition.partition_error_code)
        for one in results
        for partition in one.results_by_partition
    } == {("a", 0, expected["a"]), ("a", 7, expected["a"]), ("b", 1, expected["b"])}


def test_internal_topics_are_the_brokers_to_refuse() -> None:
    """It does so for everybody; beside a denied topic they are denied, not left unattempted."""
    internal = {"name": "__consumer_offsets", "partitions": (0,)}
    other = {"name": "a", "partitions": (0,)}
    asked = request(24, 3, v3_and_below_transactional_id="t", v3_and_below_topics=[internal])
    assert judged(GUARDS[24], asked, WRITE) is FORWARD
    asked = request(24, 3, v3_and_below_transactional_id="t", v3_and_below_topics=[internal, other])
    results = received(judged(GUARDS[24], asked, WRITE), asked).results_by_topic_v3_and_below
    assert {one.results_by_partition[0].partition_error_code for one in results} == {TOPIC_DENIED}


@pytest.mark.parametrize("version", [4, 5])
def test_batches_of_transactions_are_for_brokers(version: int) -> None:
    asked = request(24, version, transactions=[{"transactional_id": "t"}])
    assert judged(GUARDS[24], asked, cluster(Operation.CLUSTER_ACTION)) is FORWARD
    answer = received(judged(GUARDS[24], asked, WRITE), asked)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.results_by_transaction == ()


@pytest.mark.parametrize("version", versions(25))
@pytest.mark.parametrize(
    ("rights", "error"),
    [
        (WRITE | group(Operation.READ, "g"), None),
        (WRITE, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (group(Operation.READ, "g"), DENIED),
        (NOTHING, DENIED),
    ],
)
def test_offsets_in_a_transaction(
    version: int, rights: frozenset[Right], error: ErrorCode | None
) -> None:
    asked = request(25, version, transactional_id="t", group_id="g")
    judgement = judged(GUARDS[25], asked, rights)
    if error is None:
        assert judgement is FORWARD
    else:
        assert received(judgement, asked).error_code == error


@pytest.mark.parametrize("version", versions(26))
def test_the_end_of_a_transaction(version: int) -> None:
    asked = request(26, version, transactional_id="t")
    assert judged(GUARDS[26], asked, WRITE) is FORWARD
    denied = judged(GUARDS[26], asked)
    assert isinstance(denied, Answer)
    assert received(denied, asked).error_code == DENIED


def test_an_ended_transaction_reads_kafkas_bytes() -> None:
    kafka = bytes.fromhex("000000000035ffffffffffffffffffff00")
    assert judged(GUARDS[26], request(26, 5, transactional_id="t")) == Answer(kafka)


def test_descriptions_of_transactions() -> None:
    asked = request(65, 0, transactional_ids=["x", "t", "y"])
    rights = transactional_id(Operation.DESCRIBE, "t") | topic(Operation.DESCRIBE, "a")
    judgement = judged(GUARDS[65], asked, rights)
    assert sent(judgement, asked).transactional_ids == ("t",)
    reported = [{"topic": "a"}, {"topic": "secret"}]
    broker = response(65, 0, transaction_states=[{"transactional_id": "t", "topics": reported}])
    states = received(judgement, asked, broker).transaction_states
    assert [(one.transactional_id, one.error_code) for one in states] == [
        ("x", DENIED),
        ("t", ErrorCode.NONE),
        ("y", DENIED),
    ]
    assert [one.topic for one in states[1].topics] == ["a"]
    assert isinstance(judged(GUARDS[65], asked), Answer)


@pytest.mark.parametrize("version", versions(66))
def test_a_list_of_transactions_is_cut(version: int) -> None:
    """Describe on the cluster shows none of them, other than with groups."""
    asked = request(66, version)
    broker = response(
        66, version, transaction_states=[{"transactional_id": "t"}, {"transactional_id": "x"}]
    )
    rights = transactional_id(Operation.DESCRIBE, "t") | cluster(Operation.DESCRIBE)
    cut = received(judged(GUARDS[66], asked, rights), asked, broker)
    assert [one.transactional_id for one in cut.transaction_states] == ["t"]
