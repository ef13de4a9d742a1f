"""Authorization stage: each request judged by its API's guard.

Laws:

- A request is judged by the ACLs that apply now.
- What was found to be allowed is remembered by its bytes, and forgotten when rights change.
- What is long is judged in steps (`proxy.connection.long_work`): the client waits, nobody else
  does.
- Topics that are named by an id, and the names of all, are looked up on the connection's own way
  to the broker: the client waits, nobody else does, and it costs no connection.
"""

from collections.abc import Callable
from functools import partial
from sys import maxsize
from typing import Final

from proxy.acl.decision import (
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
from proxy.connection.allowed_topics import Allowed
from proxy.connection.commands import Ask, CloseReason, Pending, Stage, Work
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
from proxy.wire.primitives import Malformed
from proxy.wire.request import Request

MAX_LOOKED_UP: Final = 1_000
"""Ids in one question: reading the answer takes some ten milliseconds, be there many partitions."""
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
        # new ones: answers under way shall not add to them
        self._sessions = FetchSessions(self._forget)
        self.look = Allowed(
            self._may,
            self._topics.known,
            self._sessions,
            authority.allowed_topics,
            auditing=authority.auditing,
        )
        """First look at Produces and Fetches, which reads no request whole."""

    @property
    def auditing(self) -> bool:
        """Return whether denials are only counted: what is allowed must then not be remembered."""
        return self._authority.auditing

    def may_administer(self, operation: Operation) -> bool:
        """Return whether its principal may do this to the cluster."""
        self._asks()
        return self._authority.may_administer(operation)

    def _may(self, writes: bool, topic: str) -> bool:
        self._asks()
        authority, operation = self._authority, Operation.WRITE if writes else Operation.READ
        report = authority.auditing  # else the guard is asked again, and reports
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

    # Topics that are named by an id, or not at all

    def _look_up(self, unknown: TopicsUnknown) -> Stage[None]:
        """Ask the broker for the names of topics; for as many at once as an answer may be about.

        If it cannot be asked, nobody can name a topic by its id, and none is listed.
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
