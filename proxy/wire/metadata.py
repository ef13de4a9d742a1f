"""Metadata responses: the brokers, and the topics without their partitions.

Metadata of a large cluster is megabytes long, and every client requests it every few minutes: its
topics are found in the bytes (`MetadataTopics`). Schema: Kafka's `MetadataResponse.json`, v0 to
v13.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.errors import BrokerFault
from proxy.wire.apis import APIS, METADATA, response_body_at
from proxy.wire.codec import decode, encode
from proxy.wire.items import Items
from proxy.wire.messages import MetadataRequest, MetadataResponse
from proxy.wire.primitives import INT32, Malformed, View, array_length

LOWEST_VERSION: Final = 1
"""Lowest version in use: v0 has neither racks nor a controller, and an empty list of topics
requests all."""
HIGHEST_VERSION: Final = APIS[METADATA].max_version
FIRST_WITH_CREATION_FLAG: Final = 4
"""First version with allow_auto_topic_creation."""
HIGHEST_PORT: Final = 65_535
MAX_BROKERS: Final = 4_000
"""Maximum number of brokers in a cluster: more than any known cluster has. Reading or rewriting so
many addresses takes some ten milliseconds, for which a worker does nothing else."""

_HOST: Final = re.compile(r"(?=.{1,255}$)[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*\.?")
"""Pattern of host names that are safe to look up and to log: ASCII without spaces, in labels no
longer than those of DNS (RFC 1035 section 2.3.4)."""


class BrokerAddress(NamedTuple):
    """Address that a broker advertises."""

    host: str
    port: int
    rack: str | None = None


def is_address(host: str, port: int) -> bool:
    """Return whether host and port are valid; those in a response may be anything."""
    return _HOST.fullmatch(host) is not None and 0 < port <= HIGHEST_PORT


class ClusterView(NamedTuple):
    """Cluster as one broker sees it."""

    brokers: Mapping[int, BrokerAddress]
    """Addresses of the brokers, by broker id."""
    controller_id: int
    """Broker id of the controller; -1 if unknown."""
    cluster_id: str | None
    """Id of the cluster; None before Metadata v2."""


def check_brokers(count: int) -> None:
    """Raise Malformed for more than `MAX_BROKERS` brokers, before any broker is read."""
    if count > MAX_BROKERS:
        raise Malformed(f"more than {MAX_BROKERS:,} brokers")


def write_request(api_version: int) -> bytes:
    """Return the body of a request for no topics."""
    creates = api_version < FIRST_WITH_CREATION_FLAG
    return encode(MetadataRequest(allow_auto_topic_creation=creates), api_version)


def parse_response(api_version: int, body: View) -> ClusterView:
    """Parse a response from after its correlation id. Raises BrokerFault."""
    content = bytes(body)
    try:
        at = response_body_at(METADATA, api_version, content, 0)
        return _view(decode(MetadataResponse, api_version, content, at))
    except Malformed as malformed:
        raise BrokerFault(f"Metadata v{api_version}: {malformed}") from None


def _view(response: MetadataResponse) -> ClusterView:
    check_brokers(len(response.brokers))
    brokers: dict[int, BrokerAddress] = {}
    for one in response.brokers:
        if one.node_id < 0 or not is_address(one.host, one.port):
            raise Malformed(f"broker {one.node_id} at {one.host[:255]!a}, port {one.port}")
        brokers[one.node_id] = BrokerAddress(host=one.host, port=one.port, rack=one.rack)
    return ClusterView(
        brokers=brokers, controller_id=response.controller_id, cluster_id=response.cluster_id
    )


FIRST_WITH_TOPIC_IDS: Final = 10
FIRST_WITH_OPERATIONS: Final = 8
"""First version with authorized operations."""
LAST_WITH_CLUSTER_OPERATIONS: Final = 10
NOT_REQUESTED: Final = INT32.pack(-0x8000_0000)
"""Value of Kafka's authorized operations when they were not requested, as bytes."""
_TOPIC_ID: Final = 16


class MetadataTopics(Items):
    """Topics of a response."""

    def __init__(self, api_version: int, body: bytes) -> None:
        """Read the topics in a response's body. Raises Malformed."""
        super().__init__(MetadataResponse, api_version, "topics", body)
        self._with_ids = api_version >= FIRST_WITH_TOPIC_IDS
        self._count_after = _TOPIC_ID * self._with_ids + (api_version >= 1)  # is_internal

    def topic_id(self, place: int) -> bytes | None:
        """Return the id of a topic, zeros if it has no id; None in versions without ids."""
        at = self.name_end(place)
        return self.content(place)[at : at + _TOPIC_ID] if self._with_ids else None

    def partition_count(self, place: int) -> int:
        """Return the number of partitions of a topic."""
        at = self.name_end(place) + self._count_after
        return array_length(self.content(place), at, self.flexible)[0]


def error_code(entry: bytes) -> int:
    """Return the error code of a topic's entry."""
    return int.from_bytes(entry[:2], signed=True)
