"""What the requests of one connection are allowed: judged by their API's guard, then carried out.

Laws:

- A whole request comes in (`judge`) and is forwarded, changed, answered or ends the connection.
  Nothing is forwarded that was not judged by the ACLs that apply now.
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
    Answer,
    Authority,
    Change,
    ClientAuthority,
    Close,
    Inquiry,
    Judgement,
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
from proxy.errors import BrokerFault, ClientFault
from proxy.fingerprints import (
    CORRELATED,
    JUDGE_EACH,
    MAX_FINGERPRINTED_BYTES,
    Basis,
    Span,
    all_but,
)
from proxy.frames import FORWARD_UNANSWERED, REQUEST_HEAD, SIZE, Route, route_key
from proxy.holds import Hold
from proxy.inflight import ASKED_ID, Question
from proxy.judged_responses import cut, watched
from proxy.lockstep import in_steps
from proxy.wire.apis import FETCH, METADATA, MUTATIONS, OFFSET_COMMIT, PRODUCE, SHARE_FETCH
from proxy.wire.commit_requests import numbers as commit_numbers
from proxy.wire.fetch_bounds import FINAL_EPOCH, INITIAL_EPOCH
from proxy.wire.fetch_requests import plain as plain_fetch
from proxy.wire.primitives import INT16, Malformed, string
from proxy.wire.produce_requests import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    only_topic,
    topics_start,
)
from proxy.wire.produce_requests import plain_topics as plain_produce
from proxy.wire.request import Request, parse_request, response_frame

if TYPE_CHECKING:
    from proxy.connection import Connection

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
        "_connection",
        "_readable_topics",
        "_sessions",
        "_topics",
        "_waiting",
    )

    def __init__(
        self,
        connection: "Connection",
        authority: ClientAuthority,
        topics: KnownTopics,
        asks: Callable[["Connection"], None] = lambda _: None,
        *,
        brokers_make_topics: bool = True,
    ) -> None:
        """`asks` is told the connection before questions are asked on its behalf."""
        self._connection = connection
        self._brokers_make_topics = brokers_make_topics
        self._topics = LookedUpTopics(topics)
        self._asks = asks
        self._waiting: bytes | None = None
        """The request that waits for topics to be looked up."""
        self.rights_changed(authority)

    def rights_changed(self, authority: ClientAuthority) -> None:
        """Judge by `authority` from now on, and forget what was allowed."""
        self._authority = authority
        self._allowed_topics: set[tuple[int, bytes]] = set()
        self._readable_topics: set[tuple[bool, bytes]] = set()
        # new ones: answers under way shall not add to them
        self._sessions = FetchSessions(self._connection.requests.forget)

    def may_administer(self, operation: Operation) -> bool:
        """Whether its principal may do this to the cluster."""
        self._asks(self._connection)
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
        self._asks(self._connection)
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

    def judge(self, content: bytes, now: float) -> None:
        """Judge a request, from behind the frame's size, and do what follows from it."""
        frame = _frame(content)
        if self.allowed(frame, 0, len(frame)) is not None:
            route = self._connection.target.routes[int.from_bytes(content[:4])]
            owed = None if _unanswered(content, route) else route
            self._connection.requests.forward_judged(frame, route, owed, now)
            return
        try:
            request = parse_request(content)
        except ClientFault:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return
        guard = GUARDS.get(request.api_key)
        if guard is None:
            self._connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self._topics.listed is not None or takes_long(request):
            authority = PausingAuthority(self._authority, partial(self._asks, self._connection))
            steps = found_in_steps(guard, partial(self._inquiry, request, authority))
            self._connection.long_work.judge(steps, len(content), partial(self._conclude, request))
        else:
            self._asks(self._connection)
            self._conclude(request, found(guard, self._inquiry(request, self._authority)), now)

    def _conclude(self, request: Request, result: Found, now: float) -> None:
        """Do what follows from a judgement."""
        if isinstance(result, TopicsUnknown):
            self._look_up(request.content, result)
            return
        if isinstance(result, CloseReason):
            self._connection.end(result, now)
            return
        self._topics.forget()
        throttle = self._connection.requests.throttle
        if request.api_key in MUTATIONS and throttle is not None and throttle.mutations is not None:
            throttle.mutations.limit(result, request, now, self._carry_out)
        else:
            self._carry_out(result, request, now)

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

    def _carry_out(self, judgement: Judgement, request: Request, now: float) -> None:
        connection, content = self._connection, request.content
        route = connection.target.routes[key := route_key(request.api_key, request.api_version)]
        match judgement:
            case Answer(body):
                connection.requests.answered(len(content), now)
                connection.send(response_frame(request, body), now, key)
            case Close():
                connection.end(CloseReason.DENIED, now)
            case Change():
                self._change(judgement, request, route, now)
            case _:
                frame = _frame(content)
                self._remember(request, frame, route)
                owed = None if _unanswered(content, route) else route
                connection.requests.forward_judged(frame, route, owed, now)

    def _remember(self, request: Request, frame: bytes, route: Route) -> None:
        """Let requests pass from now on that are the same, but for numbers that do not matter."""
        if (
            request.api_key in (PRODUCE, FETCH, SHARE_FETCH, *MUTATIONS)
            or self._authority.auditing
            or len(frame) > MAX_FINGERPRINTED_BYTES
        ):
            return
        varying: list[Span] = []
        if request.api_key == OFFSET_COMMIT:
            at = REQUEST_HEAD.size + max(0, INT16.unpack_from(frame, 12)[0])
            varying = commit_numbers(request.api_version, frame, at, len(frame)) or []
        basis = Basis(all_but(varying, len(frame)), whole=True)
        self._connection.requests.remember(frame, 0, len(frame) - SIZE.size, basis, route)

    def _change(self, change: Change, request: Request, route: Route, now: float) -> None:
        connection, content = self._connection, request.content
        unanswered = _unanswered(content, route)
        if change.request is not None:
            content = content[: request.body_at] + change.request
        if change.api_version is not None:
            if route_key(request.api_key, change.api_version) not in connection.target.routes:
                connection.end(CloseReason.UNSUPPORTED_API, now)
                return
            content = content[:2] + INT16.pack(change.api_version) + content[4:]
        owed: Route | None = None if unanswered else route
        if change.response is not None:
            owed = cut(route, change.response, len(request.content))
        elif change.watch is not None:
            owed = watched(route, change.watch)
        connection.requests.forward_judged(_frame(content), route, owed, now)
        if connection.inflight.owes_much:
            connection.too_many_in_flight()
        if change.close:
            connection.end(CloseReason.DENIED, now)

    # Topics that are named by an id, or not at all

    def _look_up(self, content: bytes, unknown: TopicsUnknown) -> None:
        """Ask the broker for the names of topics, and judge `content` when they are known."""
        connection = self._connection
        self._waiting = content
        connection.hold_client(Hold.WAITING)
        if route_key(METADATA, LOOKUP_VERSION) not in connection.target.routes:
            # then nobody can name a topic by its id, and there are none to be told
            self._topics.missing |= unknown.ids
            self._topics.listed = []
            self._judge_again()
        elif isinstance(unknown, TopicsUnlisted):
            self._ask_for_all()
        else:
            self._ask(tuple(unknown.ids), 0)

    def _ask_for_all(self) -> None:
        long_work = self._connection.long_work

        def found(answer: bytes, _now: float) -> None:
            steps = in_steps(lambda: _listed(answer), most_values=maxsize)
            long_work.judge(steps, len(answer), self._list)

        self._connection.ask(
            Question(METADATA, LOOKUP_VERSION, found), listing_request(LOOKUP_VERSION, ASKED_ID)
        )

    def _list(self, names: list[str] | BrokerFault, now: float) -> None:
        if isinstance(names, BrokerFault):
            self._connection.finish(CloseReason.BROKER_FAULT, now)
            return
        self._topics.listed = names
        self._judge_again()

    def _ask(self, ids: tuple[bytes, ...], first: int) -> None:
        """Ask for as many at once as an answer may be about, then for those behind them."""
        behind = first + MOST_LOOKED_UP
        asked = ids[first:behind]

        def found(answer: bytes, _now: float) -> None:
            try:
                topics = found_topics(LOOKUP_VERSION, answer)
            except Malformed as malformed:
                raise BrokerFault(f"names of topics: {malformed}") from None
            self._topics.learn(topics, asked)
            if behind < len(ids):
                self._ask(ids, behind)
            else:
                self._judge_again()

        self._connection.ask(
            Question(METADATA, LOOKUP_VERSION, found),
            lookup_request(LOOKUP_VERSION, ASKED_ID, asked),
        )

    def _judge_again(self) -> None:
        content, self._waiting = self._waiting, None
        if content is not None and not self._connection.closed:
            self.judge(content, self._connection.active_at)
            if self._waiting is None:
                self._connection.release(Hold.WAITING, self._connection.active_at)


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


def _frame(content: bytes) -> bytes:
    return SIZE.pack(len(content)) + content


def _unanswered(content: bytes, route: Route) -> bool:
    """Whether the broker will not answer: Produce with acks=0."""
    if route.check is None:
        return False
    at = 10 + max(0, INT16.unpack_from(content, 8)[0])
    return route.check(content, at, len(content))[0] == FORWARD_UNANSWERED
