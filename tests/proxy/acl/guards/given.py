"""What the tests of guards are given: somebody's rights, a request, and what came of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from sys import maxsize
from typing import Any

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
)
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.connection.long_requests import PausingAuthority, found
from proxy.scheduling.stepped_thread import in_steps
from proxy.scheduling.steps import finish
from proxy.wire.codec import decode, encode, response_type

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


@dataclass(frozen=True, slots=True)
class Rights:
    """Allows exactly what is listed, and remembers the denials it reports."""

    allowed: frozenset[Right]
    denials: list[Right] = field(default_factory=list, compare=False)
    auditing: bool = False

    @property
    def allowed_topics(self) -> AllowedTopics:
        return AllowedTopics()

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        return self._judge(operation, resource_type, name, report)

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        beginning: str,
        *,
        report: bool = True,
    ) -> bool:
        return self._judge(operation, resource_type, f"{beginning}*", report)

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
    """Topic names by id, where an id that is not listed has not been asked for yet."""

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
    """A request (one of kio's) by somebody who may do what is `allowed`."""
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
    """Judge a request at once, and in the shortest of steps: both must say the same."""
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
    return found(guard, replace(asked, authority=PausingAuthority(asked.authority, lambda: None)))


def sent(judgement: Judgement, request: Any) -> Any:
    """The request that the broker gets, decoded; None: it gets none."""
    if judgement is FORWARD:
        return request
    if isinstance(judgement, Change):
        return request if judgement.request is None else decode(type(request), judgement.request)
    return None


def received(judgement: Judgement, request: Any, response: Any = None) -> Any:
    """The response that the client gets, decoded; `response` is the broker's, if it is asked."""
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
