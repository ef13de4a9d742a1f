"""SASL on the administrator's side: log in, and log in again on the same connection (KIP-368)."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.admin.connection import Connection
from proxy.admin.errors import AuthenticationFailed, UnsupportedVersion, kafka_error
from proxy.admin.security import Login, OAuthBearer, Scram
from proxy.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.wire.codec import request_type
from sasl.oauthbearer_messages import client_initial_response
from sasl.scram_client import ScramClientError, ScramClientExchange

_HANDSHAKE_VERSION: Final = 1
"""The first that is followed by SaslAuthenticate and not by bare tokens (KIP-152)."""
_REFUSED_TOKEN_ANSWER: Final = b"\x01"
"""What a client says to the reason of a refusal (RFC 7628 section 3.2.3)."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the broker says of an authentication."""

    lifetime_ms: int
    """How long it lasts; 0: without end."""


async def authenticate(
    connection: Connection, login: Login, offered: Mapping[int, tuple[int, int]]
) -> Session:
    """Authenticate, or do it anew. Raises AuthenticationFailed."""
    _, version = offered.get(SASL_AUTHENTICATE, (0, -1))
    if version < 0:
        raise UnsupportedVersion(f"{connection.address} does not know SaslAuthenticate")
    exchange = _Exchange(connection, min(version, 2))
    match login:
        case Scram():
            return await _scram(exchange, login)
        case OAuthBearer():
            return await _oauthbearer(exchange, login)


class _Exchange:
    def __init__(self, connection: Connection, version: int) -> None:
        self._connection = connection
        self._version = version

    async def begin(self, mechanism: str) -> None:
        request = request_type(SASL_HANDSHAKE, _HANDSHAKE_VERSION)(mechanism=mechanism)
        response = await self._connection.request(request)
        offered = ", ".join(str(one) for one in response.mechanisms)
        if error := kafka_error(response.error_code, f"{mechanism}; offered: {offered}"):
            raise error

    async def say(self, token: bytes) -> Any:
        request = request_type(SASL_AUTHENTICATE, self._version)(auth_bytes=token)
        response = await self._connection.request(request)
        if error := kafka_error(response.error_code, response.error_message):
            raise error
        return response


async def _scram(exchange: _Exchange, login: Scram) -> Session:
    await exchange.begin(login.mechanism.value)
    client = ScramClientExchange(
        mechanism=login.mechanism, username=login.username, password=login.password
    )
    try:
        challenge = await exchange.say(client.first())
        # in a thread: the iterations take milliseconds
        proof = await asyncio.to_thread(client.final, challenge.auth_bytes)
        response = await exchange.say(proof)
        client.verify(response.auth_bytes)
    except ScramClientError as error:
        raise AuthenticationFailed(str(error)) from None
    return _session(response)


async def _oauthbearer(exchange: _Exchange, login: OAuthBearer) -> Session:
    await exchange.begin("OAUTHBEARER")
    response = await exchange.say(client_initial_response(login.current()))
    if response.auth_bytes:  # the reason of a refusal; what we say to it is answered with the error
        await exchange.say(_REFUSED_TOKEN_ANSWER)
        raise AuthenticationFailed("the token was refused")
    return _session(response)


def _session(response: Any) -> Session:
    lifetime = getattr(response, "session_lifetime", None)  # since v1
    if lifetime is None:
        return Session(0)
    milliseconds = lifetime if isinstance(lifetime, int) else round(lifetime.total_seconds() * 1000)
    return Session(max(0, milliseconds))
