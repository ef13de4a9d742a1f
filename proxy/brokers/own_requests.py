"""The proxy's own requests to a broker: ApiVersions (KIP-511) and the login."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final

from proxy import __version__
from proxy.errors import BrokerFault
from proxy.wire.api_versions import (
    HIGHEST_VERSION,
    UNSUPPORTED_VERSION,
    ApiVersionsRequest,
    ClientSoftware,
    UpstreamVersions,
    parse_response,
    write_request,
)
from proxy.wire.apis import API_VERSIONS
from sasl.login import ClientExchange, LoggedIn, Login, Send, Step

OWN_CORRELATION_ID: Final = secrets.randbelow(2**31)
"""Correlation id that marks the proxy's own requests to brokers. It is chosen when this module is
first imported, which the parent process does before it forks, so all workers have the same one."""
Ask = Callable[[int, int, bytes], Awaitable[bytes]]
"""Function `request(api_key, api_version, body)` that sends a request, and returns the response's
body."""


async def ask_api_versions(software_name: str, request: Ask) -> UpstreamVersions:
    """Query a broker's API versions: with the proxy's highest version, then the broker's, then v0.

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


@cache
def _software(name: str) -> ClientSoftware:
    return ClientSoftware(name=name, version=__version__)


async def log_in(exchange: ClientExchange, highest_version: int, request: Ask) -> LoggedIn:
    """Log in. Raises LoginError.

    `highest_version` is the server's highest version of SaslAuthenticate; negative if it does not
    offer the API.
    `request` returns the body of the response alone.
    """
    login = Login(exchange, highest_version)
    step: Step = login.begin()
    while not isinstance(step, LoggedIn):
        if isinstance(step, Send):
            answer = await request(step.api_key, step.api_version, step.body)
            step = login.answered(answer)
        else:
            step = login.derived(await asyncio.to_thread(step.work))
    return step
