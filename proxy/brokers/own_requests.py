"""The proxy's own requests to a broker, such as ApiVersions (KIP-511) and the login.

Any failure of a broker is a `BrokerFault`: a refused connection, a timeout, a closed connection, a
frame that is too large or does not parse. Modules for TLS are imported where they are needed, so
that a client without TLS does not load them.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Final, TypeVar

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
from proxy.wire.apis import API_VERSIONS, response_body_at
from proxy.wire.codec import decode
from proxy.wire.primitives import INT32, Malformed
from proxy.wire.schema import Message
from sasl.login import ClientExchange, LoggedIn, Login, Send, Step

OWN_CORRELATION_ID: Final = secrets.randbelow(2**31)
"""Correlation id that marks the proxy's own requests to brokers. It is chosen when this module is
first imported, which the parent process does before it forks, so all workers have the same one."""
Ask = Callable[[int, int, bytes], Awaitable[bytes]]
"""Function `request(api_key, api_version, body)` that sends a request, and returns the response's
body."""
CLOSED: Final = "closed the connection instead of answering"

M = TypeVar("M", bound=Message)


@asynccontextmanager
async def explained(timeout_s: float) -> AsyncIterator[None]:
    """Limit the time of the body, and turn its failures into a BrokerFault."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except asyncio.IncompleteReadError:
        reason = CLOSED
    except OSError as error:
        from proxy.net.handshake_errors import handshake_error

        reason = handshake_error(error)
    else:
        return
    raise BrokerFault(reason)


async def receive(
    reader: asyncio.StreamReader, correlation_id: int, max_bytes: int, remedy: str
) -> bytes:
    """Return the next response after its correlation id, of at most `max_bytes`.

    `remedy` is the setting to change if the broker speaks TLS. Raises BrokerFault.
    """
    head = await reader.readexactly(INT32.size)
    (size,) = INT32.unpack(head)
    if not INT32.size <= size <= max_bytes:
        from proxy.net.handshake_errors import is_tls_answer

        if is_tls_answer(head):
            raise BrokerFault(f"it speaks TLS; {remedy}")
        raise BrokerFault(f"a response of {size} bytes")
    answer = await reader.readexactly(size)
    if INT32.unpack_from(answer)[0] != correlation_id:
        raise BrokerFault("a response to another request")
    return answer[INT32.size :]


def body_of(api_key: int, api_version: int, answer: bytes) -> bytes:
    """Return the body of a response from `receive`. Raises BrokerFault."""
    try:
        return answer[response_body_at(api_key, api_version, answer, 0) :]
    except Malformed as malformed:
        raise BrokerFault(f"API {api_key}: {malformed}") from None


def decoded(response: type[M], api_version: int, answer: bytes) -> M:
    """Return a response from `receive`. Raises BrokerFault."""
    api_key = response.HEAD.api_key
    try:
        position = response_body_at(api_key, api_version, answer, 0)
        return decode(response, api_version, answer, position)
    except Malformed as malformed:
        raise BrokerFault(f"API {api_key}: {malformed}") from None


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
