"""Identity of the proxy at its brokers, the same for all connections."""

import asyncio
from time import monotonic
from typing import Final, Protocol

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.brokers.token_source import EndpointTokens, FileTokens, TokenUnavailable
from proxy.config.values import Secret
from sasl.credentials import ScramMechanism
from sasl.login import ClientExchange, LoginError, OAuthBearerClient, PlainClient, ScramClient
from sasl.scram_client import SaltedPasswords

LOOK_EVERY: Final = 1.0
"""Seconds for which a password is used before it is read again: thousands of clients may connect at
once."""
READ_TIMEOUT: Final = 10.0
"""Timeout in seconds of reading a password: a file may be on a disk that hangs."""


class UpstreamIdentity(Protocol):
    """Identity that the proxy logs in with."""

    async def exchange(self) -> ClientExchange:
        """Begin a login with the current credentials. Raises LoginError."""
        ...

    async def run(self) -> None:
        """Keep the credentials fresh; returns if there is nothing to do."""
        ...

    def collect(self, snapshot: Snapshot) -> None:
        """Add the values of the identity."""
        ...


class PasswordIdentity:
    """User name and password, for PLAIN or SCRAM."""

    def __init__(self, mechanism: str, username: str, password: Secret) -> None:
        self._mechanism = mechanism
        self._username = username
        self._secret = password
        self._salted = SaltedPasswords()
        self._password = ""
        self._read_at: float | None = None

    async def exchange(self) -> ClientExchange:
        """Begin a login with the current password. Raises LoginError."""
        if self._read_at is None or monotonic() - self._read_at >= LOOK_EVERY:
            self._password = await self._current()
            self._read_at = monotonic()
        if self._mechanism == PlainClient.mechanism:
            return PlainClient(self._username, self._password)
        mechanism = ScramMechanism(self._mechanism)
        return ScramClient(mechanism, self._username, self._password, self._salted)

    async def run(self) -> None:
        """Return: the password is read when it is needed."""

    def collect(self, snapshot: Snapshot) -> None:
        """Add nothing: a password that cannot be read is a failed login."""

    async def _current(self) -> str:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                return await asyncio.to_thread(self._read)
        except TimeoutError:
            raise LoginError(f"{self._secret} was not read within {READ_TIMEOUT:g} s") from None

    def _read(self) -> str:
        try:
            password = self._secret.read()
            password.encode()  # the environment may have bytes that are not text
        except OSError as error:
            raise LoginError(f"{self._secret} cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise LoginError(f"{self._secret} is not text") from None
        except ValueError as error:
            raise LoginError(str(error)) from None
        if not password or "\0" in password:
            raise LoginError(f"{self._secret} holds no password")
        return password


class TokenIdentity:
    """Bearer token, for OAUTHBEARER."""

    def __init__(self, tokens: FileTokens | EndpointTokens) -> None:
        self._tokens = tokens

    async def exchange(self) -> ClientExchange:
        """Begin a login with the current token. Raises LoginError."""
        try:
            return OAuthBearerClient(await self._tokens.current())
        except TokenUnavailable as error:
            raise LoginError(error.reason) from None

    async def run(self) -> None:
        """Fetch each token before the one in use expires."""
        if isinstance(self._tokens, EndpointTokens):
            await self._tokens.run()

    def collect(self, snapshot: Snapshot) -> None:
        """Add when the token expires, and how often none could be fetched."""
        failures = self._tokens.refresh_failures
        snapshot.count(registry.UPSTREAM_TOKEN_REFRESH_FAILURES, failures)
        if (expiry := self._tokens.expires_at) is not None:
            snapshot.gauge(registry.UPSTREAM_TOKEN_EXPIRY, expiry)
