"""Uses that connections count, with the real authorizer."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from metrics.history import Timeline
from metrics.usage import UsageLog
from proxy.acl.decision import MAX_USES_OF_A_REQUEST
from proxy.acl.model import (
    CLUSTER_NAME,
    Acl,
    AuthorizerMode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.config import Authorizer
from proxy.connection.commands import CloseReason
from proxy.connection.usage import MAX_USES, Uses
from proxy.store import Store, open_store
from proxy.wire import codec, messages
from proxy.wire.apis import CREATE_TOPICS, FETCH, METADATA
from proxy.worker.acl_service import AclService
from tests.support.authorization import describe, produce
from tests.support.frames import request, response
from tests.support.kio_messages import encode, response_type
from tests.support.messages import (
    TOPIC_ID,
    fetch_body,
    metadata_request,
    metadata_response,
    topic_id,
)
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.sasl import NOW

WALL = 1_800_000_000.0


Recorded = dict[tuple[str | None, str | None], tuple[int, int]]
"""Number and size of the requests, by operation and resource."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as opened:
        yield opened


class Worker:
    """An authorizer with a record of uses, and a connection."""

    def __init__(
        self,
        store: Store,
        mode: AuthorizerMode = AuthorizerMode.ENFORCE,
        super_users: tuple[str, ...] = (),
    ) -> None:
        self.log = UsageLog("run-1", "proxy", 0, Timeline(wall=WALL, now=NOW))
        settings = Authorizer.model_validate({"mode": mode, "super.users": super_users})
        rights = AclService(settings, store, observer=cast(Any, None), usage=self.log)
        rights._log = lambda *_: None  # type: ignore[method-assign]
        self.play = logged_in(Playbook(rights=rights, offer=everything(rewritten=frozenset())))

    def lines(self) -> list[dict[str, Any]]:
        self.play.connection.stages.flush_uses()
        return [json.loads(line) for line in self.log.lines(self.play.now)]

    def recorded(self) -> Recorded:
        return {
            (one.get("operation"), one.get("resource_name")): (
                one["requests"],
                one["request_bytes"],
            )
            for one in self.lines()
        }


def allow(store: Store, operation: Operation, *names: str) -> None:
    for name in names:
        kind = ResourceType.GROUP if name.startswith("group") else ResourceType.TOPIC
        one = Acl(kind, PatternType.LITERAL, name, "User:*", "*", operation, Permission.ALLOW)
        store.create_acls([one])


def size_of(*frames: bytes) -> tuple[int, int]:
    return len(frames), sum(map(len, frames))


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_produces_that_are_recognized_are_counted_exactly(
    store: Store, mode: AuthorizerMode
) -> None:
    if mode is AuthorizerMode.ENFORCE:  # in audit mode, what no ACL allows is use as well
        allow(store, Operation.WRITE, "a", "b")
    worker = Worker(store, mode)
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


def test_a_produce_of_several_topics_counts_for_each(store: Store) -> None:
    allow(store, Operation.WRITE, "a", "b")
    worker = Worker(store)
    frames = [produce(number, "a", "b") for number in range(1, 6)]
    worker.play.client(*frames)
    both = size_of(*frames)
    assert worker.recorded() == {("WRITE", "a"): both, ("WRITE", "b"): both}


def test_what_is_denied_is_no_use(store: Store) -> None:
    allow(store, Operation.WRITE, "a")
    worker = Worker(store)
    frame = produce(1, "a", "other")
    worker.play.client(frame, produce(2, "other"))
    assert worker.recorded() == {("WRITE", "a"): size_of(frame)}


def fetch(number: int, *topics: str, session: int = 0, epoch: int = 0) -> bytes:
    body = fetch_body(12, [(name, [0]) for name in topics], session_id=session, session_epoch=epoch)
    return request(FETCH, 12, number, body)


def fetched(number: int, session: int) -> bytes:
    body = response_type(FETCH, 12)
    return response(number, b"\0" + encode(_filled(body, session)))


def _filled(kind: Any, session: int) -> Any:
    from kio.schema.errors import ErrorCode
    from kio.static.primitive import i32

    from tests.support.kio_messages.entities import NOT_THROTTLED

    return kind(
        throttle_time=NOT_THROTTLED,
        error_code=ErrorCode.none,
        session_id=i32(session),
        responses=(),
    )


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_a_fetch_in_a_session_uses_all_of_its_topics(store: Store, mode: AuthorizerMode) -> None:
    """As in Kafka, which authorizes the topics of the session, named or not, for each request."""
    allow(store, Operation.READ, "a", "b", "c")
    worker = Worker(store, mode)
    frames = [fetch(1, "a", "b")]
    worker.play.client(frames[0])
    worker.play.broker(fetched(1, 77))
    frames += [
        fetch(2, "a", session=77, epoch=1),
        fetch(3, session=77, epoch=2),
        fetch(4, "a", session=77, epoch=3),
    ]
    worker.play.client(*frames[1:])
    added = [fetch(5, "c", session=77, epoch=4), fetch(6, session=77, epoch=5)]
    worker.play.client(*added)
    assert bytes(worker.play.to_broker) == b"".join([*frames, *added])
    assert worker.recorded() == {
        ("READ", "a"): size_of(*frames, *added),
        ("READ", "b"): size_of(*frames, *added),
        ("READ", "c"): size_of(*added),
    }


def test_judged_requests_are_counted_and_those_that_are_recognized_later(store: Store) -> None:
    allow(store, Operation.DESCRIBE, "a")
    worker = Worker(store)
    body = encode(metadata_request(12, "a", allow_auto_topic_creation=False))
    frames = [request(METADATA, 12, number, body) for number in range(1, 5)]
    for frame in frames:
        worker.play.client(frame)
    assert worker.recorded() == {("DESCRIBE", "a"): size_of(*frames)}


def test_a_request_that_is_judged_in_steps_is_counted_once(store: Store) -> None:
    names = [f"group-{number}" for number in range(2_000)]
    for name in names[:3]:
        allow(store, Operation.DESCRIBE, name)
    worker = Worker(store)
    frame = describe(1, *names[:3])
    worker.play.client(frame)
    assert worker.recorded() == {("DESCRIBE", name): size_of(frame) for name in names[:3]}


def test_a_request_that_waits_for_the_names_of_topics_is_counted_once(store: Store) -> None:
    """It is judged twice, and so is the check of its other topic."""
    allow(store, Operation.READ, "a")
    worker = Worker(store)
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
    store: Store, super_users: tuple[str, ...]
) -> None:
    allow(store, Operation.CREATE, "a", "b")
    play = Worker(store, super_users=super_users).play

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
    store: Store, mode: AuthorizerMode, kind: ResourceType
) -> None:
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "a"
    rule = PatternType.LITERAL, name, "User:*", "*", Operation.CREATE, Permission.ALLOW
    store.create_acls([Acl(kind, *rule)])
    worker = Worker(store, mode)
    frame = create_topics(1, "a")
    worker.play.client(frame)
    assert bytes(worker.play.to_broker) == frame
    assert worker.recorded() == {("CREATE", name): size_of(frame)}


MANY = [f"t{number}" for number in range(MAX_USES_OF_A_REQUEST + 200)]


def test_of_a_request_with_many_resources_the_rest_is_counted_together(store: Store) -> None:
    worker = Worker(store, AuthorizerMode.AUDIT)
    body = encode(metadata_request(12, *MANY, allow_auto_topic_creation=False))
    frame = request(METADATA, 12, 1, body)
    worker.play.client(frame)
    found = worker.recorded()
    assert found.pop((None, None)) == size_of(frame)
    assert found == {("DESCRIBE", name): size_of(frame) for name in MANY[:MAX_USES_OF_A_REQUEST]}


@pytest.mark.parametrize("mode", [AuthorizerMode.ENFORCE, AuthorizerMode.AUDIT])
def test_a_session_of_many_topics_takes_bounded_memory(store: Store, mode: AuthorizerMode) -> None:
    one = Acl(
        ResourceType.TOPIC,
        PatternType.PREFIXED,
        "t",
        "User:*",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    store.create_acls([one])
    worker = Worker(store, mode)
    frames = [fetch(1, *MANY), fetch(2, session=77, epoch=1), fetch(3, "tt", session=77, epoch=2)]
    worker.play.client(frames[0])
    worker.play.broker(fetched(1, 77))
    worker.play.client(*frames[1:])
    found = worker.recorded()
    assert found.pop((None, None)) == size_of(*frames)
    assert found == {("READ", name): size_of(*frames) for name in MANY[:MAX_USES_OF_A_REQUEST]}


def test_a_connection_that_closes_loses_nothing(store: Store) -> None:
    allow(store, Operation.WRITE, "a")
    worker = Worker(store)
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


def test_a_client_of_ever_new_topics_takes_bounded_memory(store: Store) -> None:
    worker = Worker(store, AuthorizerMode.AUDIT)
    number = MAX_USES * 2
    for index in range(number):
        worker.play.client(produce(index, f"t{index}", acks=0))
    authorization = worker.play.connection.authorization
    assert authorization is not None
    uses = authorization.uses
    assert isinstance(uses, Uses)
    assert uses._held <= MAX_USES
    assert sum(one["requests"] for one in worker.lines()) == number
