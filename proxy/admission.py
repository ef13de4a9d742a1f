"""Authorization stage: what the requests of one connection are allowed, by their API's guard.

Laws:

- A request is judged by the ACLs that apply now.
- What was found to be allowed is remembered by its bytes, and forgotten when rights change.
- What is long is judged in steps (`proxy.deliberation`): the client waits, nobody else does.
- Topics that are named by an id, and the names of all, are looked up on the connection's own way
  to the broker: the client waits, nobody else does, and it costs no connection.
"""

import struct
from collections.abc import Callable
from functools import partial
from sys import maxsize
from typing import TYPE_CHECKING, Final, TypeVar

from proxy.acl.guards import GUARDS
from proxy.acl.judgement import (
    Authority,
    ClientAuthority,
    Inquiry,
    TopicsUnknown,
    TopicsUnlisted,
)
from proxy.acl.model import Operation, ResourceType
from proxy.acl.topics import (
    KnownTopics,
    LookedUpTopics,
    found_topics,
    listed_topics,
    listing_request,
    lookup_request,
)
from proxy.commands import CloseReason
from proxy.deliberation import Found, PausingAuthority, found, found_in_steps, takes_long
from proxy.errors import BrokerFault
from proxy.fingerprints import (
    CORRELATED,
    JUDGE_EACH,
    Basis,
    all_but,
)
from proxy.frames import REQUEST_HEAD, SIZE
from proxy.inflight import ASKED_ID
from proxy.lockstep import in_steps
from proxy.stages import Ask, Pending, Stage, Verdict, Work
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.fetch_bounds import FINAL_EPOCH, INITIAL_EPOCH
from proxy.wire.fetch_requests import plain as plain_fetch
from proxy.wire.primitives import Malformed, string
from proxy.wire.produce_requests import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    only_topic,
    topics_start,
)
from proxy.wire.produce_requests import plain_topics as plain_produce
from proxy.wire.request import Request

if TYPE_CHECKING:
    pass

T = TypeVar("T")

_HEADER: Final = struct.Struct(">hhih")
"""API key, version, correlation id, client id length."""
MOST_TOPICS_REMEMBERED: Final = 64
"""Topics that are remembered as written to, and as read."""
MOST_LOOKED_UP: Final = 1_000
"""Ids in one question: reading the answer takes some ten milliseconds, be there many partitions."""
LOOKUP_VERSION: Final = 12
"""First Metadata version that takes ids without names (KIP-516)."""


class FetchSessions(set[int]):
    """The fetch sessions in which everything is allowed (`judgement.Inquiry`)."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called when one of them is no more."""
        super().__init__()
        self._ended = ended

    def discard(self, session: object) -> None:
        """Know a session no more, if it was known."""
        if session in self:
            super().discard(session)
            self._ended()

    def clear(self) -> None:
        """Know none any more."""
        if self:
            super().clear()
            self._ended()


class Admission:
    """Judges the requests of one authenticated connection."""

    __slots__ = (
        "_allowed_topics",
        "_asks",
        "_authority",
        "_brokers_make_topics",
        "_forget",
        "_readable_topics",
        "_sessions",
        "_topics",
    )

    def __init__(
        self,
        authority: ClientAuthority,
        topics: KnownTopics,
        *,
        asks: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
        brokers_make_topics: bool = True,
    ) -> None:
        """`asks` is called before questions are asked, so that it is known on whose behalf;
        `forget` when what passed may not pass any more, though rights are the same."""
        self._brokers_make_topics = brokers_make_topics
        self._topics = LookedUpTopics(topics)
        self._asks = asks
        self._forget = forget
        self.rights_changed(authority)

    def rights_changed(self, authority: ClientAuthority) -> None:
        """Judge by `authority` from now on, and forget what was allowed."""
        self._authority = authority
        self._allowed_topics: set[tuple[int, bytes]] = set()
        self._readable_topics: set[tuple[bool, bytes]] = set()
        # new ones: answers under way shall not add to them
        self._sessions = FetchSessions(self._forget)

    @property
    def auditing(self) -> bool:
        """Whether denials are only counted: what is allowed must then not be remembered."""
        return self._authority.auditing

    def may_administer(self, operation: Operation) -> bool:
        """Whether its principal may do this to the cluster."""
        self._asks()
        return self._authority.may_administer(operation)

    # A Produce, from its first bytes

    def allowed_topic(
        self, api_version: int, data: bytes | memoryview, pos: int, at: int, end: int
    ) -> Basis | None:
        """Look at the beginning of a Produce: is it allowed for its one topic?

        The frame begins at `pos`, its client id ends at `at`. None: it is not allowed, or this
        look does not suffice.
        """
        stop = only_topic(api_version, data, at, end)
        if not stop:
            return None
        said = bytes(data[topics_start(at) : stop])
        if not self._may_write(api_version, said):
            return None
        if self._authority.auditing:
            return JUDGE_EACH
        return Basis(((CORRELATED, stop - pos),))

    # A Produce or Fetch, without reading all of it

    def allowed(self, data: bytes | memoryview, pos: int, end: int) -> Basis | None:
        """Look at the frame at `pos` that ends at `end`: is all of it allowed?

        No request is read whole for that, and none is refused. None: this does not suffice.
        """
        api_key, version, _, length = _HEADER.unpack_from(data, pos + SIZE.size)
        if api_key not in (PRODUCE, FETCH):
            return None
        if not isinstance(data, bytes):
            data, pos, end = bytes(data[pos:end]), 0, end - pos
        at = pos + REQUEST_HEAD.size + max(length, 0)
        if api_key == FETCH:
            return self._allowed_fetch(version, data, pos, at, end)
        produced = plain_produce(version, data, at, end)
        if produced is None or not all(self._may_write(version, said) for said in produced):
            return None
        return JUDGE_EACH

    def _allowed_fetch(
        self, version: int, frame: bytes, pos: int, at: int, end: int
    ) -> Basis | None:
        found = plain_fetch(version, frame, at, end)
        if found is None:
            return None
        epoch, in_session = found.epoch, found.epoch != FINAL_EPOCH
        if in_session and (epoch == INITIAL_EPOCH or found.session_id not in self._sessions):
            return None
        if not all(self._may_read(version, said) for said in found.topics):
            return None
        if self._authority.auditing:
            return JUDGE_EACH._replace(max_bytes=max(1, found.max_bytes))
        varying = [(start - pos, stop - pos) for start, stop in found.numbers]
        epoch_at = found.epoch_at - pos if in_session else 0
        if epoch_at:
            varying.insert(0, (epoch_at, epoch_at + 4))
        return Basis(all_but(varying, end - pos), True, epoch_at, max(1, found.max_bytes))

    def _may_write(self, api_version: int, said: bytes) -> bool:
        """Whether a topic may be written to; `said` as `only_topic` finds it."""
        if (api_version, said) in self._allowed_topics:
            return True
        name = self._name(api_version, said)
        if name is None or not self._may(Operation.WRITE, name):
            return False
        self._note_topic((api_version, said), self._allowed_topics)
        return True

    def _may_read(self, api_version: int, said: bytes) -> bool:
        """Whether a topic may be read; `said` is its name or its id."""
        by_id = api_version >= FIRST_WITH_TOPIC_IDS
        if (by_id, said) in self._readable_topics:
            return True
        name = self._topics.known.get(said) if by_id else _text(said)
        if name is None or not self._may(Operation.READ, name):
            return False
        self._note_topic((by_id, said), self._readable_topics)
        return True

    def _may(self, operation: Operation, topic: str) -> bool:
        self._asks()
        authority = self._authority
        report = authority.auditing  # else the guard is asked again, and reports
        return authority.may(operation, ResourceType.TOPIC, topic, report=report)

    def _note_topic(self, said: T, topics: set[T]) -> None:
        if self._authority.auditing:
            return
        if len(topics) >= MOST_TOPICS_REMEMBERED:
            topics.clear()
        topics.add(said)

    def _name(self, api_version: int, said: bytes) -> str | None:
        if api_version >= FIRST_WITH_TOPIC_IDS:
            return self._topics.known.get(said[1:])
        flexible = api_version >= FIRST_FLEXIBLE
        try:
            return string(said, 1 if flexible else 4, flexible)[0]
        except Malformed:
            return None

    # Whole requests

    def judge(self, pending: Pending) -> Stage[Verdict]:
        """Judge a request."""
        while True:
            result = yield from self._found(pending.request)
            if not isinstance(result, TopicsUnknown):
                self._topics.forget()
                return result
            yield from self._look_up(result)

    def _found(self, request: Request) -> Stage[Found]:
        guard = GUARDS.get(request.api_key)
        if guard is None:
            return CloseReason.UNSUPPORTED_API
        if self._topics.listed is not None or takes_long(request):
            authority = PausingAuthority(self._authority, self._asks)
            steps = found_in_steps(guard, partial(self._inquiry, request, authority))
            result: Found = yield Work(steps, len(request.content))
            return result
        self._asks()
        return found(guard, self._inquiry(request, self._authority))

    def _inquiry(self, request: Request, authority: Authority) -> Inquiry:
        return Inquiry(
            api_version=request.api_version,
            body=request.body,
            authority=authority,
            topics=self._topics,
            listed=self._topics.listed,
            fetch_sessions=self._sessions,
            brokers_make_topics=self._brokers_make_topics,
        )

    # Topics that are named by an id, or not at all

    def _look_up(self, unknown: TopicsUnknown) -> Stage[None]:
        """Ask the broker for the names of topics; for as many at once as an answer may be about.

        If it cannot be asked, nobody can name a topic by its id, and there are none to be told.
        """
        if isinstance(unknown, TopicsUnlisted):
            answer = yield Ask(LOOKUP_VERSION, listing_request(LOOKUP_VERSION, ASKED_ID))
            if answer is not None:
                steps = in_steps(lambda: _listed(answer), most_values=maxsize)
                answer = yield Work(steps, len(answer))
            if isinstance(answer, BrokerFault):
                raise answer
            self._topics.listed = answer or []
            return
        ids = tuple(unknown.ids)
        for first in range(0, len(ids), MOST_LOOKED_UP):
            asked = ids[first : first + MOST_LOOKED_UP]
            answer = yield Ask(LOOKUP_VERSION, lookup_request(LOOKUP_VERSION, ASKED_ID, asked))
            try:
                topics = {} if answer is None else found_topics(LOOKUP_VERSION, answer)
            except Malformed as malformed:
                raise BrokerFault(f"names of topics: {malformed}") from None
            self._topics.learn(topics, asked)


def _listed(answer: bytes) -> list[str] | BrokerFault:
    try:
        return listed_topics(LOOKUP_VERSION, answer)
    except Malformed as malformed:
        return BrokerFault(f"names of all topics: {malformed}")


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
