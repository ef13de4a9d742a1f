"""Requests judged by ACLs, as transcripts: lists of topics, and the memory that judging takes."""

import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.fetch.v13.response import FetchResponse

from proxy.acl.authorizer import Authorizer
from proxy.acl.index import AclIndex
from proxy.acl.model import AuthorizerMode, Operation, ResourceType
from proxy.acl.topic_ids import KnownTopics
from proxy.connection.authorization import MAX_NAME_BYTES, MAX_TOPICS, RequestAuthorization
from proxy.connection.connection import Connection
from proxy.connection.enforcement import Override
from proxy.connection.interfaces import AuthorizedConnection
from proxy.wire.apis import FETCH, METADATA, PRODUCE
from proxy.wire.error_codes import ErrorCode
from sasl.identity import Identity
from sasl.jwks import KeyCache
from sasl.messages import client_initial_response
from sasl.states import Authenticated, Enforcement
from tests.support import messages
from tests.support.acl_index import ADDRESS, ALICE, PREFIXED, WRITE, acl
from tests.support.authorization import (
    LITTLE,
    NOTHING,
    READ_ID,
    Guarded,
    Judge,
    Right,
    Rights,
    describe,
    described,
    fetch,
    fetched,
    group,
    produce,
    produced_topics,
    topic,
)
from tests.support.frames import authenticate, handshake, request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.playbook import OAUTHBEARER, Playbook, everything, logged_in
from tests.support.sasl import cache_of, claims, document, ed_key, rsa_key, token

HIDDEN_ID = uuid.UUID(int=8)


class TestProduce:
    @pytest.mark.parametrize("version", [3, 5, 8, 9])
    def test_a_longer_or_shorter_name_is_another_topic(self, version: int) -> None:
        """A remembered permission for `mine` must not let `mine2` or `min` pass."""
        guarded = Guarded(topic(Operation.WRITE, "mine"))
        guarded.play.client(produce(1, "mine", version=version))
        before = bytes(guarded.play.to_broker)
        for number, name in enumerate(("mine2", "min", "mind"), 2):
            guarded.play.client(produce(number, name, version=version))
        assert bytes(guarded.play.to_broker) == before

    def test_of_several_topics_the_allowed_part_is_written(self) -> None:
        guarded = Guarded(topic(Operation.WRITE, "a", "c"))
        guarded.play.client(produce(1, "a", "b", "c"))
        assert produced_topics(bytes(guarded.play.to_broker)) == ["a", "c"]
        guarded.play.broker(response(1, b"\0" + encode(_written("a", "c"))))
        answer = decode(response_type(PRODUCE, 9), guarded.play.received[-1], 5)
        assert [
            (one.name, one.partition_responses[0].error_code.name) for one in answer.responses
        ] == [("a", "none"), ("c", "none"), ("b", "topic_authorization_failed")]
        assert guarded.rights.denials == [(Operation.WRITE, ResourceType.TOPIC, "b")]

    @pytest.mark.parametrize(
        ("topics", "end"), [("ab", "close after the broker has"), ("b", "close")]
    )
    def test_without_acks_what_is_denied_closes(self, topics: str, end: str) -> None:
        """After the allowed part was written."""
        guarded = Guarded(topic(Operation.WRITE, "a"))
        guarded.play.client(produce(1, *topics, acks=0))
        assert (b"\x02a" in guarded.play.to_broker) is ("a" in topics)
        assert b"\x02b" not in guarded.play.to_broker
        assert guarded.play.take()[-2:] == ["closed denied", end]

    @pytest.mark.parametrize(
        ("frame", "line"),
        [
            (lambda number: produce(number, "other"), "Produce v9"),
            (lambda number: describe(number, "other"), "DescribeGroups v5"),
            (lambda number: fetch(number, READ_ID, epoch=-1), "Fetch v13"),
        ],
    )
    def test_an_auditing_authority_is_asked_each_time(
        self, frame: Callable[[int], bytes], line: str
    ) -> None:
        guarded = Guarded(known={READ_ID.bytes: "read"})
        guarded.rights = Auditing()
        guarded.play.connection.authorization.rights_changed(guarded.rights)  # type: ignore[union-attr]
        for number in range(1, 4):
            guarded.play.client(frame(number))
        assert len(guarded.rights.denials) == 3
        assert guarded.play.take().count(f"to broker: {line} #3") == 1

    def test_a_name_in_one_version_is_no_id_in_another(self) -> None:
        """16 bytes at the same place mean a name in v12 and an id in v13."""
        name = "a" * 15
        disguised = uuid.UUID(bytes=bytes([16]) + name.encode())
        guarded = Guarded(topic(Operation.WRITE, name), known={disguised.bytes: "hidden"})
        guarded.play.client(produce(1, name, version=12))
        before = bytes(guarded.play.to_broker)
        entry = {"topic_id": disguised, "partition_data": [{"index": 0, "records": b"r"}]}
        body = messages.request_body(
            PRODUCE, 13, transactional_id=None, acks=-1, topic_data=[entry]
        )
        guarded.play.client(request(PRODUCE, 13, 2, body))
        assert bytes(guarded.play.to_broker) == before

    @pytest.mark.parametrize("piece", [1, 7, 40])
    def test_in_pieces_it_is_judged_the_same(self, piece: int) -> None:
        guarded = Guarded(topic(Operation.WRITE, "a"))
        frames = produce(1, "a") + produce(2, "a", "b") + produce(3, "a")
        for at in range(0, len(frames), piece):
            guarded.play.client(frames[at : at + piece])
        whole = Guarded(topic(Operation.WRITE, "a"))
        whole.play.client(frames)
        assert guarded.play.to_broker == whole.play.to_broker
        assert b"\x02b\x02" not in guarded.play.to_broker

    def test_a_body_that_does_not_parse_closes(self) -> None:
        guarded = Guarded(topic(Operation.WRITE, "a"))
        guarded.play.client(request(0, 9, 2, b"\x00\xff\xff\0\0\0\0\x03\x02a"))
        assert guarded.play.take()[-1] == "close"


class Auditing(Rights):
    """Lets everything through."""

    def __init__(self) -> None:
        super().__init__(frozenset(), auditing=True)

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        super().may(operation, resource_type, name, report=report)
        return True


def _written(*topics: str) -> Any:
    partitions = [{"index": 0, "base_offset": 5}]
    entries = [{"name": name, "partition_responses": partitions} for name in topics]
    return messages.response(PRODUCE, 9, responses=entries)


KNOWN = {READ_ID.bytes: "read", HIDDEN_ID.bytes: "hidden"}


class TestFetch:
    def test_a_denied_topic_is_cut_out_and_no_session_made(self) -> None:
        guarded = Guarded(topic(Operation.READ, "read"), known=dict(KNOWN))
        guarded.play.client(fetch(1, READ_ID, HIDDEN_ID))
        sent = decode(request_type(1, 13), bytes(guarded.play.to_broker)[4 + 8 + 2 + 3 + 1 :])
        assert [one.topic_id for one in sent.topics] == [READ_ID]
        assert sent.session_epoch == -1
        guarded.play.broker(fetched(1, session=0))
        answer = decode(FetchResponse, guarded.play.received[-1], 5)
        (entry,) = answer.responses
        assert entry.topic_id == HIDDEN_ID
        assert entry.partitions[0].error_code.name == "topic_authorization_failed"

    def test_names_are_looked_up_on_the_way(self) -> None:
        guarded = Guarded(topic(Operation.READ, "read"))
        guarded.play.client(fetch(1, READ_ID, HIDDEN_ID), fetch(2, READ_ID))
        assert guarded.play.take() == ["connect", "to broker: Metadata v12 #0"]
        found = messages.response(METADATA, 12, topics=[{"name": "read", "topic_id": READ_ID}])
        guarded.play.broker(response(0, b"\0" + encode(found)))
        assert guarded.play.take() == ["to broker: Fetch v13 #1", "to broker: Fetch v13 #2"]
        guarded.play.broker(fetched(1, session=0), fetched(2, session=5))
        assert len(guarded.play.received) == 4, "two of the login, and none for the lookup"
        answer = decode(FetchResponse, guarded.play.received[-2], 5)
        assert answer.responses[0].partitions[0].error_code.name == "unknown_topic_id"

    def test_a_replica_needs_cluster_action_wherever_it_says_so(self) -> None:
        """Tag 1 of v15 and later; a claimed size that hides it must not help."""
        known = {messages.topic_id("read").bytes: "read"}
        guarded = Guarded(topic(Operation.READ, "read"), known=known)
        replica = {"replica_id": 3, "replica_epoch": 1}
        whole = messages.fetch_body(15, [("read", [0])], session_id=0, replica_state=replica)
        at = whole.rindex(b"\x01\x0d")
        hidden = whole[:at] + b"\x01\x0c" + whole[at + 2 : -1] + b"\0"
        for body in (whole, hidden):
            guarded.play.client(request(FETCH, 15, 1, body))
            assert not guarded.play.to_broker


def test_an_api_without_a_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.connection.authorization.GUARDS", {})
    guarded = Guarded(topic(Operation.DESCRIBE, "*"))
    guarded.play.client(describe(1, "mine"))
    assert not guarded.play.to_broker
    assert guarded.play.take()[-2:] == ["closed unsupported_api", "close"]


# A request for all topics by a client that may see some: the proxy asks for their names first

API = 75
VISIBLE = topic(Operation.DESCRIBE, "a", "c")
TOPICS = ("c", "secret", "a", "b")
LISTED = "to broker: Metadata v12 #0"


def asking(correlation_id: int) -> bytes:
    body = messages.request_body(API, 0, response_partition_limit=10)
    return request(API, 0, correlation_id, body)


def metadata(*names: str) -> bytes:
    body = messages.response(METADATA, 12, topics=[{"name": name} for name in names])
    return response(0, b"\0" + encode(body))


def paged(correlation_id: int, *names: str) -> bytes:
    body = messages.response(API, 0, topics=[{"name": name} for name in names])
    return response(correlation_id, b"\0" + encode(body))


def asked(frame: bytes) -> Any:
    """Return the proxy's question to the broker, in a frame of the client `app`."""
    return decode(request_type(API, 0), frame[4 + 8 + 2 + len("app") + 1 :])


def reported(guarded: Guarded) -> list[str]:
    """The topics of the answer that the client got last."""
    answer = decode(response_type(API, 0), guarded.play.received[-1], 5)
    return [one.name for one in answer.topics]


def test_the_broker_is_asked_for_all_names_then_for_what_may_be_described() -> None:
    guarded = Guarded(VISIBLE)
    frames = asking(1), asking(2)
    guarded.play.client(*frames)
    assert guarded.play.take() == ["connect", LISTED]
    assert guarded.play.paused == {"client"}
    before = len(guarded.play.to_broker)
    assert not asked(frames[0]).topics
    guarded.play.broker(metadata(*TOPICS))
    sent = bytes(guarded.play.to_broker[before:])
    size = 4 + int.from_bytes(sent[:4])
    assert [one.name for one in asked(sent[:size]).topics] == ["a", "c"]
    guarded.play.broker(paged(1, "a", "c"))
    assert reported(guarded) == ["a", "c"]


def test_names_are_asked_for_each_time() -> None:
    """An earlier list of topics is not reused."""
    guarded = Guarded(VISIBLE)
    guarded.play.client(asking(1), asking(2))
    guarded.play.broker(metadata("secret"))
    assert reported(guarded) == [], "answered without the broker"
    assert guarded.play.to_broker.count(b"reauth-proxy") == 2
    guarded.play.broker(metadata("secret", "c"))
    guarded.play.broker(paged(2, "c"))
    assert reported(guarded) == ["c"]
    assert not guarded.play.paused


def test_names_are_read_and_judged_beside_other_connections() -> None:
    """However few they are: how many there are is nothing that the client should feel."""
    guarded = Guarded(VISIBLE)
    guarded.play.runs_long_tasks_at_once = False
    guarded.play.client(asking(1))
    guarded.play.take()
    guarded.play.broker(metadata(*TOPICS))
    guarded.play.run_long_tasks()
    guarded.play.run_long_tasks()
    assert guarded.play.take() == [
        "run long task",
        "run long task",
        "to broker: DescribeTopicPartitions v0 #1",
    ]
    assert not guarded.play.paused


def test_a_list_that_cannot_be_read_is_the_brokers_fault() -> None:
    guarded = Guarded(VISIBLE)
    guarded.play.client(asking(1))
    guarded.play.broker(response(0, metadata("a")[8:-3]))
    assert guarded.play.take()[-2:] == ["closed broker_fault", "close"]


# Remembered permissions of connections: shared where possible, and only after a decision


class Crowd:
    """Connections of one principal at one address, judged by ACLs that can be changed."""

    records_uses = False

    def __init__(self) -> None:
        rule = acl("mine", operation=WRITE, pattern_type=PREFIXED)
        index = AclIndex([rule], version=1)
        self.authorizer = Authorizer(index, mode=AuthorizerMode.ENFORCE, report=lambda _: None)
        self.plays: list[Playbook] = []
        self.topics: KnownTopics = {}

    def admit(self, connection: AuthorizedConnection, _identity: Identity) -> RequestAuthorization:
        return RequestAuthorization(
            self.authorizer.authority((ALICE,), ADDRESS), self.topics, forget=connection.forget
        )

    def is_super_user(self, _identity: Identity) -> bool:
        return False

    def passes_unjudged(
        self, _connection: AuthorizedConnection, _identity: Identity, _key: int
    ) -> None:
        """Nobody asks."""

    def join(self) -> Playbook:
        play = logged_in(Playbook(rights=self, offer=everything(rewritten=frozenset())))
        self.plays.append(play)
        return play

    def take_all_away(self) -> None:
        self.authorizer.index = AclIndex([], version=2)
        for play in self.plays:
            admission = play.connection.authorization
            assert admission is not None
            admission.rights_changed(self.authorizer.authority((ALICE,), ADDRESS))
            play.connection.forget()


def test_what_one_connection_found_out_the_others_know() -> None:
    """Or thousands of connections that use hundreds of topics remember each of them."""
    crowd = Crowd()
    first, second = crowd.join(), crowd.join()
    for number in range(100):
        first.client(produce(number, f"mine-{number}"))
    asked = crowd.authorizer.counts.cache_hits
    for number in range(100):
        second.client(produce(number, f"mine-{number}"))
    assert bytes(second.to_broker) == bytes(first.to_broker)
    assert crowd.authorizer.counts.cache_hits == asked


def test_what_was_found_out_is_forgotten_by_all_when_rights_change() -> None:
    crowd = Crowd()
    plays = [crowd.join(), crowd.join()]
    for play in plays:
        play.client(produce(1, "mine"))
    before = [bytes(play.to_broker) for play in plays]
    crowd.take_all_away()
    plays.append(crowd.join())
    for play in plays:
        play.client(produce(2, "mine"))
    assert [bytes(play.to_broker) for play in plays] == [*before, b""]


def test_how_much_is_remembered_is_bounded() -> None:
    crowd = Crowd()
    play = crowd.join()
    play.client(produce(1, "mine" + "x" * MAX_NAME_BYTES))
    remembered = crowd.authorizer.authority((ALICE,), ADDRESS).allowed_topics.written
    assert not remembered
    for number in range(MAX_TOPICS + 1):
        play.client(produce(number, f"mine-{number}"))
        play.broker(response(number, b"\0"))
    assert len(remembered) == 1


def test_a_connection_that_has_asked_nothing_costs_little() -> None:
    """Most of thousands are idle, or use what others of their principal use."""
    crowd = Crowd()
    connection = crowd.join().connection
    tracemalloc.start()
    try:
        kept = [crowd.admit(connection, Identity(ALICE)) for _ in range(1_000)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(kept) < 450, "bytes"


# What follows from an identity follows again at a re-authentication: an attack for each value.
#
# The client keeps its principal, and comes back with a token that has other groups


OF_GROUP: dict[str, frozenset[Right]] = {
    "Group:writers": topic(Operation.WRITE, "orders"),
    "Group:readers": topic(Operation.READ, "read"),
    "Group:admins": group(Operation.DESCRIBE, "*"),
}


class ByGroup(Judge):
    """Rights as the groups of an identity have them; members of `Group:super` may do everything."""

    def admit(  # type: ignore[override]  # like the real one
        self, connection: AuthorizedConnection, identity: Identity
    ) -> RequestAuthorization | None:
        if self.is_super_user(identity):
            return None
        rights = Rights(NOTHING.union(*(OF_GROUP.get(one, NOTHING) for one in identity.groups)))
        before = connection.authorization
        if before is None:
            return RequestAuthorization(rights, self.topics, forget=connection.forget)
        before.rights_changed(rights)
        return before

    def is_super_user(self, identity: Identity) -> bool:
        return "Group:super" in identity.groups


def member(*groups: str, keys: KeyCache | None = None, **options: Any) -> Playbook:
    """A logged-in client with these groups."""
    offer, rights = everything(rewritten=frozenset()), ByGroup(known={READ_ID.bytes: "read"})
    play = Playbook(rights=rights, offer=offer, keys=keys, **options)
    play.client(login(*groups, first_id=1))
    play.take()
    return play


def with_groups(*groups: str) -> bytes:
    return client_initial_response(token(claims(groups=list(groups)), ed_key()))


def login(*groups: str, first_id: int = 10) -> bytes:
    """Both requests of an authentication with these groups."""
    return handshake(first_id, OAUTHBEARER) + authenticate(first_id + 1, with_groups(*groups))


def test_a_remembered_request_is_judged_again_even_in_the_same_read() -> None:
    play = member("writers")
    play.client(produce(3, "orders"), produce(4, "orders"))
    assert play.owed == [3, 4]
    play.client(login(), produce(3, "orders"))
    assert play.owed == [3, 4], "it was answered, not forwarded"
    play.client(login("writers", first_id=20))
    play.now += 2
    play.client(login("writers", first_id=30), produce(5, "orders"))
    assert play.owed == [3, 4, 5]


def test_a_super_user_by_group_is_one_only_as_long_as_the_group_is_in_the_token() -> None:
    play = member("super")
    play.client(produce(3, "orders"), login(), produce(4, "orders"))
    assert play.owed == [3]


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_open_fetch_session_ends(in_flight: bool) -> None:
    """Also if its first response is under way during the re-authentication."""
    play = member("readers")
    play.client(fetch(3, READ_ID))
    if in_flight:
        play.client(login())
        play.broker(fetched(3, session=77))
    else:
        play.broker(fetched(3, session=77))
        play.client(login())
    play.client(fetch(4, session=77, epoch=1))
    assert play.owed == []
    assert play.received[-1][5 + 4 : 5 + 6] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND.to_bytes(2)


def test_requests_behind_a_login_that_waits_for_keys_are_judged_by_its_groups() -> None:
    keys = cache_of(ed_key())
    play = member("writers", keys=keys)
    unknown = with_groups()
    keys.loaded(document(rsa_key().jwk()), play.now)
    play.now += 100
    play.client(handshake(10, OAUTHBEARER), authenticate(11, unknown), produce(3, "orders"))
    assert "seek keys" in play.take()
    keys.loaded(document(ed_key().jwk()), play.now)
    play.call(Connection.resume_login)
    assert play.session.identity.groups == ()
    assert play.owed == []


@pytest.mark.parametrize("gains", [False, True])
def test_a_request_that_is_being_judged_while_rights_change_is_judged_again(gains: bool) -> None:
    """A re-authentication waits for it; a changed file of groups, or changed ACLs, do not."""
    with_right, without = Identity("User:alice", ["Group:admins"]), Identity("User:alice")
    play = member(*(() if gains else ("admins",)))
    play.runs_long_tasks_at_once = False
    play.client(describe(3, more=LITTLE))
    after = with_right if gains else without
    play.call(lambda connection, now: connection.regroup(now, after))
    while play.long_tasks:
        play.run_long_tasks()
    assert play.owed == ([3] if gains else [])
    if gains:
        play.broker(described(3))


def test_quotas_are_those_of_the_groups() -> None:
    asked: list[tuple[str, ...]] = []

    class Recording:
        clock = staticmethod(lambda: 0)

        def throttle(self, identity: Identity, *_: object) -> None:
            asked.append(identity.groups)

    member("a", quotas=Recording()).client(login("b"))
    assert (asked[0], asked[-1]) == (("Group:a",), ("Group:b",))


def test_overrides_are_those_of_the_groups() -> None:
    strict = Override(
        principal="Group:strict", prefixed=False, enforcement=Enforcement.ENFORCE, max_reauth_ms=5
    )
    play = member(enforcement=Enforcement.PROBE, overrides=(strict,))
    play.client(login("strict"))
    assert play.session.session_lifetime_ms == 5
    play.now += 2
    play.client(login(first_id=20))
    assert play.session.enforcement is Enforcement.PROBE


@pytest.mark.parametrize("after", [None, "mallory", "alice"])
def test_the_login_at_brokers_is_the_one_that_the_rules_give_now(after: str | None) -> None:
    """A reload may have denied it; brokers without lifetimes never ask for another."""
    names: list[str | None] = ["alice"]
    play = Playbook()

    def presents(session: Authenticated) -> str | None:
        assert session.principal == "User:alice"
        return names[0]

    object.__setattr__(play.rules, "presents", presents)
    logged_in(play)
    names[0] = after
    play.client(login())
    assert ("closed identity_refused" in play.take()) is (after != "alice")
