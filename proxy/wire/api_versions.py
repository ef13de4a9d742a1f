"""ApiVersions answers: the broker's versions, limited to those that the proxy understands.

Rules:

- Responses are encoded once per broker view and version; a request takes one copy.
- A version that is too new is answered in v0 with UNSUPPORTED_VERSION and ApiVersions' own range,
  so that the client can choose a version (KIP-511).
- A client that connected to the wrong broker is answered REBOOTSTRAP_REQUIRED, if the broker's
  identity is known (KIP-1242).
- The broker's features are passed on: clients base the transaction protocol on them (KIP-890).

Requests are parsed by hand because every connection begins with one; tests compare the result with
kio.

A broker's identity, its node and cluster, is found from its own answers (`identify`, KIP-1242). A
broker with ApiVersions v5 refuses an authenticated request that means another node. An older broker
is identified if it advertises the address by which it was reached.
"""

import re
from collections.abc import Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, final

from proxy import __version__
from proxy.errors import BrokerFault, ClientFault
from proxy.wire import metadata
from proxy.wire.apis import API_VERSIONS, APIS, METADATA, Versions, offers
from proxy.wire.codec import decode, encode
from proxy.wire.messages import ApiVersionsRequest as WrittenRequest
from proxy.wire.messages import ApiVersionsResponse
from proxy.wire.primitives import (
    INT32,
    Malformed,
    View,
    int16,
    int32,
    nullable_string,
    skip_tags,
    string,
)
from proxy.wire.request import CLIENT_ID

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


class ApiVersionsRequest(NamedTuple):
    """Content of a client's request."""

    software: ClientSoftware
    cluster_id: str | None = None
    """Id of the cluster that the client means; None if the client does not know it."""
    node_id: int = NO_NODE
    """Id of the node that the client means; `NO_NODE` if the client does not know it."""

    @property
    def valid(self) -> bool:
        """True if Kafka accepts the software, and both ids or neither are set; if not, the response
        is INVALID_REQUEST."""
        return self.software.valid and (self.cluster_id is None) == (self.node_id == NO_NODE)


_PLAIN_REQUEST: Final = ApiVersionsRequest(NO_SOFTWARE)
"""Content of every request before v3."""


class BrokerIdentity(NamedTuple):
    """Broker that a connection leads to, as far as it is known."""

    cluster_id: str | None = None
    """Id of its cluster; None if it is unknown."""
    node_ids: Set[int] = frozenset()
    """Its node id, from each source that knows it. Empty if unknown; two ids if clients that mean
    one broker are sent to another."""

    def is_meant_by(self, request: ApiVersionsRequest) -> bool:
        """Return whether this is the broker that a client means; True if that is unknown."""
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
    """Return the versions by API key that all of these brokers, at least one, offer."""
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
        """Offer the versions `offered`; None for all that the proxy can judge or answer itself."""
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
    own = ApiVersionsResponse.ApiVersion(api_key=API_VERSIONS, max_version=HIGHEST_VERSION)
    response = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=(own,))
    return INT32.pack(correlation_id) + encode(response, 0)


def refusal(api_version: int, correlation_id: int, error_code: int) -> bytes:
    """Return a response with an error and no APIs; in v0 if the version is too new."""
    if not 0 <= api_version <= HIGHEST_VERSION:
        api_version = 0
    response = ApiVersionsResponse(error_code=error_code)
    return INT32.pack(correlation_id) + encode(response, api_version)


def parse_request(api_version: int, body: View) -> ApiVersionsRequest:
    """Parse a request of v0 to v5, from after its header. Raises ClientFault.

    An invalid name or version is not a parse error: see `ClientSoftware.valid`. Versions before v3
    have neither. Bytes after the body are ignored, as in Kafka.
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
    written = WrittenRequest(
        client_software_name=request.software.name,
        client_software_version=request.software.version,
        cluster_id=request.cluster_id,
        node_id=request.node_id,
    )
    return encode(written, api_version)


def parse_response(api_version: int, body: View) -> tuple[int, UpstreamVersions]:
    """Parse a response from after its correlation id; return error code and content.

    With UNSUPPORTED_VERSION the response is v0, whatever the version of the request; some brokers
    use a different format, which is then ignored. Raises BrokerFault.
    """
    content, error_code = bytes(body), 0
    try:
        error_code, _ = int16(content, 0)
        version = 0 if error_code == UNSUPPORTED_VERSION else api_version
        return error_code, _content(decode(ApiVersionsResponse, version, content))
    except Malformed as malformed:
        if error_code == UNSUPPORTED_VERSION:
            return error_code, UpstreamVersions(apis={})
        raise BrokerFault(f"ApiVersions v{api_version}: {malformed}") from None


def _content(response: ApiVersionsResponse) -> UpstreamVersions:
    return UpstreamVersions(
        apis={one.api_key: (one.min_version, one.max_version) for one in response.api_keys},
        supported_features={
            one.name: (one.min_version, one.max_version) for one in response.supported_features
        },
        finalized_features_epoch=response.finalized_features_epoch,
        finalized_features={
            one.name: (one.min_version_level, one.max_version_level)
            for one in response.finalized_features
        },
        zk_migration_ready=response.zk_migration_ready,
    )


def _body(
    offered: Mapping[int, tuple[int, int]], upstream: UpstreamVersions, api_version: int
) -> bytes:
    """Return a successful response from after its correlation id."""
    response = ApiVersionsResponse(
        api_keys=tuple(
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in offered.items()
        ),
        supported_features=tuple(
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in upstream.supported_features.items()
            if low > 0 or api_version >= FIRST_WITH_ALL_FEATURES
        ),
        finalized_features_epoch=upstream.finalized_features_epoch,
        finalized_features=tuple(
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, min_version_level=low, max_version_level=high
            )
            for name, (low, high) in upstream.finalized_features.items()
        ),
        zk_migration_ready=upstream.zk_migration_ready,
    )
    return encode(response, api_version)


SOFTWARE: Final = ClientSoftware(name=CLIENT_ID, version=__version__)
_NOBODY: Final = -2
"""Node id that no broker has; -1 means unknown in Kafka."""

Query = tuple[int, int, bytes]
"""API key, version and body of a request."""
Identification = Generator[Query, bytes, BrokerIdentity]
"""Steps of an identification: yields requests, and is sent the responses from after their
correlation ids. Raises BrokerFault."""


def identify(
    offered: UpstreamVersions,
    address: tuple[str, int],
    node_id: int | None,
    most: int = metadata.MAX_BROKERS,
) -> Identification:
    """Identify the broker that offers these versions at this address.

    `node_id` is its last known or announced node id; None if it is unknown. At most `most` nodes
    are tried.
    """
    api_version = metadata_version(offered)
    if api_version is None:
        return UNKNOWN_BROKER
    answer = yield METADATA, api_version, metadata.write_request(api_version)
    view = metadata.parse_response(api_version, answer)
    if view.cluster_id is None:
        return UNKNOWN_BROKER
    here = [id_ for id_, one in view.brokers.items() if (one.host, one.port) == address]
    if names_itself(offered):
        guesses = here if node_id is None else [node_id, *here]
        tried = islice(dict.fromkeys((*guesses, *view.brokers)), most)
        found = yield from _find(view.cluster_id, [_NOBODY, *tried])
        here = [] if found is None else [found]
    return BrokerIdentity(cluster_id=view.cluster_id, node_ids=frozenset(here[:1]))


def names_itself(offered: UpstreamVersions) -> bool:
    """Return whether a broker that offers these versions checks which node is meant."""
    return offered.apis.get(API_VERSIONS, (0, 0))[1] >= FIRST_WITH_IDS


def meaning(cluster_id: str, node_id: int) -> Query:
    """Return the ApiVersions request that no other node answers without an error."""
    body = write_request(FIRST_WITH_IDS, ApiVersionsRequest(SOFTWARE, cluster_id, node_id))
    return API_VERSIONS, FIRST_WITH_IDS, body


def metadata_version(offered: UpstreamVersions) -> int | None:
    """Return the highest common version of Metadata; None if there is no common version."""
    low, high = offered.apis.get(METADATA, (0, 0))
    api_version = min(high, metadata.HIGHEST_VERSION)
    return api_version if api_version >= max(low, metadata.LOWEST_VERSION) else None


def _find(cluster_id: str, node_ids: list[int]) -> Generator[Query, bytes, int | None]:
    """Return the broker's id if it is one of these nodes; None if it is another, or does not check.

    A broker refuses every node id but its own; one that accepts `_NOBODY` does not check.
    """
    for node_id in node_ids:
        answer = yield meaning(cluster_id, node_id)
        error_code, _ = parse_response(FIRST_WITH_IDS, answer)
        if error_code == 0:
            return None if node_id == _NOBODY else node_id
        if error_code != REBOOTSTRAP_REQUIRED:
            return None
    return None
