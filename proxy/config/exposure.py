"""Warnings about what a configuration exposes to unauthenticated clients."""

import ipaddress
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from proxy.acl.model import AuthorizerMode
from proxy.acl.principals import ANONYMOUS
from proxy.config.listener import Listener
from proxy.config.model import Authorizer, Config, Upstream
from proxy.config.security import ClientAuth, UpstreamIdentity

_SECRETS: Final = {"PLAIN": "password", "OAUTHBEARER": "token", "AWS_MSK_IAM": "signature"}
"""The part of a login that is readable without TLS, by mechanism."""


def exposures(config: Config) -> tuple[str, ...]:
    """Return a sentence for each open listener, each unchecked claim or address, the permissions
    that clients get from the proxy's own identity, and each secret that is sent in the clear."""
    return (
        *_open_listeners(config),
        *_claimed_addresses(config),
        *_unverified_tokens(config),
        *_borrowed_permissions(config),
        *_readable_secrets(config.upstream),
        *_readable_client_secrets(config),
    )


def _open_listeners(config: Config) -> Iterator[str]:
    """Yield a sentence for each listener that serves clients without authentication."""
    granted = _granted_to_anonymous(config.authorizer)
    if granted is None:
        return
    for one in config.listeners:
        if (cause := _unauthenticated_access(one)) is not None:
            yield (
                f"listener {one.name} serves every client that reaches {one.address} ({cause}),"
                f" and {granted}"
            )


def _claimed_addresses(config: Config) -> Iterator[str]:
    """Yield a sentence for each listener on which every client can choose its address."""
    for one in config.listeners:
        for network in one.proxy_protocol_trusted:
            if network.prefixlen == 0:
                yield (
                    f"listener {one.name}: every client can claim any address"
                    f" (proxy.protocol.trusted: {network})"
                )


def _unverified_tokens(config: Config) -> Iterator[str]:
    """Yield a sentence for each claim that a listener does not check, as Kafka 4.4 warns."""
    for one in config.listeners:
        for name, issuer in one.token_issuers().items():
            whose = f" of {name}" if name else ""
            if not issuer.sasl_oauthbearer_expected_audience:
                yield (
                    f"listener {one.name} accepts tokens{whose} for any service"
                    " (sasl.oauthbearer.allow.unverified.audience: true)"
                )
            if issuer.sasl_oauthbearer_expected_issuer is None:
                yield (
                    f"listener {one.name} accepts tokens of any issuer"
                    " (sasl.oauthbearer.allow.unverified.issuer: true)"
                )


def _borrowed_permissions(config: Config) -> Iterator[str]:
    """Yield a sentence if clients have all permissions of the proxy: brokers see only the proxy's
    identity, and the proxy denies nothing."""
    cause = _identity_setting(config.upstream)
    mode = config.authorizer.mode
    borrows = not all(one.relays_logins or one.presents_clients for one in config.listeners)
    if cause is not None and borrows and mode is not AuthorizerMode.ENFORCE:
        yield (
            f"every client may do what brokers allow the proxy itself ({cause}), and nothing is"
            f" denied (authorizer.mode: {mode})"
        )


def _identity_setting(upstream: Upstream) -> str | None:
    """Return the setting that identifies the proxy to brokers; None if it has no identity."""
    if upstream.sasl_mechanism is not None:
        return f"upstream.sasl.mechanism: {upstream.sasl_mechanism}"
    if upstream.tls and upstream.ssl_keystore_location is not None:
        return "upstream.ssl.keystore.location"
    return None


def _unauthenticated_access(listener: Listener) -> str | None:
    """Return the setting that admits clients without authentication; None if they must log in."""
    if listener.sasl:
        return None
    if not listener.tls:
        return f"security.protocol: {listener.security_protocol}"
    if listener.ssl_client_auth is ClientAuth.REQUIRED:
        return None
    return f"security.protocol: SSL, ssl.client.auth: {listener.ssl_client_auth}"


def _granted_to_anonymous(authorizer: Authorizer) -> str | None:
    """Return the reason why `User:ANONYMOUS` may do more than ACLs allow; None if it may not."""
    if authorizer.mode is not AuthorizerMode.ENFORCE:
        return f"nothing is denied (authorizer.mode: {authorizer.mode})"
    if ANONYMOUS in authorizer.super_users:
        return f"nothing is denied ({ANONYMOUS} is one of authorizer.super.users)"
    if authorizer.allow_everyone_if_no_acl_found:
        return "resources without ACLs are open to all (authorizer.allow.everyone.if.no.acl.found)"
    return None


def _readable_secrets(upstream: Upstream) -> Iterator[str]:
    """Yield a sentence for each credential of the proxy that is sent in the clear."""
    secret = _SECRETS.get(upstream.sasl_mechanism or "")
    broker = _broker_elsewhere(upstream)
    if secret is not None and not upstream.tls and broker is not None:
        yield (
            f"the proxy's {secret} goes to brokers in the clear, such as {broker}"
            f" (upstream.security.protocol: {upstream.security_protocol})"
        )
    url = urlsplit(upstream.sasl_oauthbearer_token_endpoint_url or "")
    if url.scheme == "http" and not _is_local(url.hostname or ""):
        sent = "assertion" if upstream.asserts() else "client secret"
        yield (
            f"the proxy's {sent} goes to {url.hostname} in the clear"
            " (upstream.sasl.oauthbearer.token.endpoint.url is http:)"
        )


def _readable_client_secrets(config: Config) -> Iterator[str]:
    """Yield a sentence for each listener to which clients send credentials without TLS."""
    broker = _broker_elsewhere(config.upstream)
    for one in config.listeners:
        secret = _SECRETS.get(one.upstream_identity_mechanism or "")
        if one.upstream_identity is UpstreamIdentity.MINTED_TOKEN:
            secret = "token"  # noqa: S105 - no password
        if secret is not None and not config.upstream.tls and broker is not None:
            yield (
                f"listener {one.name}: each client's {secret} goes to brokers in the clear, such as"
                f" {broker} (upstream.security.protocol: {config.upstream.security_protocol})"
            )


def _broker_elsewhere(upstream: Upstream) -> str | None:
    """Return a configured broker or network that is not on this machine; None if all are."""
    servers = [str(one) for one in upstream.bootstrap_servers if not _is_local(one.host)]
    networks = [str(one.network) for one in upstream.allowed if not one.network.is_loopback]
    return next(iter(servers + networks), None)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
