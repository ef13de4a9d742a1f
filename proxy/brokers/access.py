"""Access to brokers: transport security and identity."""

import ssl
from dataclasses import dataclass, field
from typing import Protocol

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.brokers.identity import PasswordIdentity, TokenIdentity, UpstreamIdentity
from proxy.brokers.token_source import EndpointTokens, FileTokens
from proxy.config.upstream_sasl import UpstreamSasl
from proxy.net.dialler import Dialler


class TlsSource(Protocol):
    """Source of the current TLS context: it changes when certificates are replaced."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of future connections."""
        ...

    @property
    def expires_at(self) -> float | None:
        """Expiry of the proxy's own certificate in Unix time; None: there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Settings of the connections to every broker."""

    timeout_s: float
    """Timeout in seconds of a connection's setup, and of each request of the proxy's own."""
    dialler: Dialler = field(default_factory=Dialler)
    """Opens the connections."""
    tls: TlsSource | None = None
    """The source of the TLS context; None: connections are without TLS."""
    identity: UpstreamIdentity | None = None
    """The identity of the login to brokers; None: there is no login."""
    clients_log_in: bool = False
    """True if brokers expect a login that the proxy does not have: its clients log in themselves
    (`sasl.termination: broker`), and it asks brokers only what they answer before a login."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """The current TLS context; None: connections are without TLS."""
        return None if self.tls is None else self.tls.context

    def collect(self, snapshot: Snapshot) -> None:
        """Add when the proxy's certificate and token expire."""
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            snapshot.gauge(registry.UPSTREAM_CERTIFICATE_EXPIRY, expiry)
        if self.identity is not None:
            self.identity.collect(snapshot)


def open_access(settings: config.Upstream, tls: TlsSource | None) -> Access:
    """Return the access that is configured; `tls` is None if connections are without TLS."""
    return Access(
        timeout_s=settings.socket_connection_setup_timeout_ms / 1000,
        dialler=Dialler(settings.socket_keepalive_idle_ms),
        tls=tls,
        identity=_identity(settings) if settings.sasl_mechanism is not None else None,
        clients_log_in=settings.sasl and settings.sasl_mechanism is None,
    )


def _identity(settings: config.Upstream) -> UpstreamIdentity:
    mechanism, username = settings.sasl_mechanism, settings.sasl_username
    password = settings.sasl_password
    if mechanism is not None and username is not None and password is not None:
        return PasswordIdentity(mechanism, username, password)
    if (file := settings.token_file()) is not None:
        return TokenIdentity(FileTokens(file))
    return TokenIdentity(endpoint_tokens(settings))


def endpoint_tokens(settings: UpstreamSasl) -> EndpointTokens:
    """Return the tokens of the token endpoint that is configured."""
    url = settings.sasl_oauthbearer_token_endpoint_url
    client_id = settings.sasl_oauthbearer_client_credentials_client_id
    secret = settings.sasl_oauthbearer_client_credentials_client_secret
    assert url is not None
    assert client_id is not None
    assert secret is not None
    return EndpointTokens(
        url,
        client_id=client_id,
        client_secret=secret.read,
        scope=settings.sasl_oauthbearer_scope,
        header_urlencode=settings.sasl_oauthbearer_header_urlencode or False,
    )
