"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: by the type of the resource."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    EVERYTHING,
    Right,
    cluster,
    group,
    judged,
    received,
    sent,
    topic,
)
from tests.support.kio_messages import request_type, response_type
from tests.support.messages import large

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
VERSIONS = [
    (DESCRIBE, 1),
    (DESCRIBE, 4),
    (ALTER, 0),
    (ALTER, 2),
    (INCREMENTAL, 0),
    (INCREMENTAL, 1),
]

Resource = tuple[int, str]


def right(api_key: int) -> Operation:
    return Operation.DESCRIBE_CONFIGS if api_key == DESCRIBE else Operation.ALTER_CONFIGS


def results_field(api_key: int) -> str:
    return "results" if api_key == DESCRIBE else "responses"


def asking(api_key: int, version: int, *resources: Resource) -> Any:
    filled = large(request_type(api_key, version))
    one = filled.resources[0]
    return replace(
        filled,
        resources=tuple(
            replace(one, resource_type=kind, resource_name=name) for kind, name in resources
        ),
    )


def answering(api_key: int, version: int, *resources: Resource) -> Any:
    filled = large(response_type(api_key, version))
    one = getattr(filled, results_field(api_key))[0]
    results = tuple(
        replace(one, resource_type=kind, resource_name=name, error_code=ErrorCode.NONE)
        for kind, name in resources
    )
    return replace(filled, **{results_field(api_key): results})


def outcome(api_key: int, response: Any) -> list[tuple[int, str, ErrorCode]]:
    return [
        (result.resource_type, result.resource_name, result.error_code)
        for result in getattr(response, results_field(api_key))
    ]


TYPES: list[tuple[Resource, Any, ErrorCode]] = [
    ((TOPIC, "t"), topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ((GROUP, "t"), group, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ((BROKER, "1"), None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ((BROKER, ""), None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ((METRICS, "m"), None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ((LOGGER, "1"), None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(
    ("api_key", "version", "resource", "rights", "error"),
    [
        (*version, *row)
        for version in VERSIONS
        for row in TYPES
        if (version[0], row[0][0]) != (ALTER, LOGGER)  # which AlterConfigs does not know
    ],
)
def test_each_type_asks_for_its_right(
    api_key: int, version: int, resource: Resource, rights: Any, error: ErrorCode
) -> None:
    operation = right(api_key)
    allowed: frozenset[Right] = rights(operation, resource[1]) if rights else cluster(operation)
    request = asking(api_key, version, resource)
    assert judged(GUARDS[api_key], request, allowed) is FORWARD
    judgement = judged(GUARDS[api_key], request, EVERYTHING - _every(operation))
    assert isinstance(judgement, Answer)
    response = received(judgement, request)
    assert outcome(api_key, response) == [(*resource, error)]
    (result,) = getattr(response, results_field(api_key))
    silent = api_key != DESCRIBE and resource[0] in (BROKER, LOGGER)  # seen on Kafka 4.4
    assert result.error_message is None if silent else "failed." in result.error_message


def _every(operation: Operation) -> frozenset[Right]:
    return frozenset(right for right in EVERYTHING if right[0] is operation)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_the_allowed_part_is_done_and_the_rest_denied(api_key: int, version: int) -> None:
    """A topic and a group of one name are two things; alterations keep the request's order."""
    request = asking(api_key, version, (BROKER, "1"), (TOPIC, "x"), (GROUP, "x"))
    judgement = judged(GUARDS[api_key], request, topic(right(api_key), "x"))
    assert sent(judgement, request) == asking(api_key, version, (TOPIC, "x"))
    broker = answering(api_key, version, (TOPIC, "x"))
    denied_broker = (BROKER, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    denied_group = (GROUP, "x", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    done = (TOPIC, "x", ErrorCode.NONE)
    assert outcome(api_key, received(judgement, request, broker)) == (
        [done, denied_broker, denied_group]
        if api_key == DESCRIBE
        else [denied_broker, done, denied_group]
    )


@pytest.mark.parametrize("version", [1, 4])
def test_one_unknown_type_fails_a_description_as_a_whole(version: int) -> None:
    """As in Kafka, and for a reason: the right that a later Kafka wants is not known."""
    request = asking(DESCRIBE, version, (TOPIC, "t"), (64, "u"))
    judgement = judged(GUARDS[DESCRIBE], request, EVERYTHING)
    assert isinstance(judgement, Answer)
    assert outcome(DESCRIBE, received(judgement, request)) == [
        (TOPIC, "t", ErrorCode.INVALID_REQUEST),
        (64, "u", ErrorCode.INVALID_REQUEST),
    ]


@pytest.mark.parametrize(
    ("api_key", "version", "kind"),
    [(ALTER, 0, 64), (ALTER, 2, LOGGER), (INCREMENTAL, 0, 0), (INCREMENTAL, 1, 64)],
)
def test_an_unknown_type_is_not_forwarded_for_anybody(
    api_key: int, version: int, kind: int
) -> None:
    request = asking(api_key, version, (kind, "u"), (TOPIC, "t"))
    judgement = judged(GUARDS[api_key], request, EVERYTHING)
    assert sent(judgement, request) == asking(api_key, version, (TOPIC, "t"))
    response = received(judgement, request, answering(api_key, version, (TOPIC, "t")))
    assert outcome(api_key, response) == [
        (kind, "u", ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ErrorCode.NONE),
    ]
