"""What a configuration leaves open to strangers. It may be meant so, so it is told, not refused."""

from proxy.acl.model import AuthorizerMode
from proxy.config.listener import Listener
from proxy.config.model import Authorizer, Config
from proxy.config.tls import ClientAuth
from proxy.tls.identity import ANONYMOUS


def exposures(config: Config) -> tuple[str, ...]:
    """Return a sentence for each listener whose clients need not say who they are, and are let."""
    granted = _granted_to_strangers(config.authorizer)
    if granted is None:
        return ()
    return tuple(
        f"listener {one.name} serves whoever reaches {one.address} ({cause}), and {granted}"
        for one in config.listeners
        if (cause := _lets_strangers_in(one)) is not None
    )


def _lets_strangers_in(listener: Listener) -> str | None:
    """Return why a client need not say who it is; None: it has to."""
    if listener.sasl:
        return None
    if not listener.tls:
        return f"security.protocol: {listener.security_protocol}"
    if listener.ssl_client_auth is ClientAuth.REQUIRED:
        return None
    return f"security.protocol: SSL, ssl.client.auth: {listener.ssl_client_auth}"


def _granted_to_strangers(authorizer: Authorizer) -> str | None:
    """Return why `User:ANONYMOUS` may do more than ACLs say; None: it may not."""
    if authorizer.mode is not AuthorizerMode.ENFORCE:
        return f"nothing is denied (authorizer.mode: {authorizer.mode})"
    if ANONYMOUS in authorizer.super_users:
        return f"nothing is denied ({ANONYMOUS} is one of authorizer.super.users)"
    if authorizer.allow_everyone_if_no_acl_found:
        return "what no ACL names is open to all (authorizer.allow.everyone.if.no.acl.found)"
    return None
