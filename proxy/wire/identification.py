"""Identification of a broker: which node of which cluster it is, by its own answers (KIP-1242).

A broker with ApiVersions v5 refuses a request that means another node, once it is asked by somebody
who is authenticated. Of an older one it is known where it advertises the address by which it was
reached.
"""

from collections.abc import Generator
from itertools import islice
from typing import Final

from proxy import __version__
from proxy.wire import api_versions, metadata
from proxy.wire.api_versions import (
    FIRST_WITH_IDS,
    REBOOTSTRAP_REQUIRED,
    UNKNOWN_BROKER,
    ApiVersionsRequest,
    BrokerIdentity,
    ClientSoftware,
    UpstreamVersions,
)
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.wire.request import CLIENT_ID

SOFTWARE: Final = ClientSoftware(name=CLIENT_ID, version=__version__)
_NOBODY: Final = -2
"""Node id that no broker has; Kafka takes -1 for none."""

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
    """Find out which broker it is that offers these versions at this address.

    `node_id` is that which it had before, or is said to have; None: unknown. At most `most` nodes
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
    body = api_versions.write_request(
        FIRST_WITH_IDS, ApiVersionsRequest(SOFTWARE, cluster_id, node_id)
    )
    return API_VERSIONS, FIRST_WITH_IDS, body


def metadata_version(offered: UpstreamVersions) -> int | None:
    """Return the highest version of Metadata that both sides know; None: there is none."""
    low, high = offered.apis.get(METADATA, (0, 0))
    api_version = min(high, metadata.HIGHEST_VERSION)
    return api_version if api_version >= max(low, metadata.LOWEST_VERSION) else None


def _find(cluster_id: str, node_ids: list[int]) -> Generator[Query, bytes, int | None]:
    """Find which of these nodes it is; None: none, or it won't say.

    It refuses every node but its own. One that does not refuse `_NOBODY` refuses nothing.
    """
    for node_id in node_ids:
        answer = yield meaning(cluster_id, node_id)
        error_code, _ = api_versions.parse_response(FIRST_WITH_IDS, answer)
        if error_code == 0:
            return None if node_id == _NOBODY else node_id
        if error_code != REBOOTSTRAP_REQUIRED:
            return None
    return None
