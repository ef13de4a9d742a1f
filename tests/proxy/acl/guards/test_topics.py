"""CreateTopics, CreatePartitions, DeleteTopics: by name, by id, and what responses reveal."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Answer
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.handlers import scram_users
from proxy.wire.apis import SCRAM_APIS
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    EVERYTHING,
    NOTHING,
    Rights,
    cluster,
    inquiry,
    judged,
    received,
    sent,
    topic,
)
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import large, request, response, small

CREATE, DELETE, GROW = 19, 20, 37
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
INVALID = ErrorCode.INVALID_REQUEST
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID


def about(schema: type[Any], field: str, *names: str) -> Any:
    """A request or response about topics by name."""
    filled = large(schema)
    one = getattr(filled, field)[0]
    error = {"error_code": ErrorCode.NONE} if hasattr(one, "error_code") else {}
    return replace(filled, **{field: tuple(replace(one, name=name, **error) for name in names)})


def creating(version: int, *names: str) -> Any:
    return about(request_type(CREATE, version), "topics", *names)


def created(version: int, *names: str) -> Any:
    return about(response_type(CREATE, version), "topics", *names)


class TestCreateTopics:
    @pytest.mark.parametrize("version", [2, 7])
    def test_the_log_of_the_quorum_is_created_for_nobody(self, version: int) -> None:
        request = creating(version, "__cluster_metadata", "a")
        judgement = judged(GUARDS[CREATE], request, cluster(Operation.CREATE))
        assert sent(judgement, request) == creating(version, "a")
        refused = received(judgement, request, created(version, "a")).topics[1]
        assert (refused.name, refused.error_code) == ("__cluster_metadata", INVALID)

    def test_what_is_merely_hidden_is_not_reported_as_denied(self) -> None:
        """A client that creates a topic did not ask for its configuration."""
        asked = inquiry(creating(7, "a"), topic(Operation.CREATE, "a"))
        GUARDS[CREATE](asked)
        assert isinstance(asked.authority, Rights)
        assert asked.authority.denials == []


@pytest.mark.parametrize("version", range(4))
def test_no_partitions_are_created_without_a_right(version: int) -> None:
    request = about(request_type(GROW, version), "topics", "a", "b", "b")
    judgement = judged(GUARDS[GROW], request, topic(Operation.CREATE, "*"))
    assert isinstance(judgement, Answer)
    outcome = [one.error_code for one in received(judgement, request).results]
    assert outcome == [DENIED, INVALID]


ALPHA, BETA, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
TOPICS = {ALPHA.bytes: "alpha", BETA.bytes: "beta", GONE.bytes: None}
FULL = topic(Operation.DELETE, "alpha") | topic(Operation.DESCRIBE, "alpha")


def deletions(response: Any) -> list[tuple[str | None, UUID | None, ErrorCode]]:
    return [(one.name, one.topic_id, one.error_code) for one in response.responses]


@pytest.mark.parametrize("version", range(1, 6))
def test_a_deletion_by_name_is_passed_or_denied(version: int) -> None:
    passed, request = (
        replace(large(request_type(DELETE, version)), topic_names=names)
        for names in (("alpha",), ("beta", "beta"))
    )
    assert judged(GUARDS[DELETE], passed, FULL) is FORWARD
    response = received(judged(GUARDS[DELETE], request, FULL), request)
    assert [(one.name, one.error_code) for one in response.responses] == [("beta", INVALID)]


class TestDeleteTopicsById:
    def deleting(self, *topics: tuple[str | None, UUID | None]) -> Any:
        schema = request_type(DELETE, 6)
        one = large(schema).topics[0]
        made = tuple(replace(one, name=name, topic_id=topic_id) for name, topic_id in topics)
        return replace(large(schema), topics=made)

    @pytest.mark.parametrize(
        ("asked", "reported"),
        [
            pytest.param((None, BETA), (None, BETA, DENIED), id="hidden: its name is not told"),
            pytest.param((None, GONE), (None, GONE, UNKNOWN_ID), id="of no topic"),
            pytest.param(("beta", None), ("beta", None, DENIED), id="by name: its id is not told"),
            pytest.param(("none", None), ("none", None, DENIED), id="no topic: told as if hidden"),
            pytest.param(("alpha", ALPHA), ("alpha", ALPHA, INVALID), id="name and id"),
            pytest.param(("beta", BETA), ("beta", BETA, INVALID), id="name and id of a hidden one"),
            pytest.param(("alpha", BETA), ("alpha", BETA, INVALID), id="name, another id"),
        ],
    )
    def test_what_is_denied_stays_here(
        self,
        asked: tuple[str | None, UUID | None],
        reported: tuple[str | None, UUID | None, ErrorCode],
    ) -> None:
        request = self.deleting(asked)
        judgement = judged(GUARDS[DELETE], request, FULL, TOPICS)
        assert isinstance(judgement, Answer)
        assert deletions(received(judgement, request)) == [reported]
        request = self.deleting(asked, (None, ALPHA))
        judgement = judged(GUARDS[DELETE], request, FULL, TOPICS)
        assert sent(judgement, request) == self.deleting((None, ALPHA))
        assert deletions(received(judgement, request, small(response_type(DELETE, 6)))) == [
            reported
        ]

    def test_an_id_given_twice_is_a_mistake_before_it_is_denied(self) -> None:
        """One result for both, and no name in it."""
        request = self.deleting((None, BETA), (None, BETA))
        judgement = judged(GUARDS[DELETE], request, topic(Operation.DESCRIBE, "beta"), TOPICS)
        assert deletions(received(judgement, request)) == [(None, BETA, INVALID)]

    def test_an_item_with_name_and_id_repeats_neither(self) -> None:
        """It is a mistake of its own: the others are judged as if it were not there."""
        request = self.deleting((None, BETA), ("beta", None), ("beta", BETA))
        judgement = judged(GUARDS[DELETE], request, FULL, TOPICS)
        errors = [one[2] for one in deletions(received(judgement, request))]
        assert errors == [DENIED, DENIED, INVALID]

    def test_neither_name_nor_id_is_left_to_the_broker(self) -> None:
        assert judged(GUARDS[DELETE], self.deleting((None, None)), NOTHING) is FORWARD


def test_a_topic_whose_records_are_to_be_deleted_has_one_result() -> None:
    """And each of its partitions has one, as in Kafka, however often they are named."""
    request = about(request_type(21, 2), "topics", "secret", "mine", "secret")
    judgement = judged(GUARDS[21], request, topic(Operation.DELETE, "mine"))
    response = received(judgement, request, about(response_type(21, 2), "topics", "mine"))
    results = [(one.name, len(one.partitions)) for one in response.topics]
    assert results == [("mine", 2), ("secret", 1)]


# Refusals on the cluster, and configurations of unknown types


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
