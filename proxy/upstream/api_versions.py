"""ApiVersions request of the proxy to a broker, with the fallback to older versions (KIP-511)."""

from collections.abc import Awaitable, Callable

from proxy import __version__
from proxy.errors import BrokerFault
from proxy.wire.api_versions import (
    HIGHEST_VERSION,
    UNSUPPORTED_VERSION,
    UpstreamVersions,
    parse_response,
    write_request,
)
from proxy.wire.apis import API_VERSIONS


async def ask_api_versions(
    software_name: str, request: Callable[[int, int, bytes], Awaitable[bytes]]
) -> UpstreamVersions:
    """Query a broker's API versions: in the proxy's highest version, then the broker's, then v0.

    `request(api_key, api_version, body)` returns the body of the response. Raises BrokerFault.
    """
    api_version = HIGHEST_VERSION
    while True:
        body = write_request(api_version, software_name, __version__)
        answer = await request(API_VERSIONS, api_version, body)
        error_code, offered = parse_response(api_version, answer)
        if error_code == 0:
            return offered
        if error_code != UNSUPPORTED_VERSION or api_version == 0:
            raise BrokerFault(f"ApiVersions v{api_version} is answered with error {error_code}")
        _, highest = offered.apis.get(API_VERSIONS, (0, 0))
        api_version = max(0, min(highest, api_version - 1))
