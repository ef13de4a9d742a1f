"""ApiVersions answers: what the broker offers, cut down to what the proxy understands.

Laws:

- Responses are encoded once per broker view and version; a request takes one copy.
- A version that is too new is answered in v0 with UNSUPPORTED_VERSION and ApiVersions' own range,
  so that the client knows which version to try next (KIP-511).
- A client that means another broker than it reached is answered REBOOTSTRAP_REQUIRED, as far as it
  is known which broker that is (KIP-1242).
- The broker's features are passed on: clients base the transaction protocol on them (KIP-890).

Written by hand, and not with kio, because every worker needs it at its start, where kio would take
16 MiB of memory and a quarter of a second; tests compare it with kio.
"""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, final

from proxy.errors import BrokerFault, ClientFault
from proxy.wire.apis import API_VERSIONS, APIS, Versions, offers
from proxy.wire.primitives import (
    INT16,
    INT32,
    INT64,
    Malformed,
    View,
    array_length,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    skip_tags,
    string,
    uvarint,
    write_array_length,
    write_null_string,
    write_string,
    write_uvarint,
)

FIRST_FLEXIBLE: Final = APIS[API_VERSIONS].first_flexible
FIRST_WITH_ALL_FEATURES: Final = 4
"""First version with all features: older ones omit features whose minimum version is 0 (KIP-1022),
because clients treated it as an error."""
FIRST_WITH_IDS: Final = 5
"""First version whose request has the cluster and node that the client means (KIP-1242)."""
HIGHEST_VERSION: Final = APIS[API_VERSIONS].max_version

UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
REBOOTSTRAP_REQUIRED: Final = 129

NO_NODE: Final = -1
"""Node id of a client that does not know which node it means."""

_SUPPORTED_FEATURES, _FEATURES_EPOCH, _FINALIZED_FEATURES, _ZK_MIGRATION_READY = range(4)
"""Numbers of the tagged fields (KIP-584, KIP-866)."""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Pattern of the client software names and versions that Kafka accepts (KIP-511)."""


@final
class ClientSoftware:
    """Software name and version of the client (KIP-511); empty before ApiVersions v3."""

    __slots__ = ("name", "valid", "version")

    def __init__(self, *, name: str, version: str) -> None:
        self.name: Final = name
        self.version: Final = version
        self.valid: Final = bool(_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version))
        """True if Kafka accepts both; if not, the response is INVALID_REQUEST."""


NO_SOFTWARE: Final = ClientSoftware(name="", version="")


@final
class ApiVersionsRequest:
    """Content of a client's request."""

    __slots__ = ("cluster_id", "node_id", "software")

    def __init__(
        self, software: ClientSoftware, cluster_id: str | None = None, node_id: int = NO_NODE
    ) -> None:
        self.software: Final = software
        self.cluster_id: Final = cluster_id
        """Id of the cluster that the client means; None: it does not know."""
        self.node_id: Final = node_id
        """Id of the node that the client means; `NO_NODE`: it does not know."""

    @property
    def valid(self) -> bool:
        """True if Kafka accepts the software, and both ids or none; if not, the response is
        INVALID_REQUEST."""
        return self.software.valid and (self.cluster_id is None) == (self.node_id == NO_NODE)


_PLAIN_REQUEST: Final = ApiVersionsRequest(NO_SOFTWARE)
"""Content of every request before v3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """Broker that a connection leads to, as far as it is known."""

    cluster_id: str | None = None
    """Id of its cluster; None: unknown."""
    node_ids: Set[int] = frozenset()
    """Its node id, by each source that knows it. Empty: unknown; two that differ: it is not where
    clients are sent for it."""

    def is_meant_by(self, request: ApiVersionsRequest) -> bool:
        """Return whether a client is where it means to be; True if that cannot be known."""
        if request.cluster_id is None:
            return True
        if self.cluster_id is not None and self.cluster_id != request.cluster_id:
            return False
        return self.node_ids <= {request.node_id}


UNKNOWN_BROKER: Final = BrokerIdentity()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamVersions:
    """Content of a broker's ApiVersions response."""

    apis: Mapping[int, tuple[int, int]]
    """Lowest and highest version by API key."""
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest version level by feature."""
    finalized_features_epoch: int = -1
    """Epoch of the finalized features; -1 if unknown."""
    finalized_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest finalized version level by feature."""
    zk_migration_ready: bool = False


def common_versions(brokers: Iterable[UpstreamVersions]) -> dict[int, tuple[int, int]]:
    """Return the versions by API key that all of these brokers offer; there is at least one."""
    distinct: list[Mapping[int, tuple[int, int]]] = []
    for broker in brokers:
        if broker.apis not in distinct:  # mostly there are two
            distinct.append(broker.apis)
    common = dict(distinct[0])
    for apis in distinct[1:]:
        for key, (low, high) in tuple(common.items()):
            its_low, its_high = apis.get(key, (0, -1))
            lowest, highest = max(low, its_low), min(high, its_high)
            if lowest <= highest:
                common[key] = lowest, highest
            else:
                del common[key]
    return common


class ApiVersionsAnswers:
    """Encoded responses for the clients of one broker view."""

    __slots__ = ("_bodies", "offers")

    def __init__(self, upstream: UpstreamVersions, offered: Versions | None = None) -> None:
        """Offer `offered`; None: all that the proxy can judge or answers."""
        self.offers: Versions = offers(upstream.apis) if offered is None else offered
        """Versions that clients may use, by API key."""
        self._bodies = tuple(
            _body(self.offers, upstream, version) for version in range(HIGHEST_VERSION + 1)
        )

    def response(self, api_version: int, correlation_id: int) -> bytes:
        """Return the response from its correlation id on, without the frame's size."""
        return INT32.pack(correlation_id) + self._bodies[api_version]


def unsupported_version(correlation_id: int) -> bytes:
    """Return the v0 response to a version that is too new, with the supported range."""
    own = INT16.pack(API_VERSIONS) + INT16.pack(0) + INT16.pack(HIGHEST_VERSION)
    return (
        INT32.pack(correlation_id)
        + INT16.pack(UNSUPPORTED_VERSION)
        + write_array_length(1, flexible=False)
        + own
    )


def refusal(api_version: int, correlation_id: int, error_code: int) -> bytes:
    """Return a response with an error and no APIs; in v0 if the version is too new."""
    if not 0 <= api_version <= HIGHEST_VERSION:
        api_version = 0
    head = INT32.pack(correlation_id) + INT16.pack(error_code)
    flexible = api_version >= FIRST_FLEXIBLE
    body = head + write_array_length(0, flexible)
    if api_version >= 1:
        body += INT32.pack(0)  # throttle_time_ms
    return body + b"\x00" if flexible else body


def parse_request(api_version: int, body: View) -> ApiVersionsRequest:
    """Parse a request of v0 to v5, from after its header. Raises ClientFault.

    An invalid name or version is not a parse error: see `ClientSoftware.valid`. Versions before v3
    have neither. Bytes after the body are ignored, as by Kafka.
    """
    if api_version < FIRST_FLEXIBLE:
        return _PLAIN_REQUEST
    cluster_id, node_id = None, NO_NODE
    try:
        name, position = string(body, 0, flexible=True)
        version, position = string(body, position, flexible=True)
        if api_version >= FIRST_WITH_IDS:
            cluster_id, position = nullable_string(body, position, flexible=True)
            node_id, position = int32(body, position)
        if skip_tags(body, position) > len(body):
            raise Malformed("ends inside a tagged field")
    except Malformed as malformed:
        raise ClientFault(f"ApiVersions v{api_version}: {malformed}") from None
    return ApiVersionsRequest(ClientSoftware(name=name, version=version), cluster_id, node_id)


def write_request(api_version: int, request: ApiVersionsRequest) -> bytes:
    """Return the body of a request, for the proxy's own connections."""
    if api_version < FIRST_FLEXIBLE:
        return b""
    written = [
        write_string(request.software.name, flexible=True),
        write_string(request.software.version, flexible=True),
    ]
    if api_version >= FIRST_WITH_IDS:
        cluster_id = request.cluster_id
        written += (
            write_null_string(flexible=True)
            if cluster_id is None
            else write_string(cluster_id, flexible=True),
            INT32.pack(request.node_id),
        )
    return b"".join((*written, b"\x00"))


def parse_response(api_version: int, body: View) -> tuple[int, UpstreamVersions]:
    """Parse a response from after its correlation id; return error code and content.

    With UNSUPPORTED_VERSION the response is v0, whatever the version of the request; some brokers
    use a different format, which is then ignored. Raises BrokerFault.
    """
    try:
        error_code, position = int16(body, 0)
        if error_code == UNSUPPORTED_VERSION:
            return error_code, _parse_unsupported(body, position)
        return error_code, _parse_content(api_version, body, position)
    except Malformed as malformed:
        raise BrokerFault(f"ApiVersions v{api_version}: {malformed}") from None


def _parse_unsupported(body: View, position: int) -> UpstreamVersions:
    try:
        return _parse_content(0, body, position)
    except Malformed:
        return UpstreamVersions(apis={})


def _parse_content(api_version: int, body: View, position: int) -> UpstreamVersions:
    flexible = api_version >= FIRST_FLEXIBLE
    count, position = array_length(body, position, flexible)
    ranges: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        key, position = int16(body, position)
        low, position = int16(body, position)
        high, position = int16(body, position)
        if flexible:
            position = skip_tags(body, position)
        ranges[key] = (low, high)
    if not flexible:
        return UpstreamVersions(apis=ranges)
    _, position = int32(body, position)  # throttle_time_ms
    tags = _tagged_fields(body, position)
    epoch = tags.get(_FEATURES_EPOCH)
    ready = tags.get(_ZK_MIGRATION_READY)
    supported = _parse_features(tags.get(_SUPPORTED_FEATURES, b"\x01"))
    finalized = _parse_features(tags.get(_FINALIZED_FEATURES, b"\x01"))
    return UpstreamVersions(
        apis=ranges,
        supported_features=supported,
        finalized_features_epoch=-1 if epoch is None else int64(epoch, 0)[0],
        finalized_features={name: (low, high) for name, (high, low) in finalized.items()},
        zk_migration_ready=ready is not None and int8(ready, 0)[0] != 0,
    )


def _tagged_fields(body: View, position: int) -> dict[int, View]:
    count, position = uvarint(body, position)
    tags: dict[int, View] = {}
    for _ in range(count):
        number, position = uvarint(body, position)
        size, position = uvarint(body, position)
        tags[number] = body[position : position + size]
        position += size
    return tags


def _parse_features(array: View) -> dict[str, tuple[int, int]]:
    """Return an array of features: a name and two version levels each."""
    count, position = array_length(array, 0, flexible=True)
    features: dict[str, tuple[int, int]] = {}
    for _ in range(count):
        name, position = string(array, position, flexible=True)
        one, position = int16(array, position)
        other, position = int16(array, position)
        position = skip_tags(array, position)
        features[name] = (one, other)
    return features


def _body(
    offered: Mapping[int, tuple[int, int]], upstream: UpstreamVersions, api_version: int
) -> bytes:
    """Return a successful response from after its correlation id."""
    flexible = api_version >= FIRST_FLEXIBLE
    written = [INT16.pack(0), write_array_length(len(offered), flexible)]
    for key, (low, high) in offered.items():
        written += (INT16.pack(key), INT16.pack(low), INT16.pack(high))
        if flexible:
            written.append(b"\x00")
    if api_version >= 1:
        written.append(INT32.pack(0))  # throttle_time_ms
    if flexible:
        tags = _write_tagged_fields(upstream, api_version)
        written.append(write_uvarint(len(tags)))
        for number, content in tags.items():
            written += (write_uvarint(number), write_uvarint(len(content)), content)
    return b"".join(written)


def _write_tagged_fields(upstream: UpstreamVersions, api_version: int) -> dict[int, bytes]:
    """Return the fields that differ from their defaults, by number in ascending order."""
    supported = {
        name: levels
        for name, levels in upstream.supported_features.items()
        if levels[0] > 0 or api_version >= FIRST_WITH_ALL_FEATURES
    }
    finalized = {name: (high, low) for name, (low, high) in upstream.finalized_features.items()}
    tags: dict[int, bytes] = {}
    if supported:
        tags[_SUPPORTED_FEATURES] = _write_features(supported)
    if upstream.finalized_features_epoch != -1:
        tags[_FEATURES_EPOCH] = INT64.pack(upstream.finalized_features_epoch)
    if finalized:
        tags[_FINALIZED_FEATURES] = _write_features(finalized)
    if upstream.zk_migration_ready:
        tags[_ZK_MIGRATION_READY] = b"\x01"
    return tags


def _write_features(features: Mapping[str, tuple[int, int]]) -> bytes:
    written = [write_array_length(len(features), flexible=True)]
    for name, (one, other) in features.items():
        written += (
            write_string(name, flexible=True),
            INT16.pack(one),
            INT16.pack(other),
            b"\x00",
        )
    return b"".join(written)
