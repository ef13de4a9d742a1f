"""A worker's authorizer: what it applies, reports and records, what it does without its store, and
what a re-authentication with other groups changes."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.produce.v9.response import ProduceResponse
from kio.static.primitive import i32

from metrics import registry
from metrics.history import Timeline
from metrics.snapshot import Snapshot
from metrics.usage import UsageLog
from proxy.acl.authorizer import DenialNotice
from proxy.acl.decision import MAX_USES_OF_A_REQUEST
from proxy.acl.model import CLUSTER_NAME, Acl, AuthorizerMode, Operation, PatternType, ResourceType
from proxy.config import Authorizer, Quotas
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from proxy.connection.frames import route_key
from proxy.connection.interfaces import ConnectionRights, NoAuthorizer
from proxy.connection.usage import MAX_USES, Uses
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.store import open_store
from proxy.store.interface import StoreError
from proxy.wire import codec, messages
from proxy.wire.apis import CREATE_TOPICS, FETCH, METADATA, PRODUCE
from proxy.wire.error_codes import ErrorCode
from proxy.worker.acl_service import MAX_NAME_LOGGED, AclService
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from sasl.states import Authenticated
from tests.support.acl_index import ALICE, DENY, READ, WRITE, acl
from tests.support.authorization import describe, produce
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, response_type
from tests.support.kio_messages.entities import NOT_THROTTLED, make
from tests.support.messages import (
    TOPIC_ID,
    fetch_body,
    metadata_request,
    metadata_response,
    topic_id,
)
from tests.support.playbook import Playbook, everything, log_in, logged_in
from tests.support.quotas import answer
from tests.support.sasl import NOW

WALL = 1_800_000_000.0


@dataclass
class Told:
    """Events for the event log."""

    notices: list[DenialNotice] = field(default_factory=list)

    def denied(self, _connection: Connection, notice: DenialNotice, _now: float) -> None:
        self.notices.append(notice)


@dataclass
class Failing:
    """A store that can break."""

    inner: Any
    broken: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.broken:
            raise StoreError("state.db: is damaged")
        return getattr(self.inner, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Failing]:
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as opened:
        yield Failing(opened)


Recorded = dict[tuple[str | None, str | None], tuple[int, int]]
"""Number and size of the requests, by operation and resource."""


class Services:
    """An authorizer over a store, with a record of uses, and a connection."""

    def __init__(
        self,
        store: Failing,
        mode: AuthorizerMode = AuthorizerMode.ENFORCE,
        super_users: tuple[str, ...] = (),
        groups: tuple[str, ...] = (),
        *,
        brokers_make_topics: bool = True,
    ) -> None:
        self.store = store
        self.reported = Told()
        self.log = UsageLog("run-1", "proxy", 0, Timeline(wall=WALL, now=NOW))
        settings = Authorizer.model_validate(
            {
                "mode": mode,
                "super.users": super_users,
                "auto.create.topics.enable": brokers_make_topics,
            }
        )
        self.authorization = AclService(
            settings, cast(Any, store), observer=lambda _: self.reported, usage=self.log
        )
        offer = everything(rewritten=frozenset())
        self.play = logged_in(Playbook(rights=self.authorization, offer=offer), groups=groups)
        self.connection = self.play.connection

    def lines(self) -> list[dict[str, Any]]:
        self.connection.stages.flush_uses()
        return [json.loads(line) for line in self.log.lines(self.play.now)]

    def recorded(self) -> Recorded:
        return {
            (one.get("operation"), one.get("resource_name")): (
                one["requests"],
                one["request_bytes"],
            )
            for one in self.lines()
        }

    def may(self, operation: Operation, name: str) -> bool:
        admission = self.connection.authorization
        assert admission is not None
        admission._asks()
        return admission._authority.may(operation, ResourceType.TOPIC, name)


def test_a_change_in_the_store_is_taken_over(store: Failing) -> None:
    services = Services(store)
    assert not services.may(Operation.READ, "a")
    services.store.create_acls([acl("a", READ, principal="User:*")])
    services.authorization.read()
    assert services.authorization.take_over()
    assert services.may(Operation.READ, "a")
    services.authorization.read()
    assert not services.authorization.take_over(), "nothing is new"


def test_a_store_that_cannot_be_read_at_start_is_an_error() -> None:
    store = Failing(None, broken=True)
    settings = Authorizer.model_validate({"mode": "enforce"})
    with pytest.raises(StoreError):
        AclService(settings, cast(Any, store), observer=lambda _: Told())


def test_a_super_user_is_judged_by_nobody_until_it_is_none(store: Failing) -> None:
    services = Services(store)
    principal = services.connection.session.state.principal  # type: ignore[union-attr]
    services.authorization.replace_super_users([principal])
    services.connection.rights_changed(0.0)
    assert services.connection.authorization is None
    services.authorization.replace_super_users([])
    services.connection.rights_changed(0.0)
    assert services.connection.authorization is not None
    assert not services.may(Operation.READ, "a")


def test_a_denial_is_told_once_and_counted(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store)
    for _ in range(1_000):
        services.may(Operation.READ, "a")
    (notice,) = services.reported.notices
    assert (notice.denial.name, notice.denial.would_be, notice.count) == ("a", False, 1)
    assert len(caplog.records) == 1
    services.authorization.close()
    assert services.reported.notices[-1].count == 999
    snapshot = Snapshot(run="r", values={}, histograms={})
    services.authorization.collect(snapshot)
    decisions = snapshot.values[registry.AUTHORIZER_DECISIONS.name]
    assert decisions == {("READ", "denied"): 1_000}


def test_in_audit_what_cannot_be_judged_is_reported(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store, AuthorizerMode.AUDIT)
    connection = services.connection
    services.authorization.passes_unjudged(
        connection, Identity("User:alice"), route_key(PRODUCE, 2)
    )
    (notice,) = services.reported.notices
    assert (notice.denial.name, notice.denial.would_be) == ("Produce v2", True)
    (record,) = caplog.records
    expected = "would be denied Produce v2: ACLs cannot judge this old version"
    assert record.getMessage() == f"User:alice at {connection.peer_host} {expected}"
    snapshot = Snapshot(run="r", values={}, histograms={})
    services.authorization.collect(snapshot)
    decisions = snapshot.values[registry.AUTHORIZER_DECISIONS.name]
    assert decisions == {("UNKNOWN", "would_be_denied"): 1}


def test_without_audit_it_is_not(store: Failing) -> None:
    services = Services(store, AuthorizerMode.ENFORCE)
    key = route_key(PRODUCE, 2)
    services.authorization.passes_unjudged(services.connection, Identity("User:alice"), key)
    assert services.reported.notices == []


@pytest.mark.parametrize(("brokers_make_topics", "error"), [(True, 29), (False, 3)])
def test_a_topic_that_may_not_be_made_is_missing_as_before_brokers_of_that_setting(
    store: Failing, brokers_make_topics: bool, error: int
) -> None:
    """A client that may read it waits for it where nobody makes it by asking."""
    services = Services(store, brokers_make_topics=brokers_make_topics)
    services.store.create_acls([acl("a", READ, principal="User:*")])
    services.authorization.read()
    services.authorization.take_over()
    services.play.client(request(3, 12, 7, encode(metadata_request(12, "a"))))
    services.play.broker(response(7, b"\0" + encode(metadata_response(12, ("a", 3)))))
    (topic,) = decode(response_type(3, 12), services.play.received[-1], 5).topics
    assert topic.error_code == error


def test_names_that_clients_chose_do_no_harm_to_a_log(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store)
    services.may(Operation.READ, "x\n2026 ERROR forged\x1b[2J\u202e" + "y" * 30_000)
    (record,) = caplog.records
    assert record.getMessage().isascii()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 3 * MAX_NAME_LOGGED


def test_a_connection_that_is_gone_gets_no_event(store: Failing) -> None:
    services = Services(store)
    services.may(Operation.READ, "a")
    services.may(Operation.READ, "a")
    services.connection.finish(CloseReason.CLIENT_CLOSED, 0.0)
    services.authorization.close()
    assert len(services.reported.notices) == 1


# Uses that connections count


SESSION = 77


def fetch(number: int, *topics: str, epoch: int = 0) -> bytes:
    """A fetch in a session, which that of epoch 0 begins."""
    body = fetch_body(
        12,
        [(name, [0]) for name in topics],
        session_id=i32(SESSION if epoch else 0),
        session_epoch=i32(epoch),
    )
    return request(FETCH, 12, number, body)


def fetched(number: int) -> bytes:
    body = make(
        response_type(FETCH, 12),
        throttle_time=NOT_THROTTLED,
        error_code=ErrorCode.NONE,
        session_id=i32(SESSION),
        responses=(),
    )
    return response(number, b"\0" + encode(body))


def allow(store: Failing, operation: Operation, *names: str) -> None:
    for name in names:
        kind = ResourceType.GROUP if name.startswith("group") else ResourceType.TOPIC
        store.create_acls([acl(name, operation, resource_type=kind, principal="User:*")])


def size_of(*frames: bytes) -> tuple[int, int]:
    return len(frames), sum(map(len, frames))


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_produces_that_are_recognized_are_counted_exactly(
    store: Failing, mode: AuthorizerMode
) -> None:
    if mode is AuthorizerMode.ENFORCE:  # in audit mode, what no ACL allows is use as well
        allow(store, Operation.WRITE, "a", "b")
    worker = Services(store, mode)
    frames = [produce(number, "a" if number % 3 else "b") for number in range(1, 100)]
    worker.play.client(*frames[:50])
    for frame in frames[50:]:
        worker.play.client(frame)
    assert bytes(worker.play.to_broker) == b"".join(frames)
    assert worker.recorded() == {
        ("WRITE", "a"): size_of(*(one for n, one in enumerate(frames, 1) if n % 3)),
        ("WRITE", "b"): size_of(*(one for n, one in enumerate(frames, 1) if not n % 3)),
    }
    assert worker.recorded() == {}
    worker.play.client(frames[0])  # it is not recognized any more, and counted in a new tally
    assert worker.recorded() == {("WRITE", "a"): size_of(frames[0])}


def test_a_produce_of_several_topics_counts_for_each(store: Failing) -> None:
    allow(store, Operation.WRITE, "a", "b")
    worker = Services(store)
    frames = [produce(number, "a", "b") for number in range(1, 6)]
    worker.play.client(*frames)
    both = size_of(*frames)
    assert worker.recorded() == {("WRITE", "a"): both, ("WRITE", "b"): both}


def test_what_is_denied_is_no_use(store: Failing) -> None:
    allow(store, Operation.WRITE, "a")
    worker = Services(store)
    frame = produce(1, "a", "other")
    worker.play.client(frame, produce(2, "other"))
    assert worker.recorded() == {("WRITE", "a"): size_of(frame)}


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_a_fetch_in_a_session_uses_all_of_its_topics(store: Failing, mode: AuthorizerMode) -> None:
    """As in Kafka, which authorizes the topics of the session, named or not, for each request."""
    allow(store, Operation.READ, "a", "b", "c")
    worker = Services(store, mode)
    frames = [fetch(1, "a", "b")]
    worker.play.client(frames[0])
    worker.play.broker(fetched(1))
    frames += [fetch(2, "a", epoch=1), fetch(3, epoch=2), fetch(4, "a", epoch=3)]
    worker.play.client(*frames[1:])
    added = [fetch(5, "c", epoch=4), fetch(6, epoch=5)]
    worker.play.client(*added)
    assert bytes(worker.play.to_broker) == b"".join([*frames, *added])
    assert worker.recorded() == {
        ("READ", "a"): size_of(*frames, *added),
        ("READ", "b"): size_of(*frames, *added),
        ("READ", "c"): size_of(*added),
    }


def test_judged_requests_are_counted_and_those_that_are_recognized_later(store: Failing) -> None:
    allow(store, Operation.DESCRIBE, "a")
    worker = Services(store)
    body = encode(metadata_request(12, "a", allow_auto_topic_creation=False))
    frames = [request(METADATA, 12, number, body) for number in range(1, 5)]
    for frame in frames:
        worker.play.client(frame)
    assert worker.recorded() == {("DESCRIBE", "a"): size_of(*frames)}


def test_a_request_that_is_judged_in_steps_is_counted_once(store: Failing) -> None:
    names = [f"group-{number}" for number in range(2_000)]
    for name in names[:3]:
        allow(store, Operation.DESCRIBE, name)
    worker = Services(store)
    frame = describe(1, *names[:3])
    worker.play.client(frame)
    assert worker.recorded() == {("DESCRIBE", name): size_of(frame) for name in names[:3]}


def test_a_request_that_waits_for_the_names_of_topics_is_counted_once(store: Failing) -> None:
    """It is judged twice, and so is the check of its other topic."""
    allow(store, Operation.READ, "a")
    worker = Services(store)
    body = fetch_body(13, [("a", [0])], session_id=0, session_epoch=-1)
    body = body.replace(topic_id("a").bytes, TOPIC_ID.bytes)
    frames = [request(FETCH, 13, number, body) for number in (1, 2)]
    worker.play.client(*frames)
    worker.play.broker(response(0, b"\0" + encode(metadata_response(12, ("a", 0)))))
    assert worker.recorded() == {("READ", "a"): size_of(*frames)}


def create_topics(number: int, *names: str) -> bytes:
    topics = (messages.CreateTopicsRequest.CreatableTopic(name=name) for name in names)
    body = codec.encode(messages.CreateTopicsRequest(topics=tuple(topics)), 4)
    return request(CREATE_TOPICS, 4, number, body)


def created(number: int, **errors: int) -> bytes:
    result = messages.CreateTopicsResponse.CreatableTopicResult
    topics = (result(name=name, error_code=code) for name, code in errors.items())
    body = codec.encode(messages.CreateTopicsResponse(topics=tuple(topics)), 4)
    return response(number, body)


@pytest.mark.parametrize("super_users", [(), ("User:alice",)])
def test_administration_is_reported_with_the_outcome_at_the_broker(
    store: Failing, super_users: tuple[str, ...]
) -> None:
    allow(store, Operation.CREATE, "a", "b")
    play = Services(store, super_users=super_users).play

    def reported() -> list[str]:
        return [line for line in play.take() if line.startswith("administered")]

    play.client(create_topics(1, "a", "b"))
    assert reported() == []
    play.broker(created(1, a=0, b=36))
    assert reported() == ["administered CreateTopics: {'a': 0, 'b': 36}"]
    play.client(create_topics(2, "a"))
    play.connection.finish(CloseReason.CLIENT_CLOSED, play.now)
    assert reported() == ["administered CreateTopics: {None: None}"]


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
@pytest.mark.parametrize("kind", [ResourceType.CLUSTER, ResourceType.TOPIC])
def test_of_two_permissions_the_one_that_allows_a_request_is_used(
    store: Failing, mode: AuthorizerMode, kind: ResourceType
) -> None:
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "a"
    store.create_acls([acl(name, Operation.CREATE, resource_type=kind, principal="User:*")])
    worker = Services(store, mode)
    frame = create_topics(1, "a")
    worker.play.client(frame)
    assert bytes(worker.play.to_broker) == frame
    assert worker.recorded() == {("CREATE", name): size_of(frame)}


MANY = [f"t{number}" for number in range(MAX_USES_OF_A_REQUEST + 200)]


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_a_session_of_many_topics_takes_bounded_memory(
    store: Failing, mode: AuthorizerMode
) -> None:
    store.create_acls([acl("t", pattern_type=PatternType.PREFIXED, principal="User:*")])
    worker = Services(store, mode)
    frames = [fetch(1, *MANY), fetch(2, epoch=1), fetch(3, "tt", epoch=2)]
    worker.play.client(frames[0])
    worker.play.broker(fetched(1))
    worker.play.client(*frames[1:])
    found = worker.recorded()
    assert found.pop((None, None)) == size_of(*frames)
    assert found == {("READ", name): size_of(*frames) for name in MANY[:MAX_USES_OF_A_REQUEST]}


def test_a_connection_that_closes_loses_nothing(store: Failing) -> None:
    allow(store, Operation.WRITE, "a")
    worker = Services(store)
    frames = [produce(number, "a") for number in range(1, 4)]
    worker.play.client(*frames)
    worker.play.connection.finish(CloseReason.CLIENT_CLOSED, worker.play.now)
    (line,) = (json.loads(line) for line in worker.log.lines(worker.play.now))
    assert line == {
        "schema_version": 1,
        "proxy_id": "proxy",
        "worker": 0,
        "connection_id": "run-1",
        "kind": "used",
        "timestamp_ms": round(WALL * 1000),
        "sequence": 0,
        "client_host": worker.play.connection.peer_host,
        "client_id": "app",
        "principal": "User:alice",
        "operation": "WRITE",
        "resource_type": "TOPIC",
        "resource_name": "a",
        "requests": 3,
        "request_bytes": sum(map(len, frames)),
        "period_start_ms": round(WALL * 1000),
        "last_request_ms": round(WALL * 1000),
    }


def test_a_client_of_ever_new_topics_takes_bounded_memory(store: Failing) -> None:
    worker = Services(store, AuthorizerMode.AUDIT)
    number = MAX_USES * 2
    for index in range(number):
        worker.play.client(produce(index, f"t{index}", acks=0))
    authorization = worker.play.connection.authorization
    assert authorization is not None
    uses = authorization.uses
    assert isinstance(uses, Uses)
    assert uses._held <= MAX_USES
    assert sum(one["requests"] for one in worker.lines()) == number


# Groups of tokens

ANALYSTS, INTERNS, ADMINS = "Group:analysts", "Group:interns", "Group:kafka-admins"


def joined(store: Failing, *groups: str, acls: tuple[Acl, ...] = ()) -> Playbook:
    """A client in these groups, judged by these ACLs."""
    store.create_acls(acls)
    return Services(store, AuthorizerMode.ENFORCE, (ADMINS,), groups).play


def renew(play: Playbook, *groups: str) -> None:
    """Re-authenticate with a newer token."""
    play.now += 2
    log_in(play, first_id=9_000, groups=groups)
    state = play.connection.session.state
    assert isinstance(state, Authenticated)
    assert state.identity.groups == tuple(f"Group:{name}" for name in groups)
    play.take()


def fetch_error(play: Playbook) -> ErrorCode:
    error: ErrorCode = decode(response_type(FETCH, 12), play.received[-1], 5).error_code
    return error


def produce_error(play: Playbook) -> ErrorCode:
    (topic,) = decode(ProduceResponse, play.received[-1], 5).responses
    error: ErrorCode = topic.partition_responses[0].error_code
    return error


MAY_WRITE = acl("mine", WRITE, principal=ANALYSTS)
MAY_READ = acl("mine", READ, principal=ANALYSTS)


@pytest.mark.parametrize(
    ("acls", "before", "after"),
    [
        ((MAY_WRITE,), ["analysts"], []),
        ((MAY_WRITE,), ["analysts"], ["interns"]),
        (
            (MAY_WRITE, acl("mine", WRITE, DENY, principal=INTERNS)),
            ["analysts"],
            ["analysts", "interns"],
        ),
        ((), ["kafka-admins"], []),
    ],
)
def test_the_next_produce_is_judged_by_the_new_groups(
    store: Failing, acls: tuple[Acl, ...], before: list[str], after: list[str]
) -> None:
    """Those before it have reached the broker, in their order."""
    play = joined(store, *before, acls=acls)
    frames = [produce(number, "mine", version=9) for number in range(1, 5)]
    play.client(*frames)
    assert bytes(play.to_broker) == b"".join(frames)
    renew(play, *after)
    play.client(produce(5, "mine", version=9))
    assert bytes(play.to_broker) == b"".join(frames)
    renew(play, *before)
    play.client(produce(6, "mine", version=9))
    assert bytes(play.to_broker) == b"".join([*frames, produce(6, "mine", version=9)])


def test_a_fetch_session_ends_with_the_group_that_could_read(store: Failing) -> None:
    play = joined(store, "analysts", acls=(MAY_READ,))
    for number, topics in ((0, ["mine"]), (1, [])):
        play.client(fetch(number, *topics, epoch=number))
        play.broker(fetched(number))
    renew(play)
    sent = len(play.to_broker)
    play.client(fetch(2, epoch=2))
    assert len(play.to_broker) == sent
    assert fetch_error(play) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_session_goes_on_with_the_same_groups(store: Failing) -> None:
    play = joined(store, "analysts", acls=(MAY_READ,))
    play.client(fetch(0, "mine"))
    play.broker(fetched(0))
    renew(play, "analysts")
    sent = len(play.to_broker)
    play.client(fetch(1, epoch=1))
    assert bytes(play.to_broker[sent:]) == fetch(1, epoch=1)


@pytest.mark.parametrize("authorizer", [True, False])
def test_groups_may_administer(store: Failing, authorizer: bool) -> None:
    """Also where there is no authorizer."""
    settings = Authorizer.model_validate({"mode": AuthorizerMode.AUDIT, "super.users": [ADMINS]})
    rights: ConnectionRights = NoAuthorizer([ADMINS])
    if authorizer:
        rights = AclService(settings, cast(Any, store), observer=lambda _: Told())
    assert rights.is_super_user(Identity(ALICE, [ANALYSTS, ADMINS]))
    assert not rights.is_super_user(Identity(ALICE, [ANALYSTS]))
    assert not rights.is_super_user(Identity("User:kafka-admins"))


def test_groups_that_a_file_takes_away_count_at_once(store: Failing) -> None:
    """Without a re-authentication: clients without tokens may not re-authenticate for long."""
    play = joined(store, "analysts", acls=(MAY_WRITE, MAY_READ))
    play.client(produce(1, "mine", version=9), fetch(0, "mine"))
    play.broker(response(1, b"\0"))
    play.broker(fetched(0))
    sent = len(play.to_broker)
    play.call(lambda connection, now: connection.regroup(now, Identity(ALICE, [INTERNS])))
    play.client(produce(2, "mine", version=9))
    assert produce_error(play) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    play.client(fetch(1, epoch=1))
    assert fetch_error(play) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(play.to_broker) == sent


def test_groups_are_handled_alike_for_acls_and_quotas(store: Failing) -> None:
    """As KIP-257 has it, "Proposed Changes": a group may write a topic, but only so much."""
    store.create_acls([MAY_WRITE])
    limits = {QuotaKey.PRODUCER_BYTE_RATE: 5.0}  # so little that one Produce is too much
    store.alter_quotas({QuotaEntity(user=ANALYSTS): limits})
    settings = Authorizer.model_validate({"mode": AuthorizerMode.ENFORCE})
    rights = AclService(settings, cast(Any, store), observer=lambda _: Told())
    callback = "proxy.quota.group_quotas:GroupQuotas"
    enforced = {"mode": "enforce", "client.quota.callback.class": callback}
    table = UsageTable(1, WindowConfig(), rows=64)
    quotas = QuotaService(
        Quotas.model_validate(enforced), cast(Any, store), table, 0, clock=lambda: 0
    )

    def client(sub: str, group: str) -> Playbook:
        offer = everything(rewritten=frozenset(), metered=True)
        play = Playbook(rights=rights, quotas=quotas, offer=offer)
        play.now = float(int(play.now))
        return logged_in(play, sub=sub, groups=(group,))

    alice, carol = client("alice", "analysts"), client("carol", "interns")
    carol.client(produce(3, "mine", version=9))
    assert produce_error(carol) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert carol.paused == set(), "a client outside the group has no limit"
    alice.client(produce(3, "mine", version=9))
    assert alice.to_broker
    assert alice.paused == {"client"}, "over the quota"
    alice.broker(answer(PRODUCE, 9, 3))
    alice.wait_for(alice.wakes_at)
    sent = len(alice.to_broker)

    # A newer token takes the right and the quota away at once, and gives them back
    renew(alice)
    alice.client(produce(5, "mine", version=9))
    assert produce_error(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert alice.paused == set(), "the quota is the group's"
    renew(alice, "analysts")
    alice.client(produce(7, "mine", version=9))
    assert len(alice.to_broker) == sent
    assert alice.paused == {"client"}, "the group still owes"
    alice.wait_for(alice.wakes_at)
    assert len(alice.to_broker) > sent
    quotas.close()
