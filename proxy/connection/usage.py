"""Uses of one connection: which operations its requests did on which resources, and how often.

Rules:

- Requests with the same uses share a `Tally`; fingerprints refer to it, so that a request that is
  recognized adds to it and nothing is looked up.
- Every tally is flushed: at the end of an interval, before the client's rights change, and when the
  connection closes. What refers to tallies is then forgotten, so that none is counted afterwards.
- A request is counted once, when its verdict is known, however often it was judged. What its
  response is judged by afterwards is not counted.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, final

from proxy.acl.decision import MAX_TOPICS_OF_A_SESSION, Authority
from proxy.acl.model import CLUSTER_NAME, WILDCARD, Operation, ResourceType
from proxy.scheduling.stepped_thread import pause

Used = tuple[int, str]
"""Use of a resource: `code_of` it and the operation; and its name, as in `Denial`."""
FURTHER: Final[Used] = 0, ""
"""Stands for the uses of a request beyond `MAX_USES_OF_A_REQUEST`, together."""
MAX_USES: Final = 1_024
"""Maximum number of uses in all tallies of a connection; when it is reached, all are flushed."""
MAX_USES_OF_A_REQUEST: Final = MAX_TOPICS_OF_A_SESSION
"""Maximum number of uses of one request that are counted separately."""

Topics = tuple[int, tuple[bytes, ...]]
"""Kind of a request, and the bytes that name its topics."""
MAX_REMEMBERED: Final = 16
"""Maximum number of `Uses.by_topics`."""
MAX_TOPIC_BYTES: Final = 512
"""Maximum length of each of them, in bytes."""
_NAMES_AT_ONCE: Final = 64
"""Number of names that are checked between two pauses, in tens of microseconds."""


def code_of(resource_type: ResourceType, operation: Operation) -> int:
    """Return both as one integer, because enumeration members are slow as keys."""
    return resource_type << 4 | operation


def uses_of_session(topics: Collection[str]) -> list[Used]:
    """Return the uses of a Fetch that continues a session with these topics, or more."""
    used = [(READ_TOPIC, name) for name in topics]
    if len(used) >= MAX_TOPICS_OF_A_SESSION:
        used.append(FURTHER)
    return used


READ_TOPIC: Final = code_of(ResourceType.TOPIC, Operation.READ)
WRITE_TOPIC: Final = code_of(ResourceType.TOPIC, Operation.WRITE)


@final
class Tally:
    """Count of requests that have the same uses."""

    __slots__ = ("bytes", "count", "first_at", "last_at", "used")

    def __init__(self, used: tuple[Used, ...]) -> None:
        self.used = used
        self.count = self.bytes = 0
        """Number and size of the requests."""
        self.first_at = self.last_at = 0.0
        """Time of the first and the last, in monotonic seconds; 0 before the first."""

    def add(self, count: int, size: int, now: float) -> None:
        """Add requests of `size` bytes together."""
        if self.count == 0:
            self.first_at = now
        self.last_at = now
        self.count += count
        self.bytes += size


@final
class Uses:
    """Tallies of one connection."""

    __slots__ = ("_flushed", "_forget", "_held", "_tallies", "by_topics", "session")

    def __init__(self, flushed: Callable[[Tally], None], forget: Callable[[], None]) -> None:
        """`flushed` receives every tally that is not empty; `forget` makes the connection forget
        everything that refers to one."""
        self._flushed = flushed
        self._forget = forget
        self._tallies: dict[tuple[Used, ...], Tally] = {}
        self._held = 0
        self.by_topics: dict[Topics, Tally] = {}
        """Tallies of repeated requests, so that no name is decoded again."""
        self.session: Mapping[str, None] | None = None
        """Topics of the fetch session that `by_topics` is about."""

    def count(self, judged: "RequestAuthority", size: int, now: float) -> Tally | None:
        """Count a request that was judged; return its tally, or None if it has no uses."""
        used, judged.used = judged.used, None
        if not used:
            return None
        tally = self.of(tuple(used))
        tally.add(1, size, now)
        return tally

    def of(self, used: tuple[Used, ...]) -> Tally:
        """Return the tally of requests with these uses."""
        tally = self._tallies.get(used)
        if tally is None:
            if self._held and self._held + len(used) > MAX_USES:
                self.flush()
            tally = self._tallies[used] = Tally(used)
            self._held += len(used)
        return tally

    def remember(self, topics: Topics, tally: Tally) -> Tally:
        """Remember the tally of requests with these topics, and return it."""
        if sum(map(len, topics[1])) <= MAX_TOPIC_BYTES:
            if len(self.by_topics) >= MAX_REMEMBERED:
                self.by_topics.clear()
            self.by_topics[topics] = tally
        return tally

    def flush(self) -> int:
        """Hand over all tallies, and begin again; return the number of uses in them."""
        held = self._held
        tallies, self._tallies, self._held = self._tallies, {}, 0
        self.by_topics.clear()
        for tally in tallies.values():
            if tally.count:
                self._flushed(tally)
        if tallies:
            self._forget()
        return held


@final
class RequestAuthority:
    """Authority of one request, for `Uses` and for requests that are judged in steps.

    It collects what it allows, except checks that filter a list. In steps it pauses between
    questions, so that other connections can ask theirs.
    """

    __slots__ = ("_asks", "_authority", "used")

    def __init__(
        self, authority: Authority, asks: Callable[[], None] | None, *, counts: bool = False
    ) -> None:
        """`asks` is called before each question to the authority, to identify the connection; None
        if the request is not judged in steps."""
        self._authority = authority
        self._asks = asks
        self.used: dict[Used, None] | None = {} if counts else None
        """Uses of the request; None if they are not counted, or were counted already."""

    @property
    def auditing(self) -> bool:
        """True if denials are only counted."""
        return self._authority.auditing

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Return whether the client may do this."""
        self._begin()
        allowed = self._authority.may(operation, resource_type, name, report=report)
        if allowed and report:
            self._add((code_of(resource_type, operation), name))
        return allowed

    def permits(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the ACLs allow this, also in audit mode."""
        self._begin()
        allowed = self._authority.permits(operation, resource_type, name)
        if allowed:
            self._add((code_of(resource_type, operation), name))
        return allowed

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        """Return whether the client may do this to each of these resources."""
        decided: list[bool] = []
        for some in self._parts(names):
            decided += self._authority.may_each(operation, resource_type, some)
        return decided

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        """Return the authorized-operations bit field for each of these resources."""
        found: list[int] = []
        for some in self._parts(names):
            found += self._authority.operations_each(resource_type, some)
        return found

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        """Return the result of `cut` for `content`, which may be cached."""
        return self._authority.reused(key, content, cut)

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may do this to any resource of the type."""
        self._begin()
        allowed = self._authority.may_any(operation, resource_type)
        if allowed:
            self._add((code_of(resource_type, operation), WILDCARD))
        return allowed

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        """Return whether the client may do this to all resources whose names have the prefix."""
        self._begin()
        allowed = self._authority.may_every(operation, resource_type, name_prefix, report=report)
        if allowed and report:
            self._add((code_of(resource_type, operation), name_prefix + WILDCARD))
        return allowed

    def may_administer(self, operation: Operation) -> bool:
        """Return whether the client may do this to ACLs, quotas and users."""
        self._begin()
        allowed = self._authority.may_administer(operation)
        if allowed:
            self._add((code_of(ResourceType.CLUSTER, operation), CLUSTER_NAME))
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field."""
        self._begin()
        return self._authority.operations(resource_type, name)

    def _begin(self) -> None:
        if self._asks is not None:
            pause()
            self._asks()

    def _parts(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        if self._asks is None:
            yield names
            return
        for at in range(0, len(names), _NAMES_AT_ONCE):
            pause()
            yield names[at : at + _NAMES_AT_ONCE]

    def note_each(self, uses: Iterable[Used]) -> None:
        """Add several uses."""
        for use in uses:
            self._add(use)

    def _add(self, use: Used) -> None:
        if self.used is not None:
            self.used[use if len(self.used) < MAX_USES_OF_A_REQUEST else FURTHER] = None
