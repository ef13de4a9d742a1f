"""Connection of an admin client: requests with a time limit, and plain error messages."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from proxy.admin.errors import BrokerUnavailable
from proxy.brokers.own_requests import (
    CLOSED,
    ask_api_versions,
    body_of,
    decoded,
    explained,
    receive,
)
from proxy.errors import BrokerFault, host_port
from proxy.net.dialler import Dialler
from proxy.wire.codec import encode
from proxy.wire.request import request_frame
from proxy.wire.schema import Message

M = TypeVar("M", bound=Message)

MAX_RESPONSE_BYTES: Final = 104_857_600
"""Maximum size of a response in bytes: Kafka's `socket.request.max.bytes`. 100,000 ACLs take a
tenth of it."""
MAX_IN_FLIGHT: Final = 16
"""Maximum number of requests that are sent before the response to the first of them is read."""
_TLS_EXPECTED: Final = "set security.protocol to SSL or SASL_SSL"
_PERHAPS_TLS: Final = "does it speak TLS?"
"""Hint for a connection that was closed: a TLS server takes a plain request for a broken record."""
_PERHAPS_LOGIN: Final = "does it want a login?"
"""Hint for a connection that was closed after its first request without a login."""
_SOFTWARE_NAME: Final = "reauth-proxy-admin"


class AdminConnection:
    """Open connection. After an error it is closed, since its next bytes cannot be interpreted."""

    def __init__(
        self,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client_id: str,
        timeout_s: float,
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        is_tls = writer.get_extra_info("ssl_object") is not None
        self._if_closed = "" if is_tls else _PERHAPS_TLS
        """Hint for the error message if the broker closes instead of sending the next response;
        empty for no hint."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        client_id: str,
        timeout_s: float,
        dialler: Dialler,
    ) -> "AdminConnection":
        """Connect. Raises BrokerUnavailable."""
        address = host_port(host, port)
        try:
            async with explained(timeout_s):
                reader, writer = await dialler.open_streams(host, port, tls)
        except BrokerFault as fault:
            raise BrokerUnavailable(f"{address}: {fault.reason}") from None
        return cls(address, reader, writer, client_id, timeout_s)

    @property
    def is_open(self) -> bool:
        """True if the connection can be used; brokers close connections that are idle for long."""
        return not self._writer.is_closing() and not self._reader.at_eof()

    def expect_login_error(self) -> None:
        """Note that the next request is the first that a broker may refuse without a login."""
        self._if_closed = _PERHAPS_LOGIN

    async def close(self) -> None:
        """Close at once."""
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and highest version that the broker offers, by API key."""
        async with self._bounded():
            offered = await ask_api_versions(_SOFTWARE_NAME, self.exchange)
        return dict(offered.apis)

    async def request(self, request: Message, version: int, response: type[M]) -> M:
        """Send a message in this version, and return its response."""
        (answer,) = await self.request_each([request], version, response)
        return answer

    async def request_each(
        self, requests: Sequence[Message], version: int, response: type[M]
    ) -> list[M]:
        """Send messages, `MAX_IN_FLIGHT` at a time, and return the responses in their order."""
        waiting, responses = deque[int](), []
        for request in requests:
            if len(waiting) == MAX_IN_FLIGHT:
                responses.append(await self._next(waiting.popleft(), version, response))
            # Without drain: it could wait for a broker that itself waits for us to read
            body = encode(request, version)
            waiting.append(self._send(request.HEAD.api_key, version, body))
        while waiting:
            responses.append(await self._next(waiting.popleft(), version, response))
        return responses

    async def _next(self, correlation_id: int, version: int, response: type[M]) -> M:
        async with self._bounded():
            return decoded(response, version, await self._receive(correlation_id))

    async def exchange(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Send a request, and return the body of the response."""
        async with self._bounded():
            answer = await self._receive(self._send(api_key, api_version, body))
            return body_of(api_key, api_version, answer)

    def _send(self, api_key: int, api_version: int, body: bytes) -> int:
        """Send a request; return its correlation id."""
        self._correlation_id += 1
        self._writer.write(
            request_frame(api_key, api_version, self._correlation_id, self._client_id, body)
        )
        return self._correlation_id

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Limit the time of the body; close the connection if the body raises anything."""
        try:
            async with explained(self._timeout_s):
                yield
        except BaseException as error:
            await self.close()
            if isinstance(error, BrokerFault):
                raise BrokerUnavailable(f"{self.address}: {error.reason}") from None
            raise

    async def _receive(self, correlation_id: int) -> bytes:
        try:
            answer = await receive(self._reader, correlation_id, MAX_RESPONSE_BYTES, _TLS_EXPECTED)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            if not self._if_closed:
                raise
            raise BrokerFault(f"{CLOSED}; {self._if_closed}") from None
        self._if_closed = ""
        return answer
