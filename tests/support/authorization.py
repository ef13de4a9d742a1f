"""Authorization of requests: rights, connections with an authorizer, long requests."""

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from sys import maxsize
from typing import Any, cast

import pytest

from proxy.acl.decision import (
    FORWARD,
    AllowedTopics,
    Answer,
    Change,
    Guard,
    Inquiry,
    Judgement,
    TopicsUnknown,
    Used,
)
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.acl.topic_ids import KnownTopics
from proxy.connection.authorization import RequestAuthorization
from proxy.connection.interfaces import AuthorizedConnection
from proxy.connection.long_work import MAX_AT_ONCE, SteppedAuthority, found
from proxy.scheduling.memory_budget import LONG_BYTES, MemoryBudget
from proxy.scheduling.steps import in_steps
from proxy.wire.apis import FETCH, PRODUCE
from sasl.identity import Identity
from tests.support import messages
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.messages import produce_body, request_body
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.processes import finish

# Rights, requests and judgements for tests of guards

Right = tuple[Operation, ResourceType, str]
"""`*` as the name is every name, `a*` every name that begins so. Nothing is implied: what counts is
what is listed."""


def topic(operation: Operation, *names: str) -> frozenset[Right]:
    return frozenset((operation, ResourceType.TOPIC, name) for name in names)


def group(operation: Operation, *names: str) -> frozenset[Right]:
    return frozenset((operation, ResourceType.GROUP, name) for name in names)


def transactional_id(operation: Operation, *names: str) -> frozenset[Right]:
    return frozenset((operation, ResourceType.TRANSACTIONAL_ID, name) for name in names)


def cluster(*operations: Operation) -> frozenset[Right]:
    return frozenset((operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations)


NOTHING: frozenset[Right] = frozenset()
EVERYTHING: frozenset[Right] = frozenset(
    (operation, resource_type, "*") for operation in Operation for resource_type in ResourceType
)


@dataclass(slots=True)
class Rights:
    """Allows exactly the listed rights and records reported denials."""

    allowed: frozenset[Right]
    denials: list[Right] = field(default_factory=list, compare=False)
    auditing: bool = False
    used: dict[Used, None] | None = None

    @property
    def allowed_topics(self) -> AllowedTopics:
        return AllowedTopics()

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        return self._judge(operation, resource_type, name, report)

    def permits(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self.may(operation, resource_type, name, report=False)

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        return self._judge(operation, resource_type, f"{name_prefix}*", report)

    def _judge(
        self, operation: Operation, resource_type: ResourceType, name: str, report: bool
    ) -> bool:
        right = (operation, resource_type, name)
        allowed = right in self.allowed or any(
            (operation, resource_type, f"{name[:length]}*") in self.allowed
            for length in range(len(name) + 1)
        )
        if report and not allowed:
            self.denials.append(right)
        return allowed

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        return [self.may(operation, resource_type, name, report=False) for name in names]

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        return [self.operations(resource_type, name) for name in names]

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        del key, content
        return cut()

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        return any(right[:2] == (operation, resource_type) for right in self.allowed)

    def may_administer(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return sum(
            1 << operation
            for operation in Operation
            if operation > Operation.ALL and self.may(operation, resource_type, name, report=False)
        )


@dataclass(frozen=True, slots=True)
class Topics(Mapping[bytes, str | None]):
    """Topic names by id; ids that are not listed are unknown so far."""

    known: Mapping[bytes, str | None] = field(default_factory=dict)

    def __getitem__(self, topic_id: bytes) -> str | None:
        try:
            return self.known[topic_id]
        except KeyError:
            raise TopicsUnknown(frozenset([topic_id])) from None

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


def inquiry(
    request: Any,
    allowed: Iterable[Right] = NOTHING,
    topics: Mapping[bytes, str | None] | None = None,
    listed: Sequence[str] | None = None,
) -> Inquiry:
    """A request (of kio) by a client with the `allowed` rights."""
    return Inquiry(
        api_version=request.__version__,
        body=encode(request),
        authority=Rights(frozenset(allowed)),
        topics=Topics(topics or {}),
        listed=listed,
    )


def judged(
    guard: Guard,
    request: Any,
    allowed: Iterable[Right] = NOTHING,
    topics: Mapping[bytes, str | None] | None = None,
    listed: Sequence[str] | None = None,
) -> Judgement:
    """Judge a request at once and in the shortest steps; both results must be equal."""
    asked = inquiry(request, allowed, topics, listed)
    in_pieces = finish(in_steps(lambda: _in_steps(guard, asked), max_values=10_000, seconds=0))
    try:
        at_once: Judgement | TopicsUnknown = guard(inquiry(request, allowed, topics, listed))
    except TopicsUnknown as unknown:
        if getattr(in_pieces, "ids", None) == unknown.ids:
            raise
        pytest.fail(f"in steps it was {in_pieces}")
    assert type(in_pieces) is type(at_once)
    if isinstance(at_once, Change):
        assert isinstance(in_pieces, Change)
        for name in ("request", "api_version", "close"):
            assert getattr(in_pieces, name) == getattr(at_once, name)
    else:
        assert in_pieces == at_once
    assert not isinstance(at_once, TopicsUnknown)
    return at_once


def _in_steps(guard: Guard, asked: Inquiry) -> Any:
    authority = SteppedAuthority(cast(Any, asked.authority), lambda: None)
    return found(guard, replace(asked, authority=authority))


def sent(judgement: Judgement, request: Any) -> Any:
    """The decoded request to the broker; None if it is not forwarded."""
    if judgement is FORWARD:
        return request
    if isinstance(judgement, Change):
        return request if judgement.request is None else decode(type(request), judgement.request)
    return None


def received(judgement: Judgement, request: Any, response: Any = None) -> Any:
    """The decoded response to the client; `response` is the broker's if it is asked."""
    schema = response_type(request.__api_key__, request.__version__)
    if isinstance(judgement, Answer):
        return decode(schema, judgement.body)
    assert isinstance(judgement, Change) or judgement is FORWARD, judgement
    if isinstance(judgement, Change) and judgement.response is not None:
        body = encode(response)
        changed = judgement.response(body)
        in_pieces = in_steps(partial(judgement.response, body), max_values=maxsize, seconds=0)
        assert finish(in_pieces) == changed
        return decode(schema, changed)
    return response


# A connection with an authorizer


class Judge:
    """An authorizer that gives all clients the same rights."""

    records_uses = False

    def __init__(self, *allowed: Any, known: KnownTopics | None = None) -> None:
        self.rights = Rights(frozenset().union(*allowed))
        self.topics: KnownTopics = {} if known is None else known
        self.unjudged: list[tuple[str, int]] = []
        """Principals and route keys of requests that passed unjudged."""

    def admit(self, connection: AuthorizedConnection, _identity: Identity) -> RequestAuthorization:
        return RequestAuthorization(self.rights, self.topics, forget=connection.forget)

    def is_super_user(self, _identity: Identity) -> bool:
        return False

    def passes_unjudged(
        self, _connection: AuthorizedConnection, identity: Identity, key: int
    ) -> None:
        self.unjudged.append((identity.principal, key))


class Guarded(Judge):
    """A logged-in connection and its rights."""

    def __init__(
        self, *allowed: Any, known: KnownTopics | None = None, memory: MemoryBudget | None = None
    ) -> None:
        super().__init__(*allowed, known=known)
        offer = everything(rewritten=frozenset())
        self.play = logged_in(Playbook(rights=self, offer=offer, memory=memory))

    def change(self, *allowed: Any) -> None:
        """Replace the rights."""
        self.rights = Rights(frozenset().union(*allowed))
        admission = self.play.connection.authorization
        assert admission is not None
        admission.rights_changed(self.rights)
        self.play.connection.forget()


# Long requests and responses

DESCRIBE_GROUPS = 15
PADDING = 200
"""Length of each group's name."""
LITTLE, MUCH = MAX_AT_ONCE // PADDING + 1, LONG_BYTES // PADDING + 1
"""Numbers of groups in a long request, and in one that needs the memory budget."""


def describe(correlation_id: int, *names: str, more: int = 0, hidden: bool = False) -> bytes:
    """Describe the named groups and `more` visible or hidden ones."""
    prefix = "h" if hidden else "v"
    groups = [*names, *(f"{prefix}{number}".ljust(PADDING, ".") for number in range(more))]
    return request(
        DESCRIBE_GROUPS, 5, correlation_id, request_body(DESCRIBE_GROUPS, 5, groups=groups)
    )


def described(correlation_id: int, *names: str) -> bytes:
    groups = [{"group_id": name, "group_state": "Stable"} for name in names]
    body = messages.response(DESCRIBE_GROUPS, 5, groups=groups)
    return response(correlation_id, b"\0" + encode(body))


class Describer(Guarded):
    """A client that may describe `mine` and the visible groups; long tasks run on demand."""

    def __init__(self, memory: MemoryBudget | None = None) -> None:
        names = [f"v{number}".ljust(PADDING, ".") for number in range(MUCH)]
        super().__init__(group(Operation.DESCRIBE, "mine", *names), memory=memory)
        self.play.client(describe(99, "mine"))
        self.play.broker(described(99, "mine"))
        self.play.take()
        self.play.to_broker.clear()
        self.play._seen_by_broker = 0
        self.play.received.clear()
        self.play.runs_long_tasks_at_once = False

    def groups(self, frame: int) -> list[tuple[str, str]]:
        """Names and errors in a response that the client received."""
        body = decode(response_type(DESCRIBE_GROUPS, 5), self.play.received[frame], 5)
        return [(one.group_id.strip("."), one.error_code.name) for one in body.groups]


def produce(correlation_id: int, *topics: str, version: int = 9, acks: int = -1) -> bytes:
    body = produce_body(version, [(name, [0]) for name in topics], acks=acks)
    return request(PRODUCE, version, correlation_id, body)


def produced_topics(frame: bytes) -> list[str]:
    """The topics of a Produce v9."""
    body = decode(request_type(PRODUCE, 9), frame[4 + 8 + 2 + 3 + 1 :])
    return [one.name for one in body.topic_data]


READ_ID = uuid.UUID(int=7)
"""Id of the topic of tests with fetch sessions."""


def fetch(correlation_id: int, *ids: uuid.UUID, session: int = 0, epoch: int = 0) -> bytes:
    partitions = [{"partition": 0, "partition_max_bytes": 99}]
    body = request_body(
        FETCH,
        13,
        replica_id=-1,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=[{"topic_id": one, "partitions": partitions} for one in ids],
    )
    return request(FETCH, 13, correlation_id, body)


def fetched(correlation_id: int, session: int) -> bytes:
    body = messages.response(FETCH, 13, session_id=session)
    return response(correlation_id, b"\0" + encode(body))
