"""Topic names by topic id (KIP-516), since ACLs know names alone.

An id is given to one topic and never again, so what was learnt stays true until the topic is
deleted, whereupon nobody uses the id any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Final

from proxy.acl.decision import TopicsUnknown
from proxy.scheduling.stepped_thread import free_in_steps, pause, pausing
from proxy.wire.apis import METADATA, response_body_at
from proxy.wire.metadata_topics import Topic, parse
from proxy.wire.primitives import (
    INT16,
    INT32,
    write_array_length,
    write_null_string,
    write_string,
)

MAX_KNOWN: Final = 200_000
"""Topics of a cluster, about: when there are more, all are forgotten and learnt anew."""
_ALL: Final = -1
"""Length of an array that is null."""
_RUN: Final = 512
"""Names that are sorted at once, which takes a tenth of a millisecond."""
CLIENT_ID: Final = "reauth-proxy"

NO_ID: Final = bytes(16)
"""Kafka's `Uuid.ZERO_UUID`, which no topic has."""

_NONE: Final[frozenset[bytes]] = frozenset()
"""One for all connections: Python makes another empty one each time."""

KnownTopics = dict[bytes, str]
"""Names by id; one for all connections of a worker."""


class LookedUpTopics(Mapping[bytes, str | None]):
    """What one connection knows of topic ids; `judgement.TopicNames`."""

    __slots__ = ("known", "listed", "missing")

    def __init__(self, known: KnownTopics) -> None:
        self.known = known
        self.missing = _NONE
        """Ids that were just looked up in vain."""
        self.listed: list[str] | None = None
        """The names of all topics, in order, which were just asked for."""

    def __getitem__(self, topic_id: bytes) -> str | None:
        name = self.known.get(topic_id)
        if name is None and topic_id not in self.missing and topic_id != NO_ID:
            raise TopicsUnknown(frozenset({topic_id}))
        return name

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def learn(self, found: Mapping[bytes, str], asked: Iterable[bytes]) -> None:
        """Take the result of a lookup."""
        if len(self.known) + len(found) > MAX_KNOWN:
            self.known.clear()
        self.known.update(found)
        self.missing |= {topic_id for topic_id in asked if topic_id not in found}

    def forget(self) -> None:
        """Keep nothing of what may soon be otherwise: the request that asked for it was judged."""
        self.missing = _NONE
        self.listed = None


def lookup_request(api_version: int, correlation_id: int, ids: Iterable[bytes]) -> bytes:
    """Write a Metadata request, frame and all, for topics of these ids; flexible versions."""
    entries = [topic_id + write_null_string(flexible=True) + b"\x00" for topic_id in ids]
    topics = write_array_length(len(entries), flexible=True) + b"".join(entries)
    return _metadata_request(api_version, correlation_id, topics)


def listing_request(api_version: int, correlation_id: int) -> bytes:
    """Write the same for all topics."""
    return _metadata_request(api_version, correlation_id, write_array_length(_ALL, flexible=True))


def _metadata_request(api_version: int, correlation_id: int, topics: bytes) -> bytes:
    content = b"".join(
        (
            INT16.pack(METADATA),
            INT16.pack(api_version),
            INT32.pack(correlation_id),
            write_string(CLIENT_ID, flexible=False),
            b"\x00",  # no tags
            topics,
            b"\x00\x00\x00",  # make no topics, tell no operations, no tags
        )
    )
    return INT32.pack(len(content)) + content


def found_topics(api_version: int, content: bytes) -> dict[bytes, str]:
    """Return the names by id in a Metadata response, from behind its size. Raises Malformed."""
    topics = _topics(api_version, content)
    return {one.topic_id: one.name for one in topics if one.topic_id and one.name is not None}


def listed_topics(api_version: int, content: bytes) -> list[str]:
    """Return the names in such a response, in order. Raises Malformed."""
    topics = _topics(api_version, content)
    free_in_steps(topics)
    names = [one.name for one in pausing(topics) if one.name is not None]
    runs = []
    for at in range(0, len(names), _RUN):
        pause()
        runs.append(sorted(names[at : at + _RUN]))
    return list(pausing(merge(*runs)))


def _topics(api_version: int, content: bytes) -> list[Topic]:
    at = response_body_at(METADATA, api_version, content)
    return parse(api_version, content[at:]).topics
