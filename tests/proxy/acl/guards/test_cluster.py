"""What is asked of the cluster: one right for all of it, and each API's own form of a refusal."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Answer, Change
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation, ResourceType
from proxy.handlers import scram_users
from proxy.wire.apis import APIS, SCRAM_APIS
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    EVERYTHING,
    NOTHING,
    Right,
    Rights,
    cluster,
    inquiry,
    judged,
    received,
)
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import large, small

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

RIGHTS = [
    (27, Operation.ALTER),
    (27, Operation.CLUSTER_ACTION),
    (34, Operation.ALTER),
    (35, Operation.DESCRIBE),
    (43, Operation.ALTER),
    (45, Operation.ALTER),
    (46, Operation.DESCRIBE),
    (50, Operation.DESCRIBE),
    (51, Operation.ALTER),
    (55, Operation.DESCRIBE),
    (57, Operation.ALTER),
    (64, Operation.ALTER),
    (74, Operation.DESCRIBE_CONFIGS),
    (80, Operation.ALTER),
    (81, Operation.ALTER),
]
ALL_VERSIONS = [
    pytest.param(
        api_key, version, operation, id=f"{APIS[api_key].name}-v{version}-{operation.name}"
    )
    for api_key, operation in RIGHTS
    for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
]


def errors(message: Any) -> Iterator[IntEnum]:
    """Every error code anywhere in a message."""
    if isinstance(message, tuple):
        for item in message:
            yield from errors(item)
    elif isinstance(message, IntEnum):
        yield message
    elif is_dataclass(message):
        for field in fields(message):
            yield from errors(getattr(message, field.name))


@pytest.mark.parametrize(("api_key", "version", "operation"), ALL_VERSIONS)
def test_its_right_suffices(api_key: int, version: int, operation: Operation) -> None:
    request = large(request_type(api_key, version))
    assert judged(GUARDS[api_key], request, cluster(operation)) is FORWARD


@pytest.mark.parametrize(("api_key", "version", "operation"), ALL_VERSIONS)
def test_all_other_rights_do_not(api_key: int, version: int, operation: Operation) -> None:
    operations = {right for key, right in RIGHTS if key == api_key} | {operation}
    others: frozenset[Right] = frozenset(
        right
        for right in EVERYTHING
        if not (right[1] is ResourceType.CLUSTER and right[0] in operations)
    )
    request = large(request_type(api_key, version))
    judgement = judged(GUARDS[api_key], request, others)
    assert isinstance(judgement, Answer)
    response = received(judgement, request)
    if (api_key, version) not in ((35, 1), (35, 2)):
        assert set(errors(response)) == {DENIED}


def refused(api_key: int, version: int) -> Any:
    request = large(request_type(api_key, version))
    return received(judged(GUARDS[api_key], request), request)


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_log_dir_responses_have_no_place_for_the_error(version: int) -> None:
    """Seen on Kafka 4.1: a denial is an empty success there."""
    assert refused(35, version) == replace(small(response_type(35, version)), results=())


@pytest.mark.parametrize("api_key", sorted(SCRAM_APIS))
def test_requests_about_users_are_refused_as_where_the_proxy_has_the_users(api_key: int) -> None:
    """Those answers were compared with Kafka's; they need no store."""
    no_store: Any = None
    for make in (small, large):
        asked = make(request_type(api_key, 0))
        refused = scram_users.answer(api_key, encode(asked), no_store, authorized=False)
        assert judged(GUARDS[api_key], asked) == Answer(refused)


def test_partitions_that_were_asked_for_are_named_in_the_refusal() -> None:
    """Clients look for the error where they expect the result."""
    assert [len(marker.topics) for marker in refused(27, 1).markers] == [2, 2]
    assert [len(topic.partitions) for topic in refused(34, 2).results] == [2, 2, 2, 2]
    assert [len(topic.partition_result) for topic in refused(43, 0).replica_election_results] == [
        2,
        2,
    ]
    assert [len(topic.partitions) for topic in refused(45, 1).responses] == [2, 2]
    assert [len(topic.partitions) for topic in refused(46, 0).topics] == [2, 2]


@pytest.mark.parametrize("version", [0, 1, 2])
class TestDescribeCluster:
    def request(self, version: int, asked: bool) -> Any:
        return replace(
            small(request_type(60, version)), include_cluster_authorized_operations=asked
        )

    def test_needs_no_right(self, version: int) -> None:
        assert judged(GUARDS[60], self.request(version, asked=False), NOTHING) is FORWARD

    @pytest.mark.parametrize(
        ("operations", "reported"),
        [
            ((Operation.DESCRIBE, Operation.CREATE), 1 << 8 | 1 << 5),
            ((Operation.CREATE,), 0),
            ((), 0),
        ],
        ids=["describe", "not without describe", "nothing"],
    )
    def test_tells_the_rights_of_the_principal_not_of_the_proxy(
        self, version: int, operations: tuple[Operation, ...], reported: int
    ) -> None:
        """The broker behind the proxy has no authorizer and would tell all of them."""
        request = self.request(version, asked=True)
        judgement = judged(GUARDS[60], request, cluster(*operations))
        assert isinstance(judgement, Change)
        assert judgement.request is None
        broker = replace(
            large(response_type(60, version)),
            error_code=ErrorCode.NONE,
            cluster_authorized_operations=8184,
        )
        response = received(judgement, request, broker)
        assert response == replace(broker, cluster_authorized_operations=reported)

    def test_leaves_a_failure_as_it_is(self, version: int) -> None:
        request = self.request(version, asked=True)
        broker = replace(large(response_type(60, version)), error_code=ErrorCode.INVALID_REQUEST)
        judgement = judged(GUARDS[60], request, cluster(Operation.DESCRIBE))
        assert received(judgement, request, broker) == broker


def test_only_the_last_of_two_rights_is_reported_missing() -> None:
    """As in Kafka: trying Alter first is no offence of a broker that has ClusterAction."""
    asked = inquiry(large(request_type(27, 1)))
    GUARDS[27](asked)
    assert isinstance(asked.authority, Rights)
    assert [right[0] for right in asked.authority.denials] == [Operation.CLUSTER_ACTION]
