"""ApiVersions requests of the proxy to a broker: what it offers, and which broker it is.

The first falls back to older versions (KIP-511); the others say which broker is meant (KIP-1242).
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Final

from proxy import __version__
from proxy.errors import BrokerFault
from proxy.wire.api_versions import (
    FIRST_WITH_IDS,
    HIGHEST_VERSION,
    REBOOTSTRAP_REQUIRED,
    UNSUPPORTED_VERSION,
    ApiVersionsRequest,
    ClientSoftware,
    UpstreamVersions,
    parse_response,
    write_request,
)
from proxy.wire.apis import API_VERSIONS

_NOBODY: Final = -2
"""Node id that no broker has; Kafka takes -1 for none."""

Ask = Callable[[int, int, bytes], Awaitable[bytes]]
"""`request(api_key, api_version, body)`: sends a request, and returns the body of the response."""


async def ask_api_versions(software_name: str, request: Ask) -> UpstreamVersions:
    """Query a broker's API versions: in the proxy's highest version, then the broker's, then v0.

    Raises BrokerFault.
    """
    api_version = HIGHEST_VERSION
    while True:
        body = write_request(api_version, ApiVersionsRequest(_software(software_name)))
        answer = await request(API_VERSIONS, api_version, body)
        error_code, offered = parse_response(api_version, answer)
        if error_code == 0:
            return offered
        if error_code != UNSUPPORTED_VERSION or api_version == 0:
            raise BrokerFault(f"ApiVersions v{api_version} is answered with error {error_code}")
        _, highest = offered.apis.get(API_VERSIONS, (0, 0))
        api_version = max(0, min(highest, api_version - 1))


async def ask_node_id(
    software_name: str, cluster_id: str, node_ids: Iterable[int], request: Ask
) -> int | None:
    """Find out which of these nodes a broker with ApiVersions v5 is; None: none, or it won't say.

    It refuses every node but its own. One that does not refuse `_NOBODY` refuses nothing. Raises
    BrokerFault.
    """
    software = _software(software_name)
    for node_id in (_NOBODY, *node_ids):
        meant = ApiVersionsRequest(software, cluster_id, node_id)
        answer = await request(API_VERSIONS, FIRST_WITH_IDS, write_request(FIRST_WITH_IDS, meant))
        error_code, _ = parse_response(FIRST_WITH_IDS, answer)
        if error_code == 0:
            return None if node_id == _NOBODY else node_id
        if error_code != REBOOTSTRAP_REQUIRED:
            return None
    return None


@cache
def _software(name: str) -> ClientSoftware:
    return ClientSoftware(name=name, version=__version__)
