"""Contract between guards and the connection: the possible judgements of a request.

A guard receives one whole request and returns a `Judgement`. It uses no sockets, sessions or
queues, and the connection knows nothing about individual APIs.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.errors import ProxyError
from proxy.scheduling.steps import pausing
from proxy.wire.codec import decode, encode
from proxy.wire.schema import Message

M = TypeVar("M", bound=Message)

BodyTransform = Callable[[bytes], bytes]
"""Function that maps the body of the broker's response (after its header) to the body for the
client. Raises BrokerFault or `wire.primitives.Malformed` if the response does not parse."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Judgement that allows everything: the request and its response pass unchanged."""


FORWARD: Final = Forward()


class Answer(NamedTuple):
    """Judgement that the proxy responds with this body and does not forward the request."""

    body: bytes


class Change(NamedTuple):
    """Judgement that changes the request, the response, or both."""

    request: bytes | None = None
    """Body to send in place of the client's; None to send the client's own."""
    api_version: int | None = None
    """Version of that body; None for the client's own. Both must have the same header."""
    response: BodyTransform | None = None
    """Transformation of the response's body; None to pass it unchanged."""
    watch: Callable[[bytes], None] | None = None
    """Callback for the first bytes of the response, after the frame's size; None if not needed."""
    close: bool = False
    """True to close the connection afterwards, as Kafka does after a denied Produce with acks=0."""


@dataclass(frozen=True, slots=True)
class Close:
    """Judgement that closes the connection without a response, for a Produce with acks=0 whose
    topics are all denied."""


Judgement = Forward | Answer | Change | Close


class Authority(Protocol):
    """Permissions of one client at one address.

    With `authorizer.mode: audit` every check is allowed, and denials that would have happened are
    reported to the observer.
    """

    @property
    def auditing(self) -> bool:
        """True if denials are only counted: results must then not be cached."""

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Return whether the operation is allowed. `report` counts and logs a denial; it is False
        if the check only filters a list, as in Kafka."""

    def permits(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the ACLs allow the operation, also in audit mode: for a permission that
        suffices in place of another one, which is checked next. A denial is not reported."""

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        """Return whether the operation is allowed on each of these resources, to filter a list:
        denials are not reported."""

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the operation is allowed on any resource of the type
        (`authorizeByResourceType`)."""

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        """Return the bit field of `operations` for each of these resources."""

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        """Return the result of `cut`, or the cached one for the same content.

        The result must depend only on `content`, `key` and the client's permissions.
        """

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        """Return whether the operation is certainly allowed on every resource whose name has this
        prefix, existing or not; `""` stands for all resources of the type."""

    def may_administer(self, operation: Operation) -> bool:
        """Return whether the client may do the operation on ACLs, quotas and users: a permission on
        the cluster.

        Also enforced with `authorizer.mode: audit`: otherwise a client could grant itself
        permissions that still apply when enforcement begins.
        """

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field: bit N is the operation with code N."""


@dataclass(frozen=True, slots=True)
class AllowedTopics:
    """Topics that a client at an address may write and read, as the bytes that name them.

    All connections of the same client share one object: there may be thousands of them, each with
    hundreds of topics.
    """

    written: set[tuple[int, bytes]] = field(default_factory=set)
    """Pairs of a Produce's API version and the bytes that `only_topic` finds in it."""
    read: set[tuple[int, bytes]] = field(default_factory=set)
    """Pairs of a flag, True if the topic is named by its id, and the name or id."""


Used = tuple[int, str]
"""Use of a resource: `code_of` it and the operation; and its name, as in `Denial`."""
FURTHER: Final[Used] = 0, ""
"""Stands for the uses of a request beyond `MAX_USES_OF_A_REQUEST`, together."""
MAX_TOPICS_OF_A_SESSION: Final = 1_000
"""Maximum number of topics of a fetch session that are counted as used; the first ones."""
MAX_USES_OF_A_REQUEST: Final = MAX_TOPICS_OF_A_SESSION
"""Maximum number of uses of one request that are counted separately."""


def code_of(resource_type: ResourceType, operation: Operation) -> int:
    """Return both as one integer, because enumeration members are slow as keys."""
    return resource_type << 4 | operation


def note(used: dict[Used, None], use: Used) -> None:
    """Add a use to those of a request."""
    used[use if len(used) < MAX_USES_OF_A_REQUEST else FURTHER] = None


class ClientAuthority(Authority, Protocol):
    """Permissions of one client at one address, with the topics that its connections have
    checked."""

    used: dict[Used, None] | None
    """Uses of the request that is being judged: checks that are allowed add to them, except those
    that filter a list. None if they are not counted."""

    @property
    def allowed_topics(self) -> AllowedTopics:
        """Topics that the ACLs in force allow, as far as connections have checked them. Replaced
        when the ACLs change, and never filled in audit mode."""


TopicNames = Mapping[bytes, str | None]
"""Topic names by topic id (16 bytes); None if no topic has the id. Raises `TopicsUnknown` for ids
that have not been looked up yet."""


class TopicsUnknown(ProxyError):
    """The request names topic ids that must be looked up; judge it again afterwards."""

    def __init__(self, ids: frozenset[bytes]) -> None:
        super().__init__(f"{len(ids)} topic ids are not known")
        self.ids = ids
        """Topic ids that must be looked up."""


class TopicsUnlisted(TopicsUnknown):
    """The request needs the names of all topics; judge it again once they are loaded."""

    def __init__(self) -> None:
        super().__init__(frozenset())


def names_of(topics: TopicNames, ids: Iterable[bytes]) -> dict[bytes, str | None]:
    """Return the names of several topics. Raises `TopicsUnknown` with all unknown ids."""
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
    """Fetch sessions of one connection in which every topic is allowed."""

    __slots__ = ("_ended", "_known", "topics", "used")

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        """Create an empty set; `ended` is called whenever sessions are removed from it."""
        self._ended = ended
        self._known: set[int] | None = None
        """Ids of the sessions; None before the first one, as on most connections."""
        self.topics: Mapping[str, None] | None = None
        """Topics that requests have named in the current session, replaced when it gets more; None
        if nobody counts uses."""
        self.used: Collection[str] = ()
        """Topics of the session that the last judged request continued; empty if it did not."""

    def __contains__(self, session: object) -> bool:
        return self._known is not None and session in self._known

    def add(self, session: int, topics: Iterable[str] = ()) -> None:
        """Add a session with these topics."""
        if self._known is None:
            self._known = set()
        self._known.add(session)
        if self.topics is not None:
            self.topics = dict.fromkeys(islice(topics, MAX_TOPICS_OF_A_SESSION))

    def add_topics(self, names: Iterable[str]) -> Mapping[str, None]:
        """Add topics to the current session; return all of them.

        Fingerprints of requests that continue it are then forgotten, as after its end.
        """
        topics = self.topics or {}
        new = dict.fromkeys(name for name in names if name not in topics)
        if new and len(topics) < MAX_TOPICS_OF_A_SESSION:
            more = islice(new, MAX_TOPICS_OF_A_SESSION - len(topics))
            self.topics = topics = {**topics, **dict.fromkeys(more)}
            self._ended()
        return topics

    def discard(self, session: int) -> None:
        """Remove a session, if it is known."""
        if self._known is not None and session in self._known:
            self._known.discard(session)
            self._ended()

    def clear(self) -> None:
        """Remove all sessions."""
        if self._known:
            self._known.clear()
            self._ended()


def changing(version: int, kind: type[M], change: Callable[[M], M]) -> BodyTransform:
    """Return a transformation that applies `change` to the broker's response. An unchanged response
    is not encoded again."""

    def transform(body: bytes) -> bytes:
        response = decode(kind, version, body)
        changed = change(response)
        return body if changed is response else encode(changed, version)

    return transform


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Request to be judged, with its context."""

    api_version: int
    """Version of the request."""
    body: bytes
    """Body of the request, after its header."""
    authority: Authority
    """Permissions of the client that sent it."""
    topics: TopicNames
    """Names of the topic ids that were looked up."""
    listed: Sequence[str] | None = None
    """Current names of all topics, sorted; None if they are not loaded: guards that need them raise
    `TopicsUnlisted`."""
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    """Fetch sessions of this connection (KIP-227) in which every topic is allowed now."""
    brokers_make_topics: bool = True
    """True if Metadata creates missing topics: the brokers' `auto.create.topics.enable`."""

    def read(self, kind: type[M]) -> M:
        """Return the decoded request. Raises Malformed."""
        return decode(kind, self.api_version, self.body)

    def encoded(self, message: Message) -> bytes:
        """Return a request or response in the version of the request."""
        return encode(message, self.api_version)

    def answer(self, response: Message) -> Answer:
        """Return the judgement that the proxy answers with this response."""
        return Answer(self.encoded(response))

    def on_response(self, kind: type[M], change: Callable[[M], M]) -> BodyTransform:
        """Return a transformation that applies `change` to the broker's response."""
        return changing(self.api_version, kind, change)

    def may_cluster(self, operation: Operation, *, report: bool = True) -> bool:
        """Return whether the operation is allowed on the cluster."""
        return self.authority.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, report=report)

    def cluster_permits(self, operation: Operation) -> bool:
        """Return whether a permission on the cluster suffices in place of others, which are
        checked if it is missing."""
        return self.authority.permits(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_topic(self, operation: Operation, name: str, *, report: bool = True) -> bool:
        """Return whether the operation is allowed on a topic."""
        return self.authority.may(operation, ResourceType.TOPIC, name, report=report)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Return whether the operation is allowed on a group."""
        return self.authority.may(operation, ResourceType.GROUP, name)

    def may_transact(self, operation: Operation, name: str, *, report: bool = True) -> bool:
        """Return whether the operation is allowed on a transactional id."""
        return self.authority.may(operation, ResourceType.TRANSACTIONAL_ID, name, report=report)

    def may_describe(self, topic: str) -> bool:
        """Return whether a topic may be listed. A denial is not reported."""
        return self.may_topic(Operation.DESCRIBE, topic, report=False)

    def may_describe_all(self, topics: Iterable[str]) -> bool:
        """Return whether all of these topics may be described. Every denial is reported."""
        denied = [name for name in set(topics) if not self.may_topic(Operation.DESCRIBE, name)]
        return not denied


Guard = Callable[[Inquiry], Judgement]
"""Function that judges the requests of one API, in all versions that the proxy offers. Raises
`Malformed` or ClientFault if the body does not parse, and `TopicsUnknown` if names are missing."""
