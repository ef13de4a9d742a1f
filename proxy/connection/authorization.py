"""Authorization stage: each request judged by its API's guard.

Rules:

- A request is judged by the ACLs that apply now.
- Allowed requests are recognized by their bytes, and allowed topics remembered, until rights
  change. Nothing is remembered where denials are only counted.
- A Produce or Fetch all of whose topics are known to be allowed passes at a first look (`Allowed`),
  which reads no request as a whole and refuses nothing: all other requests are judged.
- Long requests are judged in steps (`proxy.connection.long_work`), and names of topics are looked
  up over the connection's own upstream connection. Only the client itself waits.
"""

from collections.abc import Callable
from functools import partial
from sys import maxsize
from typing import Final

from proxy.acl.decision import (
    AllowedTopics,
    Authority,
    ClientAuthority,
    FetchSessions,
    Inquiry,
    Judgement,
    TopicsUnknown,
    TopicsUnlisted,
)
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation, ResourceType
from proxy.acl.topic_ids import (
    KnownTopics,
    LookedUpTopics,
    found_topics,
    listed_topics,
    listing_request,
    lookup_request,
)
from proxy.connection.commands import Ask, CloseReason, Pending, Stage, Work
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, Basis, all_but
from proxy.connection.frames import Bytes
from proxy.connection.inflight import ASKED_ID
from proxy.connection.long_work import (
    Found,
    PausingAuthority,
    found,
    found_in_steps,
    takes_long,
)
from proxy.errors import BrokerFault
from proxy.scheduling.stepped_thread import in_steps
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.fetch_requests import FINAL_EPOCH, INITIAL_EPOCH
from proxy.wire.fetch_requests import plain as plain_fetch
from proxy.wire.primitives import Malformed, string
from proxy.wire.produce_requests import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    ONE_ITEM,
    only_topic,
    plain_topics,
    topics_start,
)
from proxy.wire.request import Request

MAX_TOPICS: Final = 4_096
"""Maximum number of topics remembered per principal and address, for writing and for reading."""
MAX_NAME_BYTES: Final = 256
"""Maximum length of a remembered name, in bytes."""

May = Callable[[bool, str], bool]
"""Function `may(writes, topic)` that returns whether a topic may be written to, or read."""


class Allowed:
    """Topics that one connection may use under one version of the ACLs."""

    __slots__ = ("_auditing", "_last_written", "_may", "_names", "_sessions", "_topics")

    def __init__(
        self,
        may: May,
        names: dict[bytes, str],
        sessions: FetchSessions,
        topics: AllowedTopics,
        *,
        auditing: bool,
    ) -> None:
        """`names` are topic names by id; `topics` is shared with the principal's other
        connections."""
        self._may = may
        self._names = names
        self._sessions = sessions
        self._auditing = auditing
        self._topics = topics
        self._last_written = 0, b""
        """API version and topics of the last allowed Produce: the next one usually has the same."""

    def look_at_start(
        self, api_version: int, data: Bytes, pos: int, at: int, end: int
    ) -> Basis | None:
        """Return the basis on which the Produce at `pos` is allowed, by its first bytes.

        Its client id ends at `at`. None if it is denied, or has several topics.
        """
        stop = only_topic(api_version, data, at, end)
        if not stop or not self._may_write(api_version, bytes(data[topics_start(at) : stop])):
            return None
        return JUDGE_EACH if self._auditing else Basis(((CORRELATED, stop - pos),))

    def whole(self, key: int, data: Bytes, pos: int, at: int, end: int) -> Basis | None:
        """Return the basis on which the frame from `pos` to `end` is allowed.

        Its client id ends at `at`. None if it is denied, or must be judged by its guard.
        """
        api_key, version = key >> 16, key & 0xFFFF
        if api_key != PRODUCE and api_key != FETCH:
            return None
        frame = data if isinstance(data, bytes) else bytes(data[pos:end])
        if frame is not data:
            pos, at, end = 0, at - pos, end - pos
        if api_key == FETCH:
            return self._fetch(version, frame, pos, at, end)
        topics = plain_topics(version, frame, at, end)
        if topics is None:
            return None
        all_of_them = version, b"".join(topics)
        if all_of_them == self._last_written:
            return JUDGE_EACH
        for named_by in topics:
            if not self._may_write(version, ONE_ITEM + named_by):
                return None
        if not self._auditing:
            self._last_written = all_of_them
        return JUDGE_EACH

    def _fetch(self, version: int, frame: bytes, pos: int, at: int, end: int) -> Basis | None:
        found = plain_fetch(version, frame, at, end)
        if found is None:
            return None
        epoch, in_session = found.epoch, found.epoch != FINAL_EPOCH
        if in_session and (epoch == INITIAL_EPOCH or found.session_id not in self._sessions):
            return None
        for named_by in found.topics:
            if not self._may_read(version, named_by):
                return None
        max_bytes = max(1, found.max_bytes)
        if self._auditing:
            return Basis((), max_bytes=max_bytes)
        varying = [(start - pos, stop - pos) for start, stop in found.numbers]
        epoch_at = found.epoch_at - pos if in_session else 0
        if epoch_at:
            varying.insert(0, (epoch_at, epoch_at + 4))
        return Basis(all_but(varying, end - pos), True, epoch_at, max_bytes)

    def _may_write(self, api_version: int, named_by: bytes) -> bool:
        """Return whether a topic may be written to; `named_by` has the form of `only_topic`."""
        topic = api_version, named_by
        if topic in self._topics.written:
            return True
        name = self._name(api_version, named_by)
        if name is None or not self._may(True, name):
            return False
        self._note(topic, self._topics.written)
        return True

    def _may_read(self, api_version: int, named_by: bytes) -> bool:
        """Return whether a topic may be read; `named_by` is its name or its id."""
        by_id = api_version >= FIRST_WITH_TOPIC_IDS
        topic = by_id, named_by
        if topic in self._topics.read:
            return True
        name = self._names.get(named_by) if by_id else _text(named_by)
        if name is None or not self._may(False, name):
            return False
        self._note(topic, self._topics.read)
        return True

    def _note(self, topic: tuple[int, bytes], topics: set[tuple[int, bytes]]) -> None:
        if self._auditing or len(topic[1]) > MAX_NAME_BYTES:
            return
        if len(topics) >= MAX_TOPICS:
            topics.clear()
        topics.add(topic)

    def _name(self, api_version: int, named_by: bytes) -> str | None:
        if api_version >= FIRST_WITH_TOPIC_IDS:
            return self._names.get(named_by[1:])
        flexible = api_version >= FIRST_FLEXIBLE
        try:
            return string(named_by, 1 if flexible else 4, flexible)[0]
        except Malformed:
            return None


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


MAX_LOOKED_UP: Final = 1_000
"""Maximum number of ids per question; reading the response takes about ten milliseconds if the
topics have many partitions."""
LOOKUP_VERSION: Final = 12
"""First Metadata version that takes ids without names (KIP-516)."""


class RequestAuthorization:
    """Judges the requests of one authenticated connection."""

    __slots__ = (
        "_asks",
        "_authority",
        "_brokers_make_topics",
        "_forget",
        "_sessions",
        "_topics",
        "look",
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
        """`asks` is called before each question to the authority, to identify the connection;
        `forget` when requests that passed must be judged again although rights are unchanged."""
        self._brokers_make_topics = brokers_make_topics
        self._topics = LookedUpTopics(topics)
        self._asks = asks
        self._forget = forget
        self.rights_changed(authority)

    def rights_changed(self, authority: ClientAuthority) -> None:
        """Judge by `authority` from now on, and forget all that was allowed."""
        self._authority = authority
        # A new object, so that responses under way cannot add to it
        self._sessions = FetchSessions(self._forget)
        self.look = Allowed(
            self._may,
            self._topics.known,
            self._sessions,
            authority.allowed_topics,
            auditing=authority.auditing,
        )
        """First look at Produces and Fetches."""

    @property
    def auditing(self) -> bool:
        """True if denials are only counted; then allowed requests must not be remembered."""
        return self._authority.auditing

    def may_administer(self, operation: Operation) -> bool:
        """Return whether the principal may do this to the cluster."""
        self._asks()
        return self._authority.may_administer(operation)

    def _may(self, writes: bool, topic: str) -> bool:
        self._asks()
        authority, operation = self._authority, Operation.WRITE if writes else Operation.READ
        report = authority.auditing  # otherwise the guard asks again, and reports
        return authority.may(operation, ResourceType.TOPIC, topic, report=report)

    # Whole requests

    def judge(self, pending: Pending) -> Stage[Judgement | CloseReason]:
        """Judge a request."""
        while True:
            pending.judged_by = self.look
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

    # Topics named by an id, or not at all

    def _look_up(self, unknown: TopicsUnknown) -> Stage[None]:
        """Ask the broker for the names of topics, up to `MAX_LOOKED_UP` at once.

        If it cannot be asked, no topic is found.
        """
        if isinstance(unknown, TopicsUnlisted):
            answer = yield Ask(LOOKUP_VERSION, listing_request(LOOKUP_VERSION, ASKED_ID))
            if answer is not None:
                steps = in_steps(lambda: _listed(answer), max_values=maxsize)
                answer = yield Work(steps, len(answer))
            if isinstance(answer, BrokerFault):
                raise answer
            self._topics.listed = answer or []
            return
        ids = tuple(unknown.ids)
        for first in range(0, len(ids), MAX_LOOKED_UP):
            asked = ids[first : first + MAX_LOOKED_UP]
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
