"""Contract between guards and the connection: the possible judgements of a request.

A guard is given one whole request and says one of these. It never sees sockets, sessions or
queues; the connection never knows what an API means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.acl.model import Operation, ResourceType
from proxy.errors import ProxyError
from proxy.scheduling.stepped_thread import pausing

BodyTransform = Callable[[bytes], bytes]
"""From the body of the broker's response (behind its header) to the one that the client gets.
Raises BrokerFault or `wire.primitives.Malformed` if it does not parse."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Everything is allowed: the request passes as it came, and so does its response."""


FORWARD: Final = Forward()


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers with this response body; the broker hears nothing of it."""

    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A part passes, or what comes back must be cut."""

    request: bytes | None = None
    """The body to send in place of the client's; None: the client's own."""
    api_version: int | None = None
    """The version of that body; None: the client's own. Both must have the same header."""
    response: BodyTransform | None = None
    """What is done to the response's body; None: it passes as it came."""
    watch: Callable[[bytes], None] | None = None
    """Told the beginning of the response, from behind the frame's size; None: nobody is."""
    close: bool = False
    """Close the connection afterwards: Kafka's answer to a denied Produce with acks=0."""


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing passes and there is no answer: Produce with acks=0, denied as a whole."""


Judgement = Forward | Answer | Change | Close


class Authority(Protocol):
    """One principal at one address: what it may do, as of one version of the ACLs.

    With `authorizer.mode: audit` every question is answered with yes, and what would have been
    denied is told to the observer.
    """

    @property
    def auditing(self) -> bool:
        """Whether denials are only counted: the answers must then not be remembered."""
        ...

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Whether it may do this. `report`: a denial is counted and logged; False where a list
        is merely cut to what may be seen, as in Kafka."""
        ...

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether it may do this to any one resource of the type (`authorizeByResourceType`)."""
        ...

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        beginning: str,
        *,
        report: bool = True,
    ) -> bool:
        """Whether it may, for certain, do this to every resource whose name begins so, be there
        any or not; `""` is all of the type."""
        ...

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field: bit N is the operation of code N."""
        ...


@dataclass(frozen=True, slots=True)
class AllowedTopics:
    """Topics that a principal at an address may write and read, in the bytes that name them.

    One for all its connections: they may be thousands, and each may use hundreds of topics.
    """

    written: set[tuple[int, bytes]] = field(default_factory=set)
    """API version of a Produce, and what `only_topic` finds in it."""
    read: set[tuple[int, bytes]] = field(default_factory=set)
    """Whether the topic is named by its id, and name or id."""


class ClientAuthority(Authority, Protocol):
    """One principal at one address, whose requests to the proxy itself are judged as well."""

    @property
    def allowed_topics(self) -> AllowedTopics:
        """What connections found to be allowed by the ACLs that apply now; another one when they
        change, and never filled while auditing."""
        ...

    def may_administer(self, operation: Operation) -> bool:
        """Whether it may do this to ACLs, quotas and users, which is to do it to the cluster.

        Judged with `authorizer.mode: audit`, too: who may change rights while nobody is held to
        any has every right from then on.
        """
        ...


TopicNames = Mapping[bytes, str | None]
"""Names by topic id (16 bytes). None: no topic has this id. Raises `TopicsUnknown` for ids that
have not been asked for yet."""


class TopicsUnknown(ProxyError):
    """Topics must be looked up before the request can be judged; it is then judged anew."""

    def __init__(self, ids: frozenset[bytes]) -> None:
        super().__init__(f"{len(ids)} topic ids are not known")
        self.ids = ids


class TopicsUnlisted(TopicsUnknown):
    """The names of all topics are needed before the request can be judged, anew."""

    def __init__(self) -> None:
        super().__init__(frozenset())


def names_of(topics: TopicNames, ids: Iterable[bytes]) -> dict[bytes, str | None]:
    """Return the names of several topics. Raises `TopicsUnknown` for all that are not known."""
    names, unknown = {}, set[bytes]()
    for topic_id in pausing(ids):
        try:
            names[topic_id] = topics[topic_id]
        except TopicsUnknown as topic:
            unknown |= topic.ids
    if unknown:
        raise TopicsUnknown(frozenset(unknown))
    return names


class FetchSessions:
    """The fetch sessions in which everything is allowed on one connection."""

    __slots__ = ("_ended", "_known")

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        """`ended` is called when one of them is no more."""
        self._ended = ended
        self._known: set[int] | None = None
        """None: there was none yet, which is the case on most connections."""

    def __contains__(self, session: object) -> bool:
        return self._known is not None and session in self._known

    def add(self, session: int) -> None:
        """Know one more session."""
        if self._known is None:
            self._known = set()
        self._known.add(session)

    def discard(self, session: int) -> None:
        """Know a session no more, if it was known."""
        if self._known is not None and session in self._known:
            self._known.discard(session)
            self._ended()

    def clear(self) -> None:
        """Know none any more."""
        if self._known:
            self._known.clear()
            self._ended()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """One request to be judged."""

    api_version: int
    body: bytes
    """What stands behind the request's header."""
    authority: Authority
    topics: TopicNames
    listed: Sequence[str] | None = None
    """The names of all topics, in order, as of now; None: whoever needs them raises
    `TopicsUnlisted`."""
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    """The fetch sessions of this connection (KIP-227) in which everything is allowed as of now."""
    brokers_make_topics: bool = True
    """Whether Metadata makes topics that are missing: the brokers' `auto.create.topics.enable`."""


Guard = Callable[[Inquiry], Judgement]
"""Judges the requests of one API, in all versions the proxy offers. Raises `Malformed` or
ClientFault where the body does not parse."""
