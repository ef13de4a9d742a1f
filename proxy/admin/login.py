"""SASL login and re-authentication (KIP-368) of an admin client."""

from collections.abc import Mapping

from proxy.admin.connection import AdminConnection
from proxy.admin.errors import AuthenticationFailed, KafkaError, UnsupportedVersion, kafka_error
from proxy.admin.security import Login, OAuthBearer, Plain, Scram
from proxy.brokers.own_requests import log_in
from proxy.wire.apis import SASL_AUTHENTICATE
from sasl.login import (
    ClientExchange,
    LoggedIn,
    LoginError,
    OAuthBearerClient,
    PlainClient,
    ScramClient,
)


async def authenticate(
    connection: AdminConnection, login: Login, offered: Mapping[int, tuple[int, int]]
) -> LoggedIn:
    """Authenticate, or re-authenticate. Raises KafkaError if it fails."""
    _, version = offered.get(SASL_AUTHENTICATE, (0, -1))
    if version < 0:
        raise UnsupportedVersion(f"{connection.address} does not support SaslAuthenticate")
    try:
        return await log_in(await _exchange(login), version, connection.exchange)
    except LoginError as error:
        raise _failure(error) from error


async def _exchange(login: Login) -> ClientExchange:
    match login:
        case Plain():
            return PlainClient(login.username, login.password)
        case Scram():
            return ScramClient(login.mechanism, login.username, login.password)
        case OAuthBearer():
            return OAuthBearerClient(login.current())
        case identity:
            return await identity.exchange()


def _failure(error: LoginError) -> KafkaError:
    return kafka_error(error.error_code, error.reason) or AuthenticationFailed(error.reason)
