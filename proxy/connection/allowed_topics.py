"""First look at Produce and Fetch requests: allowed if all their topics are known to be.

No request is read whole for that, and none is refused: what a look does not allow is judged. Laws:
what was found holds until rights change; where denials are only counted, nothing is remembered.
"""

from collections.abc import Callable
from typing import Final

from proxy.acl.decision import AllowedTopics, FetchSessions
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, Basis, all_but
from proxy.connection.frames import Bytes
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

MAX_TOPICS: Final = 4_096
"""Topics that a principal at an address is remembered to write to, and to read."""
MAX_NAME_BYTES: Final = 256
"""Length of a name that is remembered, in bytes."""

May = Callable[[bool, str], bool]
"""`may(writes, topic)`: whether a topic may be written to, or read."""


class Allowed:
    """Topics that one connection may use, as of one version of the ACLs."""

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
        """`names`: of topics, by id; `topics`: what others of the same principal found, too."""
        self._may = may
        self._names = names
        self._sessions = sessions
        self._auditing = auditing
        self._topics = topics
        self._last_written = 0, b""
        """API version and topics of the last Produce that was allowed: the next has the same."""

    def look_at_start(
        self, api_version: int, data: Bytes, pos: int, at: int, end: int
    ) -> Basis | None:
        """Look at the first bytes of the Produce at `pos`: is it allowed for its one topic?

        Its client id ends at `at`. None: it is not, or this look does not suffice.
        """
        stop = only_topic(api_version, data, at, end)
        if not stop or not self._may_write(api_version, bytes(data[topics_start(at) : stop])):
            return None
        return JUDGE_EACH if self._auditing else Basis(((CORRELATED, stop - pos),))

    def whole(self, key: int, data: Bytes, pos: int, at: int, end: int) -> Basis | None:
        """Look at the frame at `pos` that ends at `end`: is all of it allowed?

        Its client id ends at `at`. None: it is not, or this look does not suffice.
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
        """Return whether a topic may be written to; `named_by` as `only_topic` finds it."""
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
