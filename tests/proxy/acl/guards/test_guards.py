"""Guards: of topics by name and by id, of records, and the table as a whole."""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Answer, Change, Close, Forward, TopicsUnknown
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.errors import ClientFault
from proxy.handlers import scram_users
from proxy.wire.apis import APIS, SCRAM_APIS, Kind
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import Malformed
from tests.support.authorization import (
    EVERYTHING,
    NOTHING,
    Rights,
    cluster,
    group,
    inquiry,
    judged,
    received,
    sent,
    topic,
    transactional_id,
)
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import LARGE, large, request, response, small, versions

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


# --- the table as a whole: every API has its guard, and no guard fears any bytes

BY_ITEMS = {2, 19, 20, 21, 23, 32, 33, 37, 44, 61}
ALL_OR_NOTHING = {27, 34, 35, 43, 45, 46, 50, 51, 55, 57, 64, 74, 80, 81, 94}
TOPIC_NAMES = {LARGE["uuid"].bytes: "by-id"}


def every_version(api_keys: set[int]) -> list[Any]:
    return [
        pytest.param(api_key, version, id=f"{APIS[api_key].name}-v{version}")
        for api_key in sorted(api_keys)
        for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
    ]


def test_every_forwarded_api_has_a_guard() -> None:
    """An API without a guard must not be offered: each new API needs a guard."""
    forwarded = {api.key for api in APIS.values() if api.kind is Kind.FORWARDED}
    assert forwarded <= GUARDS.keys()
    answered = {api_key for api_key in GUARDS if APIS[api_key].kind is Kind.ANSWERED}
    assert answered == SCRAM_APIS, "forwarded where brokers authenticate the clients"


@pytest.mark.parametrize(("api_key", "version"), every_version(ALL_OR_NOTHING))
def test_a_null_list_is_denied_like_a_list(api_key: int, version: int) -> None:
    """Null is "all of them" in ElectLeaders and others."""
    request = small(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING), Answer)


@pytest.mark.parametrize("api_key", sorted(GUARDS))
@pytest.mark.parametrize("allowed", [NOTHING, EVERYTHING], ids=["nobody", "root"])
def test_a_guard_fears_no_bytes(api_key: int, allowed: Any) -> None:
    """A hostile body is judged, or Malformed: no other exception may reach the connection."""
    for version in versions(api_key):
        asked = inquiry(large(request_type(api_key, version)), allowed, TOPIC_NAMES)
        body = asked.body
        step = max(1, len(body) // 12)
        positions = range(version % step, len(body), step)  # others in each version
        bodies = [body[:length] for length in positions]
        bodies += [
            body[:position] + lie + body[position + len(lie) :]
            for position in positions
            for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80")
        ]
        for hostile in bodies:
            with suppress(Malformed, ClientFault, TopicsUnknown):
                judgement = GUARDS[api_key](replace(asked, body=hostile))
                assert isinstance(judgement, Forward | Answer | Change | Close)


@pytest.mark.parametrize(("api_key", "version"), every_version(BY_ITEMS | ALL_OR_NOTHING | {75}))
def test_a_body_that_is_cut_off_is_malformed_without_rights(api_key: int, version: int) -> None:
    """A request that cannot be read gets no response; one that is denied reaches no broker."""
    request = large(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING, TOPIC_NAMES), Answer)
    asked = inquiry(request, NOTHING, TOPIC_NAMES)
    with pytest.raises(Malformed):
        GUARDS[api_key](replace(asked, body=asked.body[: len(asked.body) // 2]))


def by_ids(api_key: int, version: int) -> Any:
    topics = [{"name": None, "topic_id": UUID(int=number)} for number in (1, 2)]
    return request(api_key, version, group_id="g", transactional_id="t", topics=topics)


MEMBER = group(Operation.READ, "g") | transactional_id(Operation.WRITE, "t")


@pytest.mark.parametrize(
    ("api_key", "version"), [(3, 12), (8, 10), (20, 6), (28, 6), (78, 1), (79, 1)]
)
def test_ids_are_looked_up_all_at_once(api_key: int, version: int) -> None:
    with pytest.raises(TopicsUnknown) as unknown:
        judged(GUARDS[api_key], by_ids(api_key, version), MEMBER, {})
    assert unknown.value.ids == {UUID(int=number).bytes for number in (1, 2)}


@pytest.mark.parametrize(("api_key", "version"), [(8, 10), (28, 6)])
def test_no_id_is_looked_up_for_a_denied_group(api_key: int, version: int) -> None:
    rights = MEMBER - group(Operation.READ, "g")
    assert isinstance(judged(GUARDS[api_key], by_ids(api_key, version), rights, {}), Answer)


def test_no_id_is_looked_up_for_who_may_delete_all() -> None:
    assert judged(GUARDS[20], by_ids(20, 6), cluster(Operation.DELETE), {}) is FORWARD


NAMES = {LARGE["uuid"].bytes: "secret"}
RIGHTS = group(Operation.READ, "*") | group(Operation.DESCRIBE, "*") | group(Operation.DELETE, "*")
RIGHTS |= transactional_id(Operation.DESCRIBE, "*")
CUT = [
    (api_key, version)
    for api_key in (9, 16, 47, 65, 66, 69, 77, 78, 79, 89, 90, 91)
    for version in versions(api_key)
]


@pytest.mark.parametrize(("api_key", "version"), CUT)
def test_a_cut_fears_no_bytes(api_key: int, version: int) -> None:
    """A response that cannot be read raises Malformed: it is neither passed on nor harmful."""
    rights = NOTHING if api_key == 16 else RIGHTS
    judgement = judged(GUARDS[api_key], large(request_type(api_key, version)), rights, NAMES)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    body = encode(large(response_type(api_key, version)))
    judgement.response(body)
    step = max(1, len(body) // 25)
    for position in range(0, len(body), step):
        for hostile in (
            body[:position],
            body[:position] + b"\xff\xff\xff\xff\x07" + body[position + 5 :],
        ):
            with suppress(Malformed):
                judgement.response(hostile)
    with pytest.raises(Malformed):
        judgement.response(body[: len(body) // 2])


# --- Produce in a transaction; ShareFetch and ShareAcknowledge, by topic id and in sessions

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
A, SECRET, GONE_ID = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES_OF_IDS = {A.bytes: "a", SECRET.bytes: "secret", GONE_ID.bytes: None}
READS = group(Operation.READ, "g") | topic(Operation.READ, "a")
BATCHES = [{"first_offset": 1, "last_offset": 2}]


def asking_by_id(
    api_key: int, version: int, *ids: UUID, epoch: int = 1, acknowledge: bool = False
) -> Any:
    partition = {"partition_index": 7, "acknowledgement_batches": BATCHES if acknowledge else []}
    topics = [{"topic_id": one, "partitions": [partition]} for one in ids]
    return request(api_key, version, group_id="g", share_session_epoch=epoch, topics=topics)


def fetched(version: int, *ids: UUID) -> Any:
    partition = {
        "partition_index": 7,
        "records": b"records",
        "acquired_records": [{"first_offset": 1, "last_offset": 1, "delivery_count": 1}],
    }
    responses = [{"topic_id": one, "partitions": [partition]} for one in ids]
    return response(78, version, responses=responses)


@pytest.mark.parametrize("version", versions(78))
def test_a_right_taken_away_bites_in_a_running_session(version: int) -> None:
    """The request names no topic: what the broker sends is what earlier requests added."""
    asked = asking_by_id(78, version)
    judgement = judged(GUARDS[78], asked, READS, NAMES_OF_IDS)
    assert isinstance(judgement, Change)
    assert judgement.request is None
    broker = fetched(version, A, SECRET)
    answer = received(judgement, asked, broker)
    assert answer.responses[0] == broker.responses[0]
    emptied = answer.responses[1].partitions[0]
    assert (emptied.error_code, emptied.records, emptied.acquired_records) == (
        TOPIC_DENIED,
        b"",
        (),
    )


def test_a_topic_without_a_known_name_is_not_shown() -> None:
    """A session that was opened elsewhere must not get records past the ACLs."""
    judgement = judged(GUARDS[78], asking_by_id(78, 1), READS, {})
    answer = received(judgement, asking_by_id(78, 1), fetched(1, A))
    assert answer.responses[0].partitions[0].records == b""


def test_an_allowed_response_stays_byte_for_byte() -> None:
    judgement = judged(GUARDS[78], asking_by_id(78, 1, A), READS, NAMES_OF_IDS)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    assert judgement.request is None
    body = encode(fetched(1, A)) + b"bytes behind it"
    assert judgement.response(body) is body


@pytest.mark.parametrize(
    ("epoch", "acknowledge", "fetch_error", "acknowledge_error"),
    [
        (1, False, TOPIC_DENIED, 0),
        (1, True, TOPIC_DENIED, TOPIC_DENIED.value),
        (-1, True, ErrorCode.NONE, TOPIC_DENIED.value),
    ],
)
def test_where_the_errors_of_a_fetch_stand(
    epoch: int, acknowledge: bool, fetch_error: ErrorCode, acknowledge_error: int
) -> None:
    asked = asking_by_id(78, 1, SECRET, epoch=epoch, acknowledge=acknowledge)
    judgement = judged(GUARDS[78], asked, READS, NAMES_OF_IDS)
    assert sent(judgement, asked).topics == ()
    (denied,) = received(judgement, asked, fetched(1)).responses
    assert denied.partitions[0].error_code == fetch_error
    assert denied.partitions[0].acknowledge_error_code == acknowledge_error


@pytest.mark.parametrize("api_key", [78, 79])
def test_a_session_error_stands_alone(api_key: int) -> None:
    asked = asking_by_id(api_key, 1, SECRET)
    failed = response(api_key, 1, error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
    assert received(judged(GUARDS[api_key], asked, READS, NAMES_OF_IDS), asked, failed) == failed


@pytest.mark.parametrize("api_key", [78, 79])
def test_no_group_is_no_way_around_one(api_key: int) -> None:
    asked = request(api_key, 1, group_id=None)
    denied = received(judged(GUARDS[api_key], asked, READS, NAMES_OF_IDS), asked)
    assert denied.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_batch_of_a_transaction_needs_write_on_its_id(version: int) -> None:
    """Without an id there is no right that would suffice."""
    magic, transactional = 16, 22
    batch = bytearray(80)
    batch[magic], batch[transactional] = 2, 0x10
    partitions = [{"index": 0, "records": bytes(batch)}]
    topics = [{"name": "a", "partition_data": partitions}]
    writes = topic(Operation.WRITE, "a")
    both = writes | transactional_id(Operation.WRITE, "t")
    asked = request(0, version, transactional_id="t", acks=-1, topic_data=topics)
    nameless = request(0, version, transactional_id=None, acks=-1, topic_data=topics)
    assert judged(GUARDS[0], asked, both) is FORWARD
    for refused, rights in ((asked, writes), (nameless, both)):
        (denied,) = received(judged(GUARDS[0], refused, rights), refused).responses
        error = denied.partition_responses[0].error_code
        assert error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
