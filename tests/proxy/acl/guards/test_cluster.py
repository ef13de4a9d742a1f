"""Refusals on the cluster, and configurations of unknown types."""

from typing import Any

import pytest

from proxy.acl.decision import Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.handlers import scram_users
from proxy.wire.apis import SCRAM_APIS
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import EVERYTHING, Rights, inquiry, judged, received, sent
from tests.support.kio_messages import encode, request_type
from tests.support.messages import large, request, response, small


@pytest.mark.parametrize("api_key", sorted(SCRAM_APIS))
def test_requests_about_users_are_refused_as_where_the_proxy_has_the_users(api_key: int) -> None:
    """Those answers were compared with Kafka's; they need no store."""
    no_store: Any = None
    for make in (small, large):
        asked = make(request_type(api_key, 0))
        refused = scram_users.answer(api_key, encode(asked), no_store, authorized=False)
        assert judged(GUARDS[api_key], asked) == Answer(refused)


def test_only_the_last_of_two_rights_is_reported_missing() -> None:
    """As in Kafka: trying Alter first is no offence of a broker that has ClusterAction."""
    asked = inquiry(large(request_type(27, 1)))
    GUARDS[27](asked)
    assert isinstance(asked.authority, Rights)
    assert [right[0] for right in asked.authority.denials] == [Operation.CLUSTER_ACTION]


DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32

Resource = tuple[int, str]


def asking(api_key: int, version: int, *resources: Resource) -> Any:
    listed = [{"resource_type": kind, "resource_name": name} for kind, name in resources]
    return request(api_key, version, resources=listed)


def answering(api_key: int, version: int, *resources: Resource) -> Any:
    results = [{"resource_type": kind, "resource_name": name} for kind, name in resources]
    return response(api_key, version, responses=results)


def outcome(found: Any) -> list[tuple[int, str, ErrorCode]]:
    results = found.results if hasattr(found, "results") else found.responses
    return [(one.resource_type, one.resource_name, one.error_code) for one in results]


@pytest.mark.parametrize("version", [1, 4])
def test_one_unknown_type_fails_a_description_as_a_whole(version: int) -> None:
    """As in Kafka: the permission that a later Kafka requires is unknown."""
    asked = asking(DESCRIBE, version, (TOPIC, "t"), (64, "u"))
    judgement = judged(GUARDS[DESCRIBE], asked, EVERYTHING)
    assert isinstance(judgement, Answer)
    assert outcome(received(judgement, asked)) == [
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
    asked = asking(api_key, version, (kind, "u"), (TOPIC, "t"))
    judgement = judged(GUARDS[api_key], asked, EVERYTHING)
    assert sent(judgement, asked) == asking(api_key, version, (TOPIC, "t"))
    answered = received(judgement, asked, answering(api_key, version, (TOPIC, "t")))
    assert outcome(answered) == [
        (kind, "u", ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ErrorCode.NONE),
    ]
