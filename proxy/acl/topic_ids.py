"""Topic names by topic id (KIP-516), because ACLs contain only names.

An id is assigned to one topic and never again, so a known name stays valid until the topic is
deleted, after which the id is no longer used.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Final

from proxy.acl.decision import TopicsUnknown
from proxy.scheduling.steps import pause, pausing
from proxy.wire.apis import METADATA, response_body_at
from proxy.wire.codec import encode
from proxy.wire.messages import MetadataRequest
from proxy.wire.metadata import MetadataTopics
from proxy.wire.request import CLIENT_ID, request_frame
from proxy.wire.schema import NO_ID

MAX_KNOWN: Final = 200_000
"""Maximum number of known topic ids, about the number of topics of a large cluster. When it is
reached, all are dropped and looked up again."""
_RUN: Final = 512
"""Number of names that are sorted at once, which takes a tenth of a millisecond."""

_NONE: Final[frozenset[bytes]] = frozenset()
"""Empty set, shared by all connections because Python would create a new one each time."""

KnownTopics = dict[bytes, str]
"""Topic names by id; one mapping for all connections of a worker."""


class LookedUpTopics(Mapping[bytes, str | None]):
    """Topic ids as one connection sees them; `decision.TopicNames`."""

    __slots__ = ("known", "listed", "missing")

    def __init__(self, known: KnownTopics) -> None:
        self.known = known
        """Topic names by id, shared by all connections of the worker."""
        self.missing = _NONE
        """Topic ids that were looked up without success."""
        self.listed: list[str] | None = None
        """Names of all topics, sorted; None if they were not requested for the current request."""

    def __getitem__(self, topic_id: bytes) -> str | None:
        name = self.known.get(topic_id)
        if name is None and topic_id not in self.missing and topic_id != NO_ID:
            raise TopicsUnknown(frozenset({topic_id}))
        return name

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def learn(self, found: Mapping[bytes, str], requested: Iterable[bytes]) -> None:
        """Store the result of a look-up of the ids in `requested`."""
        if len(self.known) + len(found) > MAX_KNOWN:
            self.known.clear()
        self.known.update(found)
        self.missing |= {topic_id for topic_id in requested if topic_id not in found}

    def forget(self) -> None:
        """Drop results that may change. Called when the request that needed them is judged."""
        self.missing = _NONE
        self.listed = None


def lookup_request(api_version: int, correlation_id: int, ids: Iterable[bytes]) -> bytes:
    """Return a Metadata request frame for the topics with these ids, in a flexible version."""
    topic = MetadataRequest.MetadataRequestTopic
    topics = tuple(topic(topic_id=one, name=None) for one in ids)
    return _metadata_request(api_version, correlation_id, topics)


def listing_request(api_version: int, correlation_id: int) -> bytes:
    """Return a Metadata request frame for all topics."""
    return _metadata_request(api_version, correlation_id, None)


def _metadata_request(
    api_version: int,
    correlation_id: int,
    topics: tuple[MetadataRequest.MetadataRequestTopic, ...] | None,
) -> bytes:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    body = encode(request, api_version)
    return request_frame(METADATA, api_version, correlation_id, CLIENT_ID, body)


def found_topics(api_version: int, content: bytes) -> dict[bytes, str]:
    """Return the names by id in a Metadata response, from after its size. Raises Malformed."""
    topics = _topics(api_version, content)
    ids = ((topics.topic_id(place), name) for place, name in enumerate(topics.names))
    return {topic_id: name for topic_id, name in ids if topic_id and name is not None}


def listed_topics(api_version: int, content: bytes) -> list[str]:
    """Return the names in such a response, sorted. Raises Malformed."""
    topics = _topics(api_version, content)
    names = [name for name in pausing(topics.names) if name is not None]
    runs = []
    for at in range(0, len(names), _RUN):
        pause()
        runs.append(sorted(names[at : at + _RUN]))
    return list(pausing(merge(*runs)))


def _topics(api_version: int, content: bytes) -> MetadataTopics:
    at = response_body_at(METADATA, api_version, content)
    return MetadataTopics(api_version, content[at:])
