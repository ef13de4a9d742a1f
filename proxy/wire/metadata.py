"""Metadata for the proxy's own use: the brokers, without topics.

Written by hand for the reason given in `api_versions`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.errors import BrokerFault
from proxy.wire.apis import APIS, METADATA, is_flexible
from proxy.wire.primitives import (
    Malformed,
    View,
    array_length,
    int32,
    nullable_string,
    skip_tags,
    string,
    write_array_length,
)

LOWEST_VERSION: Final = 1
"""Lowest version in use: v0 has neither racks nor a controller, and an empty list of topics
requests all."""
HIGHEST_VERSION: Final = APIS[METADATA].max_version
HIGHEST_PORT: Final = 65_535
MAX_BROKERS: Final = 4_000
"""Maximum number of brokers in a cluster: more than any known cluster has. Reading or rewriting so
many addresses takes some ten milliseconds, for which a worker does nothing else."""

_HOST: Final = re.compile(r"(?=.{1,255}$)[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*\.?")
"""Pattern of host names that are safe to look up and to log: ASCII without spaces, in labels no
longer than those of DNS (RFC 1035 section 2.3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Address that a broker advertises."""

    host: str
    port: int
    rack: str | None = None


def is_address(host: str, port: int) -> bool:
    """Return whether host and port are valid; those in a response may be anything."""
    return _HOST.fullmatch(host) is not None and 0 < port <= HIGHEST_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Cluster as one broker sees it."""

    brokers: Mapping[int, BrokerAddress]
    """Addresses of the brokers, by broker id."""
    controller_id: int
    """Broker id of the controller; -1 if unknown."""
    cluster_id: str | None
    """Id of the cluster; None before Metadata v2."""


def check_brokers(count: int) -> None:
    """Raise Malformed for more than `MAX_BROKERS` brokers, before any of them is read."""
    if count > MAX_BROKERS:
        raise Malformed(f"more than {MAX_BROKERS:,} brokers")


def write_request(api_version: int) -> bytes:
    """Return the body of a request for no topics."""
    flexible = is_flexible(METADATA, api_version)
    body = write_array_length(0, flexible)
    if api_version >= 4:
        body += b"\x00"  # allow_auto_topic_creation
    if 8 <= api_version <= 10:
        body += b"\x00"  # include_cluster_authorized_operations
    if api_version >= 8:
        body += b"\x00"  # include_topic_authorized_operations
    return body + b"\x00" if flexible else body


def parse_response(api_version: int, body: View) -> ClusterView:
    """Parse a response from after its correlation id. Raises BrokerFault."""
    try:
        return _parse(api_version, body)
    except Malformed as malformed:
        raise BrokerFault(f"Metadata v{api_version}: {malformed}") from None


def _parse(api_version: int, body: View) -> ClusterView:
    flexible = is_flexible(METADATA, api_version)
    position = skip_tags(body, 0) if flexible else 0
    if api_version >= 3:
        position += 4  # throttle_time_ms
    count, position = array_length(body, position, flexible)
    check_brokers(count)
    brokers: dict[int, BrokerAddress] = {}
    for _ in range(count):
        broker_id, position = int32(body, position)
        host, position = string(body, position, flexible)
        port, position = int32(body, position)
        rack, position = nullable_string(body, position, flexible)
        if flexible:
            position = skip_tags(body, position)
        if broker_id < 0 or not is_address(host, port):
            raise Malformed(f"broker {broker_id} at {host[:255]!a}, port {port}")
        brokers[broker_id] = BrokerAddress(host=host, port=port, rack=rack)
    cluster_id = None
    if api_version >= 2:
        cluster_id, position = nullable_string(body, position, flexible)
    controller_id, _ = int32(body, position)
    return ClusterView(brokers=brokers, controller_id=controller_id, cluster_id=cluster_id)
