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

from collections.abc import Callable, Sequence
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
    Used,
    note,
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
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, Basis, Span, all_but
from proxy.connection.frames import Bytes
from proxy.connection.inflight import ASKED_ID
from proxy.connection.long_work import Found, SteppedAuthority, found, found_in_steps, takes_long
from proxy.connection.usage import READ_TOPIC, WRITE_TOPIC, Tally, Topics, Uses, uses_of_session
from proxy.errors import BrokerFault
from proxy.scheduling.steps import in_steps
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

_NOTHING_WRITTEN: Final = (0, b"", JUDGE_EACH)

_ALONE: Final = -1
"""Kind of a Fetch without a session; one less if it names topics by their ids. That of a Produce is
its version."""
_IN_SESSION: Final = -3
"""Kind of a Fetch in a session; likewise."""
_OF_SESSION: Final[Topics] = -5, ()
"""Key of the tally of all Fetches that continue the session, which may have a thousand topics."""

May = Callable[[bool, str], bool]
"""Function `may(writes, topic)` that returns whether a topic may be written to, or read."""


class Allowed:
    """Topics that one connection may use under one version of the ACLs."""

    __slots__ = ("_auditing", "_last_written", "_may", "_names", "_sessions", "_topics", "_uses")

    def __init__(
        self,
        may: May,
        names: dict[bytes, str],
        sessions: FetchSessions,
        topics: AllowedTopics,
        *,
        auditing: bool,
        uses: Uses | None = None,
    ) -> None:
        """`names` are topic names by id; `topics` is shared with the principal's other
        connections; `uses` counts them; None to count nothing."""
        self._may = may
        self._names = names
        self._sessions = sessions
        self._auditing = auditing
        self._topics = topics
        self._uses = uses
        self.forget_tallies()

    def forget_tallies(self) -> None:
        """Forget everything that refers to a tally."""
        self._last_written: tuple[int, bytes, Basis] = _NOTHING_WRITTEN
        """API version, topics and basis of the last allowed Produce: the next one usually has the
        same topics."""

    def look_at_start(
        self, api_version: int, data: Bytes, pos: int, at: int, end: int
    ) -> Basis | None:
        """Return the basis on which the Produce at `pos` is allowed, by its first bytes.

        Its client id ends at `at`. None if it is denied, or has several topics.
        """
        stop = only_topic(api_version, data, at, end)
        if not stop:
            return None
        named_by = bytes(data[topics_start(at) : stop])
        if not self._may_write(api_version, named_by):
            return None
        spans = () if self._auditing else ((CORRELATED, stop - pos),)
        return self._written(api_version, [named_by], spans)

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
        all_of_them = b"".join(topics)
        last_version, last_topics, last_basis = self._last_written
        if version == last_version and all_of_them == last_topics:
            return last_basis
        named = [ONE_ITEM + named_by for named_by in topics]
        for named_by in named:
            if not self._may_write(version, named_by):
                return None
        basis = self._written(version, named, ())
        if basis is not None and not self._auditing:
            self._last_written = version, all_of_them, basis
        return basis

    def _written(
        self, api_version: int, topics: list[bytes], spans: tuple[Span, ...]
    ) -> Basis | None:
        """Return the basis of a Produce to topics that may be written to; None if the name of one
        is not known any more."""
        uses = self._uses
        if uses is None:
            return Basis(spans) if spans else JUDGE_EACH
        key = api_version, tuple(topics)
        tally = uses.by_topics.get(key)
        if tally is None:
            names = [self._name(api_version, named_by) for named_by in topics]
            if None in names:
                return None
            tally = uses.remember(key, uses.of(_uses(WRITE_TOPIC, names)))
        return Basis(spans, tally=tally)

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
        tally = None
        if self._uses is not None:
            tally = self._read(self._uses, version, tuple(found.topics), in_session)
            if tally is None:
                return None
        max_bytes = max(1, found.max_bytes)
        if self._auditing:
            return Basis((), max_bytes=max_bytes, tally=tally)
        varying = [(start - pos, stop - pos) for start, stop in found.numbers]
        epoch_at = found.epoch_at - pos if in_session else 0
        if epoch_at:
            varying.insert(0, (epoch_at, epoch_at + 4))
        return Basis(all_but(varying, end - pos), True, epoch_at, max_bytes, tally)

    def _read(
        self, uses: Uses, version: int, topics: tuple[bytes, ...], in_session: bool
    ) -> Tally | None:
        """Return the tally of a Fetch: in a session, of all of the session's topics, because Kafka
        authorizes each of them for each request. None if the name of a topic is not known any
        more."""
        key = (_IN_SESSION if in_session else _ALONE) - (version >= FIRST_WITH_TOPIC_IDS), topics
        if in_session and uses.session is not self._sessions.topics:
            uses.by_topics.clear()
        known = uses.by_topics.get(key)
        if known is not None:
            return known
        names = [self._read_name(version, named_by) for named_by in topics]
        if None in names:
            return None
        if not in_session:
            return uses.remember(key, uses.of(_uses(READ_TOPIC, names)))
        session = self._sessions.add_topics([name for name in names if name is not None])
        known = None if session is not uses.session else uses.by_topics.get(_OF_SESSION)
        if known is None:
            known = uses.of(tuple(uses_of_session(session)))
            uses.by_topics.clear()
            uses.remember(_OF_SESSION, known)
            uses.session = session
        return uses.remember(key, known)

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
        topic = api_version >= FIRST_WITH_TOPIC_IDS, named_by
        if topic in self._topics.read:
            return True
        name = self._read_name(api_version, named_by)
        if name is None or not self._may(False, name):
            return False
        self._note(topic, self._topics.read)
        return True

    def _read_name(self, api_version: int, named_by: bytes) -> str | None:
        by_id = api_version >= FIRST_WITH_TOPIC_IDS
        return self._names.get(named_by) if by_id else _text(named_by)

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


def _uses(code: int, names: Sequence[str | None]) -> tuple[Used, ...]:
    return tuple([(code, name) for name in dict.fromkeys(names) if name is not None])


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
        "uses",
    )

    def __init__(
        self,
        authority: ClientAuthority,
        topics: KnownTopics,
        *,
        asks: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
        brokers_make_topics: bool = True,
        counted: Callable[[Tally], None] | None = None,
    ) -> None:
        """`asks` is called before each question to the authority, to identify the connection;
        `forget` when requests that passed must be judged again although rights are unchanged;
        `counted` with every tally of uses; None to count no uses."""
        self._brokers_make_topics = brokers_make_topics
        self._topics = LookedUpTopics(topics)
        self._asks = asks
        self._forget = forget
        self.rights_changed(authority, counted)

    def rights_changed(
        self, authority: ClientAuthority, counted: Callable[[Tally], None] | None = None
    ) -> None:
        """Judge by `authority` from now on, and forget all that was allowed. Uses were flushed."""
        self._authority = authority
        self.uses = None if counted is None else Uses(counted, self._forget_tallies)
        """Uses of the client; None if they are not counted."""
        # A new object, so that responses under way cannot add to it
        self._sessions = FetchSessions(self._forget)
        if self.uses is not None:
            self._sessions.topics = {}
        self.look = Allowed(
            self._may,
            self._topics.known,
            self._sessions,
            authority.allowed_topics,
            auditing=authority.auditing,
            uses=self.uses,
        )
        """First look at Produces and Fetches."""

    def _forget_tallies(self) -> None:
        self.look.forget_tallies()
        self._forget()

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
            result = yield from self._found(pending)
            if self.look is not pending.judged_by:
                continue  # rights changed meanwhile
            if not isinstance(result, TopicsUnknown):
                self._topics.forget()
                if pending.used is not None and pending.request.api_key == FETCH:
                    for use in uses_of_session(self._sessions.used):
                        note(pending.used, use)
                return result
            yield from self._look_up(result)

    def _found(self, pending: Pending) -> Stage[Found]:
        request = pending.request
        guard = GUARDS.get(request.api_key)
        if guard is None:
            return CloseReason.UNSUPPORTED_API
        authority = self._authority
        pending.used = None if self.uses is None else {}
        if self._topics.listed is not None or takes_long(request):
            stepped = SteppedAuthority(authority, self._asks, pending.used)
            steps = found_in_steps(guard, partial(self._inquiry, request, stepped))
            result: Found = yield Work(steps, len(request.content))
            return result
        self._asks()
        authority.used = pending.used
        try:
            return found(guard, self._inquiry(request, authority))
        finally:
            authority.used = None

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
