"""Connection for the proxy's own requests to a broker.

Each query has a short connection of its own: queries are minutes apart, and a permanent connection
would need supervision.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from proxy.brokers.access import Access
from proxy.brokers.own_requests import (
    OWN_CORRELATION_ID,
    ask_api_versions,
    body_of,
    decoded,
    explained,
    log_in,
    receive,
)
from proxy.errors import BrokerFault, LoginRefused, host_port
from proxy.wire import api_versions, metadata
from proxy.wire.api_versions import (
    UNKNOWN_BROKER,
    BrokerIdentity,
    UpstreamVersions,
    identify,
    metadata_version,
)
from proxy.wire.apis import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.wire.codec import encode
from proxy.wire.metadata import ClusterView
from proxy.wire.primitives import INT16, INT32
from proxy.wire.request import CLIENT_ID, request_frame
from proxy.wire.schema import Message
from sasl.login import ClientExchange, LoginError
from sasl.messages import (
    MAX_RESPONSE_BYTES,
    MalformedMessage,
    handshake_request,
    read_handshake_response,
)

MAX_ANSWER_BYTES: Final = 67_108_864
"""Largest response in bytes; Metadata without topics is far below it."""

_TLS_EXPECTED: Final = "set upstream.security.protocol: SASL_SSL, or SSL if it has no SASL"
_LOGIN_EXPECTED: Final = (
    "closed the connection after its ApiVersions response: if its listener expects a login, set"
    " upstream.security.protocol: SASL_SSL, or SASL_PLAINTEXT"
)

Answer = TypeVar("Answer")
M = TypeVar("M", bound=Message)


async def fetch_broker(
    host: str, port: int, access: Access, node_id: int | None = None
) -> tuple[UpstreamVersions, BrokerIdentity]:
    """Query a broker's API versions, check that it accepts the proxy, and identify it.

    `node_id` is its last or supposed id; None if unknown. Where clients log in themselves, the
    proxy can only query the versions. Raises BrokerFault.
    """
    asks_more = access.identity is not None or not access.clients_log_in

    async def question(connection: ServiceConnection) -> tuple[UpstreamVersions, BrokerIdentity]:
        identity = UNKNOWN_BROKER
        with suppress(BrokerFault):  # its versions are known in any case
            if asks_more:
                identity = await _identity(connection, (host, port), node_id)
        return connection.offered, identity

    return await ask(host, port, access, question)


async def fetch_metadata(host: str, port: int, access: Access) -> ClusterView:
    """Query a broker about the cluster's brokers. Raises BrokerFault."""
    return await ask(host, port, access, cluster_view)


async def ask(
    host: str,
    port: int,
    access: Access,
    question: Callable[["ServiceConnection"], Awaitable[Answer]],
) -> Answer:
    """Connect, log in if configured, and run `question`; all within `access.timeout_s`.

    Raises BrokerFault.
    """
    try:
        async with explained(access.timeout_s):
            reader, writer = await access.dialler.open_streams(host, port, access.context)
            try:
                connection = ServiceConnection(reader, writer)
                connection.offered = await ask_api_versions(CLIENT_ID, connection.request)
                if access.identity is not None:
                    await connection.log_in(access.identity.exchange(host))
                try:
                    return await question(connection)
                except asyncio.IncompleteReadError:
                    if access.identity is not None:
                        raise
                    raise LoginRefused(_LOGIN_EXPECTED) from None
            finally:
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()
    except BrokerFault as fault:
        raise type(fault)(f"broker {host_port(host, port)}: {fault.reason}") from None


def is_own_request(frame: bytes) -> bool:
    """Return whether a request is an ApiVersions request of one of this proxy's workers."""
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
        """The versions that the broker offers, from `ask_api_versions`."""

    @property
    def certificate(self) -> bytes | None:
        """The broker's certificate in DER; None without TLS."""
        tls: ssl.SSLObject | None = self._writer.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    async def mechanisms(self) -> tuple[str, ...] | None:
        """Query the SASL mechanisms of the listener: empty if it has no SASL, None if the broker
        does not offer the question.

        The question is a SaslHandshake with an unknown mechanism, after which a listener with SASL
        closes the connection. Raises BrokerFault.
        """
        low, high = self.offered.apis.get(SASL_HANDSHAKE, (0, -1))
        if high < low:
            return None
        body = await self._request_body(SASL_HANDSHAKE, min(high, 1), handshake_request("?"))
        try:
            return read_handshake_response(body)[1]
        except MalformedMessage:
            raise BrokerFault("its answer to SaslHandshake does not parse") from None

    async def log_in(self, exchange: Awaitable[ClientExchange]) -> None:
        """Log in with an exchange, which may need time to begin. Raises LoginRefused."""
        _, highest = self.offered.apis.get(SASL_AUTHENTICATE, (0, -1))
        try:
            await log_in(await exchange, highest, self._request_body)
        except LoginError as error:
            raise LoginRefused(f"login failed: {error.reason}") from None
        except asyncio.IncompleteReadError:
            reason = "login failed: the broker closed the connection instead of answering"
            raise LoginRefused(reason) from None

    async def _request_body(self, api_key: int, api_version: int, body: bytes) -> bytes:
        answer = await self.request(api_key, api_version, body, max_bytes=MAX_RESPONSE_BYTES)
        return body_of(api_key, api_version, answer)

    async def request(
        self, api_key: int, api_version: int, body: bytes, *, max_bytes: int = MAX_ANSWER_BYTES
    ) -> bytes:
        """Send a request, and return the response after its correlation id.

        `max_bytes` is the largest size of the response.
        """
        self._writer.write(request_frame(api_key, api_version, OWN_CORRELATION_ID, CLIENT_ID, body))
        return await receive(self._reader, OWN_CORRELATION_ID, max_bytes, _TLS_EXPECTED)

    async def asked(self, api_version: int, request: Message, response: type[M]) -> M:
        """Send a request, and return its response. Raises BrokerFault.

        The response, which may be large, is decoded in a thread.
        """
        api_key = request.HEAD.api_key
        low, high = self.offered.apis.get(api_key, (0, -1))
        if not low <= api_version <= high:
            raise BrokerFault(f"API {api_key}: v{api_version} is not offered")
        answer = await self.request(api_key, api_version, encode(request, api_version))
        return await asyncio.to_thread(decoded, response, api_version, answer)


async def _identity(
    connection: ServiceConnection, address: tuple[str, int], node_id: int | None
) -> BrokerIdentity:
    """Identify the broker. The first request is Metadata, which a listener with SASL refuses before
    a login."""
    steps = identify(connection.offered, address, node_id)
    try:
        query = next(steps)
        while True:
            query = steps.send(await connection.request(*query))
    except StopIteration as found:
        identity: BrokerIdentity = found.value
        return identity


async def cluster_view(connection: ServiceConnection) -> ClusterView:
    """Request Metadata without topics, in the highest version that both sides know."""
    api_version = metadata_version(connection.offered)
    if api_version is None:
        low, high = connection.offered.apis.get(METADATA, (0, 0))
        raise BrokerFault(f"no common version of Metadata: it has v{low} to v{high}")
    answer = await connection.request(METADATA, api_version, metadata.write_request(api_version))
    return metadata.parse_response(api_version, answer)
