"""Access to brokers: transport security and identity."""

import ssl
from dataclasses import dataclass
from typing import Protocol

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.upstream.identity import PasswordIdentity, TokenIdentity, UpstreamIdentity
from proxy.upstream.token_source import EndpointTokens, FileTokens


class TlsOfNow(Protocol):
    """What TLS is spoken with, which may be replaced."""

    @property
    def context(self) -> ssl.SSLContext:
        """Of connections to come."""
        ...

    @property
    def expires_at(self) -> float | None:
        """When the certificate that is shown ends, Unix time; None: none is shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The way to every broker."""

    timeout_s: float
    """For the setup of a connection, and for a question of our own up to its answer."""
    tls: TlsOfNow | None = None
    """None: without."""
    identity: UpstreamIdentity | None = None
    """Who we log in as; None: we do not."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What TLS is spoken with now."""
        return None if self.tls is None else self.tls.context

    def collect(self, snapshot: Snapshot) -> None:
        """Add how long we shall be let in."""
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            snapshot.gauge(registry.UPSTREAM_CERTIFICATE_EXPIRY, expiry)
        if self.identity is not None:
            self.identity.collect(snapshot)


def open_access(settings: config.Upstream, tls: TlsOfNow | None) -> Access:
    """Return the way that is configured."""
    return Access(
        timeout_s=settings.socket_connection_setup_timeout_ms / 1000,
        tls=tls,
        identity=_identity(settings) if settings.sasl else None,
    )


def _identity(settings: config.Upstream) -> UpstreamIdentity:
    mechanism, username = settings.sasl_mechanism, settings.sasl_username
    password = settings.sasl_password
    if mechanism is not None and username is not None and password is not None:
        return PasswordIdentity(mechanism, username, password)
    if (file := settings.token_file()) is not None:
        return TokenIdentity(FileTokens(file))
    return TokenIdentity(_endpoint(settings))


def _endpoint(settings: config.Upstream) -> EndpointTokens:
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
