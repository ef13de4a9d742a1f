"""Rewriting of broker addresses in responses.

Rules:

- Only the bytes of addresses change; all others pass unchanged, including unknown tagged fields.
- A broker that `resolve` hides is left out. To the client, the partitions that it leads then have
  no leader, so it requests Metadata again, as during an election.
- Every address that reaches a client was returned by `resolve`.
- The only error is `BrokerFault`, whatever a broker sends.

The brokers in Metadata and DescribeCluster come first, so that the rest, which may be megabytes, is
one copy. The leader endpoints in Produce, Fetch, ShareFetch and ShareAcknowledge (KIP-951, KIP-932)
come last; see `walks`. `walks.LongFrameEndpoints` handles responses that are too long to gather.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from proxy.errors import BrokerFault
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.apis import (
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    is_flexible,
    response_body_at,
)
from proxy.wire.codec import decode, encode
from proxy.wire.items import array_position
from proxy.wire.messages import replace
from proxy.wire.metadata import check_brokers
from proxy.wire.primitives import (
    INT32,
    Malformed,
    View,
    array_length,
    int32,
    skip_string,
    skip_tags,
    string,
    uvarint,
    write_array_length,
    write_string,
    write_uvarint,
)
from proxy.wire.walks import TAGGED, Walk

Resolve = Callable[[int, str, int], tuple[str, int] | None]
"""Function `resolve(node_id, host, port)` that returns the address for clients; None to hide the
broker."""

COORDINATOR_NOT_AVAILABLE: Final = 15
"""Code of a retriable error: the client looks up its coordinator again."""
MAX_QUORUM_BYTES: Final = 1 << 21
"""Maximum size of a DescribeQuorum response in bytes: several times that of 4,000 observers and
nodes."""
BROKER_ENDPOINTS: Final = 1
"""Value of EndpointType in DescribeCluster for brokers; 2 stands for controllers (KIP-919)."""


_Found = TypeVar(
    "_Found", messages.FindCoordinatorResponse, messages.FindCoordinatorResponse.Coordinator
)


class _Node(NamedTuple):
    """Layout of a node after id, host and port, in an array of nodes."""

    flexible: bool
    rack: bool = True


_ENDPOINT: Final = _Node(flexible=True)


def rewrite(api_key: int, api_version: int, body: bytes, resolve: Resolve) -> bytes:
    """Return a response with its addresses resolved.

    `body` begins with the correlation id, after the frame's size. Only for responses for which
    `apis.carries_addresses` is true. Raises BrokerFault if the response does not parse.
    """
    try:
        return _REWRITES[api_key](body, api_version, resolve)
    except Malformed as malformed:
        raise BrokerFault(f"response of API {api_key} v{api_version}: {malformed}") from None


def _metadata(body: bytes, version: int, resolve: Resolve) -> bytes:
    flexible = is_flexible(METADATA, version)
    start = skip_tags(body, 4) if flexible else 4
    if version >= 3:  # throttle_time_ms
        start += 4
    node = _Node(flexible=flexible, rack=version >= 1)
    brokers, end = _nodes(body, start, resolve, node)
    return b"".join((body[:start], brokers, memoryview(body)[end:]))


def _describe_cluster(body: bytes, version: int, resolve: Resolve) -> bytes:
    at = response_body_at(DESCRIBE_CLUSTER, version, body)
    brokers_at = array_position(messages.DescribeClusterResponse, version, "brokers", body, at)
    check_brokers(array_length(body, brokers_at, flexible=True)[0])
    response = decode(messages.DescribeClusterResponse, version, body, at)
    brokers = []
    if response.endpoint_type == BROKER_ENDPOINTS:  # controllers cannot be reached here
        for one in response.brokers:
            if (address := resolve(one.broker_id, one.host, one.port)) is not None:
                brokers.append(replace(one, host=address[0], port=address[1]))
    return body[:at] + encode(replace(response, brokers=tuple(brokers)), version)


def _nodes(body: View, position: int, resolve: Resolve, node: _Node) -> tuple[bytes, int]:
    """Return the array of nodes at `position` rewritten, and the position after the old one."""
    count, position = array_length(body, position, node.flexible)
    check_brokers(count)
    written: list[View] = [b""]
    shown = 0
    for _ in range(count):
        id_start = position
        node_id, position = int32(body, position)
        host, position = string(body, position, node.flexible)
        port, rest = int32(body, position)
        position = rest
        if node.rack:
            position = skip_string(body, position, node.flexible)
        if node.flexible:
            position = skip_tags(body, position)
        if position > len(body):  # a skip moved it past the end
            raise Malformed("ends too early")
        address = resolve(node_id, host, port)
        if address is None:
            continue
        shown += 1
        written += (
            body[id_start : id_start + 4],
            write_string(address[0], node.flexible),
            INT32.pack(address[1]),
            body[rest:position],
        )
    written[0] = write_array_length(shown, node.flexible)
    return b"".join(written), position


def _find_coordinator(body: bytes, version: int, resolve: Resolve) -> bytes:
    at = response_body_at(FIND_COORDINATOR, version, body)
    response = decode(messages.FindCoordinatorResponse, version, body, at)
    if version < 4:
        return body[:at] + encode(_coordinator(response, resolve), version)
    coordinators = tuple(_coordinator(one, resolve) for one in pausing(response.coordinators))
    return body[:at] + encode(replace(response, coordinators=coordinators), version)


def _coordinator(found: _Found, resolve: Resolve) -> _Found:
    """Return a coordinator with its address for clients, or Kafka's `Node.noNode()` with an
    error."""
    if found.error_code == 0:
        address = resolve(found.node_id, found.host, found.port)
        if address is not None:
            return replace(found, host=address[0], port=address[1])
        found = replace(found, error_code=COORDINATOR_NOT_AVAILABLE, error_message=None)
    return replace(found, node_id=-1, host="", port=-1)


def _leader_endpoints(api_key: int, body: bytes, version: int, resolve: Resolve) -> bytes:
    walk = Walk(api_key, version)
    position = walk.advance(body, 0)
    if walk.has_no_addresses:
        return body
    if not walk.at_addresses:
        raise Malformed("ends too early")
    if api_key not in TAGGED:
        endpoints, end = _nodes(body, position, resolve, _ENDPOINT)
        return b"".join((body[:position], endpoints, body[end:]))
    size, start = uvarint(body, position)
    endpoints, end = _nodes(body, start, resolve, _ENDPOINT)
    if end != start + size:
        raise Malformed("a tagged field whose size is not that of its value")
    return b"".join((body[:position], write_uvarint(len(endpoints)), endpoints, body[end:]))


def _describe_quorum(body: bytes, version: int, _resolve: Resolve) -> bytes:
    """Empty the nodes' lists of listeners: these are controllers, which are not reachable through
    the proxy."""
    if len(body) > MAX_QUORUM_BYTES:
        raise Malformed("more bytes than any quorum needs")
    at = response_body_at(DESCRIBE_QUORUM, version, body)
    response = decode(messages.DescribeQuorumResponse, version, body, at)
    check_brokers(len(response.nodes))
    nodes = tuple(replace(one, listeners=()) for one in response.nodes)
    return body[:at] + encode(replace(response, nodes=nodes), version)


_REWRITES: Final[Mapping[int, Callable[[bytes, int, Resolve], bytes]]] = {
    PRODUCE: partial(_leader_endpoints, PRODUCE),
    FETCH: partial(_leader_endpoints, FETCH),
    METADATA: _metadata,
    FIND_COORDINATOR: _find_coordinator,
    DESCRIBE_QUORUM: _describe_quorum,
    DESCRIBE_CLUSTER: _describe_cluster,
    SHARE_FETCH: partial(_leader_endpoints, SHARE_FETCH),
    SHARE_ACKNOWLEDGE: partial(_leader_endpoints, SHARE_ACKNOWLEDGE),
}
