"""Connection for the proxy's own requests to a broker.

Each question is one short connection: they are rare (minutes apart), and a connection that is
kept would have to be watched. Everything a broker may do wrong is a `BrokerFault`: refusing the
connection, silence, closing, a frame too large or one that does not parse.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from proxy.errors import BrokerFault, LoginRefused
from proxy.net.handshake_errors import HANGS_UP, answers_tls, handshake_error
from proxy.upstream.access import Access
from proxy.upstream.api_versions import ask_api_versions
from proxy.upstream.correlation_id import OWN_CORRELATION_ID
from proxy.upstream.identity import UpstreamIdentity
from proxy.upstream.login import log_in
from proxy.wire import api_versions, metadata
from proxy.wire.api_versions import UpstreamVersions
from proxy.wire.apis import (
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    response_body_at,
)
from proxy.wire.metadata import ClusterView
from proxy.wire.primitives import INT16, INT32, Malformed
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.login import LoginError
from sasl.messages import MAX_RESPONSE_BYTES

LARGEST_ANSWER: Final = 67_108_864
"""Largest response in bytes; brokers alone, without topics, are far below it."""

_WANTS_LOGIN: Final = (
    "closed the connection after it had told its API versions: if its listener wants a login, set"
    " upstream.security.protocol: SASL_SSL, or SASL_PLAINTEXT"
)

Answer = TypeVar("Answer")


async def fetch_api_versions(host: str, port: int, access: Access) -> UpstreamVersions:
    """Ask a broker for its API versions, and whether it lets us in. Raises BrokerFault."""
    question = _offered if access.identity is not None else _offered_without_login
    return await ask(host, port, access, question)


async def fetch_metadata(host: str, port: int, access: Access) -> ClusterView:
    """Ask a broker for the cluster's brokers. Raises BrokerFault."""
    return await ask(host, port, access, _metadata)


async def ask(
    host: str,
    port: int,
    access: Access,
    question: Callable[["ServiceConnection"], Awaitable[Answer]],
) -> Answer:
    """Ask one question on a connection of its own, within a time that covers all of it.

    Raises BrokerFault.
    """
    try:
        async with asyncio.timeout(access.timeout_s):
            reader, writer = await _open(host, port, access.context)
            try:
                connection = ServiceConnection(reader, writer)
                await connection.introduce()
                if access.identity is None:
                    return await _without_login(question(connection))
                await connection.log_in(access.identity)
                return await question(connection)
            finally:
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        reason = f"no answer within {access.timeout_s:g} s"
    except asyncio.IncompleteReadError:
        reason = "closed the connection instead of answering"
    except OSError as error:
        reason = handshake_error(error)
    except UnicodeError:
        reason = "a host name that cannot be looked up"
    except BrokerFault as fault:
        raise type(fault)(f"broker {host}:{port}: {fault.reason}") from None
    raise BrokerFault(f"broker {host}:{port}: {reason}")


async def _without_login(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except asyncio.IncompleteReadError:
        raise LoginRefused(_WANTS_LOGIN) from None


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if tls is None:
        return await asyncio.open_connection(host, port)
    try:
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname=host)
    except ConnectionResetError:
        raise BrokerFault(HANGS_UP) from None


def is_question_of_ours(frame: bytes) -> bool:
    """Return whether a request is one of those above, of any of our workers."""
    return frame[4:12] in {
        INT16.pack(API_VERSIONS) + INT16.pack(version) + INT32.pack(OWN_CORRELATION_ID)
        for version in range(api_versions.HIGHEST_VERSION + 1)
    }


class ServiceConnection:
    """Connection to a broker for the proxy's own requests, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.offered: UpstreamVersions
        """The versions that the broker offers, as of `ask_api_versions`."""

    async def introduce(self) -> None:
        """Ask what it offers."""
        self.offered = await ask_api_versions(CLIENT_ID, self.request)

    async def log_in(self, identity: UpstreamIdentity) -> None:
        """Log in as the proxy."""
        _, highest = self.offered.apis.get(SASL_AUTHENTICATE, (0, -1))
        try:
            await log_in(await identity.exchange(), highest, self._request_body)
        except LoginError as error:
            raise LoginRefused(f"login failed: {error.reason}") from None
        except asyncio.IncompleteReadError:
            reason = "login failed: it closed the connection instead of answering"
            raise LoginRefused(reason) from None

    async def _request_body(self, api_key: int, api_version: int, body: bytes) -> bytes:
        answer = await self.request(api_key, api_version, body, most=MAX_RESPONSE_BYTES)
        try:
            return answer[response_body_at(api_key, api_version, answer, 0) :]
        except Malformed as malformed:
            raise BrokerFault(f"API {api_key}: {malformed}") from None

    async def request(
        self, api_key: int, api_version: int, body: bytes, *, most: int = LARGEST_ANSWER
    ) -> bytes:
        """Send a request, and return the response from behind its correlation id.

        `most`: bytes that it may have.
        """
        self._writer.write(request_frame(api_key, api_version, OWN_CORRELATION_ID, CLIENT_ID, body))
        prefix = await self._reader.readexactly(4)
        if answers_tls(prefix):
            raise BrokerFault("it speaks TLS; set upstream.security.protocol: SSL")
        size = INT32.unpack(prefix)[0]
        if not INT32.size <= size <= most:
            raise BrokerFault(f"an answer of {size} bytes")
        answer = await self._reader.readexactly(size)
        if INT32.unpack_from(answer)[0] != OWN_CORRELATION_ID:
            raise BrokerFault("an answer to another request")
        return answer[INT32.size :]


async def _offered(connection: ServiceConnection) -> UpstreamVersions:
    return connection.offered


async def _offered_without_login(connection: ServiceConnection) -> UpstreamVersions:
    """Request ApiVersions only: a listener with SASL answers that, and then disconnects."""
    if (api_version := _metadata_version(connection.offered)) is not None:
        await connection.request(METADATA, api_version, metadata.write_request(api_version))
    return connection.offered


def _metadata_version(offered: UpstreamVersions) -> int | None:
    """Return the highest version that both sides know; None: there is none."""
    low, high = offered.apis.get(METADATA, (0, 0))
    api_version = min(high, metadata.HIGHEST_VERSION)
    return api_version if api_version >= max(low, metadata.LOWEST_VERSION) else None


async def _metadata(connection: ServiceConnection) -> ClusterView:
    """Ask for no topics, in the highest version both sides know."""
    api_version = _metadata_version(connection.offered)
    if api_version is None:
        low, high = connection.offered.apis.get(METADATA, (0, 0))
        raise BrokerFault(f"no common version of Metadata: it has v{low} to v{high}")
    answer = await connection.request(METADATA, api_version, metadata.write_request(api_version))
    return metadata.parse_response(api_version, answer)
