"""Mutation stage: limit on creating and deleting topics (KIP-599).

Rules:

- Only clients with a controller_mutation_rate are limited, after authorization: denied items do not
  count, and a throttle time reveals nothing that may not be described.
- First the broker is asked which of the topics exist, and with how many partitions, over the
  connection's own upstream connection: only the client itself waits. If the broker cannot be asked,
  each topic counts as one partition.
- Mutations are charged before they are forwarded, so that many requests at once cannot pass for
  one. Those that the response reports as not done are refunded; without a response there is no
  refund.
- Requests of strict versions are refused while there is a debt; the responses to older ones are
  delayed.
- Long requests are read, asked about and charged in steps (`proxy.connection.long_work`).
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, TypeVar

from proxy.acl.decision import FORWARD, Answer, BodyTransform, Change, Close, Forward, Judgement
from proxy.connection.authorization import MAX_LOOKED_UP
from proxy.connection.commands import Ask, CloseReason, Pending, Stage, Work
from proxy.connection.frames import route_key
from proxy.connection.inflight import ASKED_ID
from proxy.connection.interfaces import UpstreamBroker
from proxy.connection.long_work import MAX_VALUES, takes_long
from proxy.errors import BrokerFault
from proxy.quota.mutation_counts import CountedTopic, Key, MutationRequest, Topics
from proxy.quota.throttle import Throttle
from proxy.quota.token_bucket import Bucket
from proxy.scheduling.steps import TooManyValuesError, in_steps, pause
from proxy.wire.apis import METADATA, response_body_at
from proxy.wire.codec import encode
from proxy.wire.messages import MetadataRequest
from proxy.wire.metadata import MetadataTopics, error_code
from proxy.wire.primitives import Malformed
from proxy.wire.request import CLIENT_ID, Request, request_frame
from proxy.wire.schema import NO_ID

BY_ID_SINCE: Final = 12
"""First Metadata version that takes ids without names (KIP-516)."""
BY_NAME_SINCE: Final = 4
"""First version that does not create the topics it asks about."""

T = TypeVar("T")
Verdict = Judgement | CloseReason


class MutationLimiter:
    """Limits the mutations of one connection."""

    __slots__ = ("_last_read", "_target", "_used")

    def __init__(
        self, used: Throttle, target: UpstreamBroker, last_read: Callable[[], float]
    ) -> None:
        """`last_read()` returns the time of the last read from the broker, in monotonic seconds."""
        self._used = used
        self._target = target
        self._last_read = last_read

    def limit(self, verdict: Verdict, pending: Pending) -> Stage[Verdict]:
        """Limit the mutations that a judgement allows."""
        request = pending.request
        match verdict:
            case Answer() | Close() | CloseReason():
                return verdict
            case Change(request=bytes(cut)):
                body = cut
            case _:
                body = request.body
        asked = yield from self._tried(
            request, partial(MutationRequest, request.api_key, request.api_version, body)
        )
        if isinstance(asked, CloseReason):
            return self._unread(verdict, asked)
        topics = yield from self._look_up(asked)
        limited = yield from self._tried(request, partial(self._limited, asked, topics, pending))
        if isinstance(limited, CloseReason):
            return self._unread(verdict, limited)
        return _in_turn(verdict, limited)

    def _unread(self, verdict: Verdict, reason: CloseReason) -> Verdict:
        """Return the verdict on a request whose mutations cannot be counted."""
        passes = reason is CloseReason.OVERSIZE_FRAME and not self._used.enforced
        return verdict if passes else reason

    def _tried(self, request: Request, work: Callable[[], T]) -> Stage[T | CloseReason]:
        """Do part of the work, in steps if the request is long."""
        if not takes_long(request):
            return _tried(work)
        steps = in_steps(partial(_tried, work), max_values=MAX_VALUES)
        result: T | CloseReason = yield Work(steps, len(request.body))
        return result

    def _limited(self, asked: MutationRequest, topics: Topics, pending: Pending) -> Judgement:
        """Charge for a request; its response settles the charge."""
        bucket, used, now = self._used.mutations, self._used, pending.now
        if bucket is None:  # the quota was removed meanwhile
            return FORWARD
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
        throttled_ms = used.mutated(most_wait, now) if most_wait else 0
        if isinstance(judgement, Answer):
            return Answer(asked.with_throttle_time(judgement.body, throttled_ms))
        settling = Change(response=self._settling(asked, bucket, throttled_ms, now))
        return _both(judgement, settling)

    def _settling(
        self, asked: MutationRequest, bucket: Bucket, throttled_ms: int, began: float
    ) -> BodyTransform:
        """Return the change of the response, which also refunds the mutations that failed."""

        def settle(body: bytes) -> bytes:
            now = self._last_read()
            done = asked.done(body)
            if done != asked.charged_in_all:
                bucket.correct(done - asked.charged_in_all, now)
            bucket.count.used += done
            throttle_time_ms = max(0, throttled_ms - round((now - began) * 1_000))
            if done and not asked.strict and (wait := bucket.throttle_time_ms(now)):
                throttle_time_ms = self._used.mutated(wait, now)
            return asked.with_throttle_time(body, throttle_time_ms)

        return settle

    # Existing topics

    def _look_up(self, asked: MutationRequest) -> Stage[Topics]:
        """Ask the broker for topics, by name or by id."""
        found: dict[Key, CountedTopic] = {}
        questions = list(self._questions(asked))
        if any(version is None for version, _ in questions):
            return Topics(found={}, known=False)
        for version, keys in questions:
            assert version is not None
            answer = yield Ask(version, _question(version, keys))
            if answer is None:  # the broker has changed
                return Topics(found={}, known=False)
            found.update(_topics(version, answer))
        return Topics(found=found)

    def _questions(self, asked: MutationRequest) -> Iterator[tuple[int | None, list[Key]]]:
        """Yield Metadata versions with the topics to ask for; None in place of a version if the
        broker cannot be asked."""
        for keys, since in ((asked.names, BY_NAME_SINCE), (asked.ids, BY_ID_SINCE)):
            routes = self._target.routes
            versions = range(BY_ID_SINCE, since - 1, -1)
            version = next((one for one in versions if route_key(METADATA, one) in routes), None)
            for first in range(0, len(keys), MAX_LOOKED_UP):
                yield version, keys[first : first + MAX_LOOKED_UP]


def _tried(work: Callable[[], T]) -> T | CloseReason:
    """Return the result, or the reason for which the request cannot be judged."""
    try:
        return work()
    except Malformed:
        return CloseReason.MALFORMED_FRAME
    except TooManyValuesError:
        return CloseReason.OVERSIZE_FRAME


def _question(api_version: int, keys: Collection[Key]) -> bytes:
    """Return a Metadata request frame that creates nothing."""
    topic = MetadataRequest.MetadataRequestTopic
    topics = (
        topic(topic_id=key, name=None) if isinstance(key, bytes) else topic(name=key)
        for key in keys
    )
    request = MetadataRequest(topics=tuple(topics), allow_auto_topic_creation=False)
    body = encode(request, api_version)
    return request_frame(METADATA, api_version, ASKED_ID, CLIENT_ID, body)


def _topics(api_version: int, content: bytes) -> dict[Key, CountedTopic]:
    """Return the existing topics in a Metadata response, by name and by id. Raises BrokerFault."""
    try:
        at = response_body_at(METADATA, api_version, content)
        topics = MetadataTopics(api_version, content[at:])
        found: dict[Key, CountedTopic] = {}
        for place, name in enumerate(topics.names):
            if not error_code(topics.content(place)) and name is not None:
                partitions = topics.partition_count(place)
                topic_id = topics.topic_id(place) or NO_ID
                topic = CountedTopic(name=name, topic_id=topic_id, partitions=partitions)
                found[topic.name] = topic
                if topic_id != NO_ID:
                    found[topic_id] = topic
    except Malformed as malformed:
        raise BrokerFault(f"topics to be changed: {malformed}") from None
    return found


def _in_turn(outer: Verdict, inner: Judgement) -> Verdict:
    """Combine two judgements of one request."""
    return outer if isinstance(outer, CloseReason) else _both(outer, inner)


def _both(outer: Judgement, inner: Judgement) -> Judgement:
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
