"""How the creation and deletion of topics is limited on one connection (KIP-599).

Laws:

- Only a client with a controller_mutation_rate is limited, and after it was authorized: what is
  denied does not count, and nobody learns from a throttling what may not be described.
- A broker is asked first which of the topics exist, and with how many partitions, on the
  connection's own way to it: the client waits, and nobody else. What the broker cannot be asked
  counts as one partition.
- What is let through is charged before it is forwarded, so that many requests at once do not pass
  for one; what then was not done is given back. Without a response, it is not.
- Requests of strict versions are refused while there is a debt; older ones are told and held with
  the response.
- What is long is read, asked about and charged for in steps (`proxy.deliberation`).
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import UUID

from proxy.acl.guards.entities import uuid_or_none
from proxy.acl.judgement import (
    FORWARD,
    Answer,
    BodyTransform,
    Change,
    Close,
    Forward,
    Judgement,
)
from proxy.acl.topics import CLIENT_ID, NO_ID, KnownTopics
from proxy.admission import MOST_LOOKED_UP, Admission
from proxy.commands import CloseReason
from proxy.deliberation import MOST_VALUES, takes_long
from proxy.errors import BrokerFault
from proxy.frames import SIZE, Route, route_key
from proxy.holds import Hold
from proxy.inflight import ASKED_ID, Question
from proxy.lockstep import TooManyValuesError, in_steps, pause
from proxy.quota.bucket import Bucket
from proxy.quota.mutations import EVERYTHING, Key, MutationRequest, Topic, Topics
from proxy.quota.throttle import Throttle
from proxy.wire import metadata_topics
from proxy.wire.apis import METADATA, is_flexible, response_body_at
from proxy.wire.primitives import (
    INT16,
    INT32,
    Malformed,
    write_array_length,
    write_null_string,
    write_string,
)
from proxy.wire.request import Request

if TYPE_CHECKING:
    from proxy.connection import Connection

BY_ID_SINCE: Final = 12
"""First Metadata version that takes ids without names (KIP-516)."""
BY_NAME_SINCE: Final = 4
"""First one by which no topic is created for being asked about."""
OPERATIONS_SINCE: Final = 8
"""First one that may ask what the client is allowed (KIP-430)."""
CLUSTER_OPERATIONS_UNTIL: Final = 10
"""Last one that may ask it of the cluster."""

T = TypeVar("T")
CarryOut = Callable[[Judgement, Request, float], None]


class _Case(NamedTuple):
    """What is limited: a request, and what becomes of it otherwise."""

    judgement: Judgement
    request: Request
    body: bytes
    """As the broker will see it."""
    carry_out: CarryOut


class MutationLimiter:
    """Limits what one connection does to topics."""

    __slots__ = ("_connection", "_hold", "_used", "admission")

    def __init__(
        self, connection: "Connection", used: Throttle, hold: Callable[[float], None]
    ) -> None:
        """`hold(now)` has the client held for as long as `used` says."""
        self._connection = connection
        self._used = used
        self._hold = hold
        self.admission = Admission(connection, EVERYTHING, KnownTopics())
        """Takes the requests of a client whose other requests are not judged."""

    def limit(
        self, judgement: Judgement, request: Request, now: float, carry_out: CarryOut
    ) -> None:
        """Limit what was judged, then have it carried out."""
        match judgement:
            case Answer() | Close():
                carry_out(judgement, request, now)
                return
            case Change(request=bytes(cut)):
                body = cut
            case _:
                body = request.body
        case = _Case(judgement, request, body, carry_out)
        read = partial(MutationRequest, request.api_key, request.api_version, body)
        self._attempt(case, read, partial(self._look_up, case), now)

    def _attempt(
        self, case: _Case, work: Callable[[], T], then: Callable[[T, float], None], now: float
    ) -> None:
        """Do a part of it, in steps if the request is long, and go on with what came of it."""

        def tried(result: T | CloseReason, now: float) -> None:
            if result is CloseReason.OVERSIZE_FRAME and not self._used.enforced:
                case.carry_out(case.judgement, case.request, now)
            elif isinstance(result, CloseReason):
                self._connection.end(result, now)
            else:
                then(result, now)

        if takes_long(case.request):
            steps = in_steps(partial(_tried, work), most_values=MOST_VALUES)
            self._connection.long_work.judge(steps, len(case.body), tried)
        else:
            tried(_tried(work), now)

    def _charge(self, case: _Case, asked: MutationRequest, topics: Topics, now: float) -> None:
        def conclude(result: tuple[Judgement, int], now: float) -> None:
            limited, told = result
            case.carry_out(_in_turn(case.judgement, limited), case.request, now)
            if told:
                self._hold(now)

        self._attempt(case, partial(self._limited, asked, topics, now), conclude, now)

    def _limited(self, asked: MutationRequest, topics: Topics, now: float) -> tuple[Judgement, int]:
        """Charge for a request; what passes is settled by its response.

        Returns the throttle time (ms) of what was refused too.
        """
        bucket, used = self._used.mutations, self._used
        if bucket is None:  # removed meanwhile
            return FORWARD, 0
        most_wait = 0

        def charge(partitions: int) -> int | None:
            nonlocal most_wait
            pause()
            if used.enforced and not asked.strict:
                bucket.record(partitions, now)
            elif wait := bucket.try_record(partitions, now):
                most_wait = max(most_wait, wait)
                return None if used.enforced else 0
            return partitions

        judgement = asked.judge(topics, charge)
        told = used.mutated(most_wait, now) if most_wait else 0
        if isinstance(judgement, Answer):
            return Answer(asked.telling(judgement.body, told)), told
        settling = Change(response=self._settling(asked, bucket, told, now))
        return _in_turn(judgement, settling), told

    def _settling(
        self, asked: MutationRequest, bucket: Bucket, told: int, began: float
    ) -> BodyTransform:
        """Return what is done to the response: what was not done is given back."""

        def settle(body: bytes) -> bytes:
            now = self._connection.active_at
            done = asked.done(body)
            if done != asked.charged_in_all:
                bucket.correct(done - asked.charged_in_all, now)
            bucket.count.used += done
            throttle_time_ms = max(0, told - round((now - began) * 1_000))
            if done and not asked.strict and (wait := bucket.throttle_time_ms(now)):
                throttle_time_ms = self._used.mutated(wait, now)
                if throttle_time_ms:
                    self._hold(now)
            return asked.telling(body, throttle_time_ms)

        return settle

    # Which topics exist

    def _look_up(self, case: _Case, asked: MutationRequest, now: float) -> None:
        """Ask the broker for topics by their names, and for others by their ids; then charge."""
        then = partial(self._charge, case, asked)
        questions = list(self._questions(asked))
        routes = [route for route, _ in questions if route is not None]
        if len(routes) < len(questions):
            then(Topics(found={}, known=False), now)
        elif not questions:
            then(Topics(found={}), now)
        else:
            self._connection.hold_client(Hold.TOPICS)
            self._ask(zip(routes, (keys for _, keys in questions), strict=True), {}, then)

    def _ask(
        self,
        questions: Iterator[tuple[Route, list[Key]]],
        found: dict[Key, Topic],
        then: Callable[[Topics, float], None],
    ) -> None:
        """Ask one after the other."""
        connection = self._connection
        asked = next(questions, None)
        if asked is None:
            then(Topics(found=found), connection.active_at)
            connection.release(Hold.TOPICS, connection.active_at)
            return
        route, keys = asked

        def learn(answer: bytes, _now: float) -> None:
            found.update(_topics(route.api_version, answer))
            if not connection.closed:
                self._ask(questions, found, then)

        question = Question(METADATA, route.api_version, learn)
        connection.ask(question, _question(route.api_version, keys))

    def _questions(self, asked: MutationRequest) -> Iterator[tuple[Route | None, list[Key]]]:
        """Yield what to ask, and by which route; None: the broker cannot be asked."""
        for keys, since in ((asked.names, BY_NAME_SINCE), (asked.ids, BY_ID_SINCE)):
            routes = self._connection.target.routes
            versions = range(BY_ID_SINCE, since - 1, -1)
            by_version = (routes.get(route_key(METADATA, version)) for version in versions)
            route = next((route for route in by_version if route is not None), None)
            for first in range(0, len(keys), MOST_LOOKED_UP):
                yield route, keys[first : first + MOST_LOOKED_UP]


def _tried(work: Callable[[], T]) -> T | CloseReason:
    """Do it; return why the request cannot be judged, if it cannot."""
    try:
        return work()
    except Malformed:
        return CloseReason.MALFORMED_FRAME
    except TooManyValuesError:
        return CloseReason.OVERSIZE_FRAME


def _question(api_version: int, topics: Collection[Key]) -> bytes:
    """Write a Metadata request, frame and all, that creates nothing."""
    flexible = is_flexible(METADATA, api_version)
    with_ids = api_version >= metadata_topics.FIRST_WITH_TOPIC_IDS
    tags = b"\0" * flexible
    content = b"".join(
        (
            INT16.pack(METADATA) + INT16.pack(api_version) + INT32.pack(ASKED_ID),
            write_string(CLIENT_ID, flexible=False) + tags,
            write_array_length(len(topics), flexible),
            *(
                key.bytes + write_null_string(flexible) + tags
                if isinstance(key, UUID)
                else NO_ID * with_ids + write_string(key, flexible) + tags
                for key in topics
            ),
            b"\0",  # make no topics
            b"\0" * (OPERATIONS_SINCE <= api_version <= CLUSTER_OPERATIONS_UNTIL),
            b"\0" * (api_version >= OPERATIONS_SINCE) + tags,
        )
    )
    return SIZE.pack(len(content)) + content


def _topics(api_version: int, content: bytes) -> dict[Key, Topic]:
    """Return those that exist, by name and by id, from a Metadata response. Raises BrokerFault."""
    try:
        at = response_body_at(METADATA, api_version, content)
        body = content[at:]
        topics = metadata_topics.parse(api_version, body).topics
        found: dict[Key, Topic] = {}
        for one in topics:
            if not one.error_code and one.name is not None:
                partitions = metadata_topics.partition_count(api_version, body, one)
                topic_id = uuid_or_none(one.topic_id)
                topic = Topic(name=one.name, topic_id=topic_id, partitions=partitions)
                found[topic.name] = topic
                if topic_id is not None:
                    found[topic_id] = topic
    except Malformed as malformed:
        raise BrokerFault(f"topics to be changed: {malformed}") from None
    return found


def _in_turn(outer: Judgement, inner: Judgement) -> Judgement:
    """Return what becomes of a request of which `inner` judged what `outer` lets pass."""
    if isinstance(outer, Forward):
        return inner
    if not isinstance(outer, Change) or isinstance(inner, Forward):
        return outer
    last = outer.response or _as_it_is
    if isinstance(inner, Answer):
        return Answer(last(inner.body))
    assert isinstance(inner, Change)
    first = inner.response or _as_it_is
    request = outer.request if inner.request is None else inner.request
    return Change(request=request, response=lambda body: last(first(body)))


def _as_it_is(body: bytes) -> bytes:
    return body
