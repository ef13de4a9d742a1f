"""Uses of one connection: which operations its requests did on which resources, and how often.

Rules:

- Requests with the same uses share a `Tally`; fingerprints refer to it, so that a request that is
  recognized adds to it and nothing is looked up.
- Every tally is flushed: at the end of an interval, before the client's rights change, and when the
  connection closes. What refers to tallies is then forgotten, so that none is counted afterwards.
- A request is counted once, when its verdict is known, however often it was judged. What its
  response is judged by afterwards is not counted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, final

from proxy.acl.decision import FURTHER, MAX_TOPICS_OF_A_SESSION, Used, code_of
from proxy.acl.model import Operation, ResourceType

MAX_USES: Final = 1_024
"""Maximum number of uses in all tallies of a connection; when it is reached, all are flushed."""

Topics = tuple[int, tuple[bytes, ...]]
"""Kind of a request, and the bytes that name its topics."""
MAX_REMEMBERED: Final = 16
"""Maximum number of `Uses.by_topics`."""
MAX_TOPIC_BYTES: Final = 512
"""Maximum length of each of them, in bytes."""


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

    def count(self, used: Iterable[Used], size: int, now: float) -> Tally:
        """Count a request with these uses; return its tally."""
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
