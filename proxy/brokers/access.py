"""Access to brokers: transport security and identity."""

import ssl
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Protocol

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.brokers.token_source import (
    EndpointTokens,
    FileTokens,
    RenewedTokens,
    read_in_time,
    read_secret,
)
from proxy.config.security import MSK_IAM, UpstreamSasl
from proxy.config.values import Secret
from proxy.net.dialler import Dialler
from sasl.credentials import ScramMechanism
from sasl.login import ClientExchange, OAuthBearerClient, PlainClient, SaltedPasswords, ScramClient

LOOK_EVERY: Final = 1.0
"""Seconds for which a password is used before it is read again: thousands of clients may connect at
once."""


class UpstreamIdentity(Protocol):
    """Identity that the proxy logs in with."""

    async def exchange(self, host: str = "", /) -> ClientExchange:
        """Begin a login at a broker's host with the current credentials. Raises LoginError."""

    async def run(self) -> None:
        """Keep the credentials fresh; returns if there is nothing to do."""

    def collect(self, snapshot: Snapshot) -> None:
        """Add the values of the identity."""


class PasswordIdentity:
    """User name and password, for PLAIN or SCRAM."""

    def __init__(self, mechanism: str, username: str | Secret, password: Secret) -> None:
        self._mechanism = mechanism
        self._user = username
        self._secret = password
        self._salted = SaltedPasswords()
        self._username = self._password = ""
        self._read_at: float | None = None

    async def exchange(self, _host: str = "", /) -> ClientExchange:
        """Begin a login with the current password. Raises LoginError."""
        if self._read_at is None or monotonic() - self._read_at >= LOOK_EVERY:
            self._username, self._password = await read_in_time(self._read, self._secret)
            self._read_at = monotonic()
        if self._mechanism == PlainClient.mechanism:
            return PlainClient(self._username, self._password)
        mechanism = ScramMechanism(self._mechanism)
        return ScramClient(mechanism, self._username, self._password, self._salted)

    async def run(self) -> None:
        """Return at once: the password is read when it is needed."""

    def collect(self, snapshot: Snapshot) -> None:
        """Add nothing: an unreadable password counts as a failed login."""

    def _read(self) -> tuple[str, str]:
        user = self._user
        username = user if isinstance(user, str) else read_secret(user, "user name")
        return username, read_secret(self._secret, "password")


class TokenIdentity:
    """Bearer token, for OAUTHBEARER."""

    def __init__(self, tokens: FileTokens | RenewedTokens) -> None:
        self._tokens = tokens

    async def exchange(self, _host: str = "", /) -> ClientExchange:
        """Begin a login with the current token. Raises LoginError."""
        return OAuthBearerClient(await self._tokens.current())

    async def run(self) -> None:
        """Fetch each token before the one in use expires."""
        if isinstance(self._tokens, RenewedTokens):
            await self._tokens.run()

    def collect(self, snapshot: Snapshot) -> None:
        """Add the token's expiry, and the number of failed fetches."""
        failures = self._tokens.refresh_failures
        snapshot.count(registry.UPSTREAM_TOKEN_REFRESH_FAILURES, failures)
        if (expiry := self._tokens.expires_at) is not None:
            snapshot.gauge(registry.UPSTREAM_TOKEN_EXPIRY, expiry)


class TlsSource(Protocol):
    """Source of the current TLS context: it changes when certificates are replaced."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of future connections."""

    @property
    def expires_at(self) -> float | None:
        """Expiry of the proxy's own certificate in Unix time; None without a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Settings of the connections to every broker."""

    timeout_s: float
    """Timeout in seconds of a connection's setup, and of each request of the proxy's own."""
    dialler: Dialler = field(default_factory=Dialler)
    """Opens the connections."""
    tls: TlsSource | None = None
    """Source of the TLS context; None for connections without TLS."""
    identity: UpstreamIdentity | None = None
    """Identity of the login to brokers; None if the proxy does not log in."""
    username: str | None = None
    """User name of that login; None without a login, or if a token holds it."""
    max_creation_rate: int | None = None
    """Maximum number of connections per second to each broker; None for no limit."""
    clients_log_in: bool = False
    """True if brokers expect a login and the proxy does not log in: clients do that themselves
    (`sasl.termination: broker`), and the proxy's own requests are those that brokers answer before
    a login."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """The current TLS context; None for connections without TLS."""
        return None if self.tls is None else self.tls.context

    def collect(self, snapshot: Snapshot) -> None:
        """Add the expiry of the proxy's certificate and token."""
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            snapshot.gauge(registry.UPSTREAM_CERTIFICATE_EXPIRY, expiry)
        if self.identity is not None:
            self.identity.collect(snapshot)


def open_access(settings: config.Upstream, tls: TlsSource | None) -> Access:
    """Return the configured access; without `tls`, connections do not use TLS."""
    return Access(
        timeout_s=settings.socket_connection_setup_timeout_ms / 1000,
        dialler=Dialler(
            settings.socket_keepalive_idle_ms,
            sends_header=settings.proxy_protocol is config.UpstreamProxyProtocol.V2,
        ),
        tls=tls,
        identity=_identity(settings) if settings.sasl_mechanism is not None else None,
        username=settings.sasl_username,
        max_creation_rate=settings.connection_rate(),
        clients_log_in=settings.sasl and settings.sasl_mechanism is None,
    )


def _identity(settings: config.Upstream) -> UpstreamIdentity:
    mechanism, username = settings.sasl_mechanism, settings.sasl_username
    password = settings.sasl_password
    if mechanism is not None and username is not None and password is not None:
        return PasswordIdentity(mechanism, username, password)
    servers = ",".join(map(str, settings.bootstrap_servers))
    if mechanism == MSK_IAM:
        from proxy.brokers.token_providers import MskIamIdentity

        return MskIamIdentity(servers)
    return TokenIdentity(token_source(settings, servers))


def token_source(settings: UpstreamSasl, servers: str) -> FileTokens | RenewedTokens:
    """Return the configured source of tokens for brokers; `servers` is their `bootstrap.servers`,
    from which a cloud's provider takes its region."""
    if settings.sasl_login_provider is not None:
        from proxy.brokers.token_providers import provided_tokens

        return provided_tokens(settings, servers)
    if (file := settings.token_file()) is not None:
        return FileTokens(file)
    if settings.asserts():
        from proxy.brokers.signed_tokens import AssertedTokens

        return AssertedTokens(settings)
    url = settings.sasl_oauthbearer_token_endpoint_url
    client_id = settings.sasl_oauthbearer_client_credentials_client_id
    secret = settings.sasl_oauthbearer_client_credentials_client_secret
    assert url is not None
    assert client_id is not None
    assert secret is not None
    return EndpointTokens(
        url,
        client_id=client_id,
        client_secret=partial(read_secret, secret, "client secret"),
        scope=settings.sasl_oauthbearer_scope,
        header_urlencode=settings.sasl_oauthbearer_header_urlencode or False,
    )
