"""TLS contexts of one side, kept up to date with their files.

Rules:

- A replacement is checked before it is used; an invalid one is refused and logged once, and the old
  one stays.
- Open connections keep the certificates that they were opened with.
- A new certificate of the same kind is loaded into the current context, whose session tickets stay
  valid: the workers share its ticket key, because it was made before they were forked. Any other
  change makes a new context: a context never forgets an authority, or a certificate of another
  kind, and a resumed session is not verified again.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Collection
from copy import copy
from typing import Final, NamedTuple

from proxy.config.listener import Listener
from proxy.config.model import Config, Upstream
from proxy.config.security import ClientAuth, ListenerTls, TlsSettings, UpstreamTls
from proxy.errors import ConfigError
from proxy.net.tls_material import Material, is_for_host, read, signatures

log = logging.getLogger(__name__)

RETRY_AFTER: Final = 60.0
"""Seconds after which refused files are checked again: their certificate may be valid by then."""

TICKETS: Final = 1
"""Number of session tickets after a full handshake of TLS 1.3: Kafka's own listeners (JSSE) also
send one, and a client that keeps its connection uses no more. OpenSSL's default is two, each made
from another copy of the session."""

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def listener_context(settings: ListenerTls, material: Material) -> ssl.SSLContext:
    """Return the context for connections of clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _VERIFY[settings.ssl_client_auth]
    context.num_tickets = TICKETS
    _prepare(context, settings, material)
    return context


def upstream_context(settings: UpstreamTls, material: Material) -> ssl.SSLContext:
    """Return the context for connections to brokers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm == "https"
    if not material.trusted:
        context.load_default_certs()
    _prepare(context, settings, material)
    return context


def _prepare(context: ssl.SSLContext, settings: TlsSettings, material: Material) -> None:
    versions = [_VERSIONS[name] for name in settings.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Java trusts every certificate of a truststore as an authority, not only root certificates.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if material.trusted:
        context.load_verify_locations(cadata=material.trusted.decode("ascii", "replace"))
    if settings.ssl_cipher_suites:
        context.set_ciphers(":".join(map(_known_cipher, settings.ssl_cipher_suites)))
    material.load_into(context)


def _known_cipher(suite: str) -> str:
    """Return OpenSSL's name of a suite; raises ConfigError for one that OpenSSL would ignore."""
    name = openssl_name(suite)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(name)
    except ssl.SSLError:
        raise ConfigError("ssl.cipher.suites", f"OpenSSL here has no {suite}") from None
    return name


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2 that has a standard name (RFC 8447)."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    parts = [] if exchange == "RSA" else exchange.split("_")
    words = cipher.split("_")
    if words[0] in ("AES", "CAMELLIA", "ARIA") and len(words) > 2:
        words[:2] = [words[0] + words[1]]
        words = [word for word in words if word != "CBC"]
    if words[0] == "CHACHA20":
        words = words[:2]
    return "-".join((*parts, *words))


class Replacement(NamedTuple):
    """Checked contents of new certificate files, not in effect yet."""

    material: Material
    context: ssl.SSLContext | None
    """The new context; None if the certificate is loaded into the current context."""


class Tls:
    """TLS context of one side, and the material that it was made from."""

    def __init__(self, settings: ListenerTls | UpstreamTls, name: str, wall: float) -> None:
        """Read the files; `name` is for the log, `wall` is Unix time. Raises ConfigError."""
        self._settings = settings
        self._name = name
        self._last_seen = self._last_read = signatures(settings)
        """Signatures of the files at the last check, and at the last read."""
        self._refused: str | None = None
        """The problem of the files that were last read; None if they were valid."""
        self._refused_at = 0.0
        self.material = read(settings, wall)
        """The contents of the files."""
        self.context = self._make(self.material)
        """The context of future connections."""
        self.others: tuple[Tls, ...] = ()
        """The contexts with the further certificates, in the order of `ssl.keystores`."""

    def context_for(self, host: str) -> ssl.SSLContext:
        """Return the context whose certificate is for a host: one of `others`, or this one."""
        matching = (one for one in self.others if is_for_host(one.material.hosts, host))
        return next(matching, self).context

    @property
    def expires_at(self) -> float | None:
        """Earliest expiry of the proxy's own certificates in Unix time; None without one."""
        found = [one.material.expires_at for one in (self, *self.others)]
        return min((when for when in found if when is not None), default=None)

    def check(self, wall: float) -> Replacement | None:
        """Return a replacement if the files have changed; reads files, so not on the event loop."""
        before, self._last_seen = self._last_seen, signatures(self._settings)
        if self._last_seen != before:
            return None  # still being written
        retries = self._refused is not None and wall >= self._refused_at + RETRY_AFTER
        if self._last_seen == self._last_read and not retries:
            return None
        replacement = None
        try:
            replacement = self._replacement(read(self._settings, wall))
        except (ConfigError, ssl.SSLError) as error:
            self._refuse(str(error), wall)
        self._last_read = self._last_seen
        return replacement

    def _replacement(self, material: Material) -> Replacement | None:
        self._refused = None
        if material == self.material:
            return None
        same_kind = (
            material.trusted == self.material.trusted
            and material.algorithm == self.material.algorithm
        )
        return Replacement(material, None if same_kind else self._make(material))

    def _refuse(self, problem: str, wall: float) -> None:
        if problem != self._refused:
            log.error("%s: certificate not replaced, the old one stays: %s", self._name, problem)
        self._refused, self._refused_at = problem, wall

    def replace(self, replacement: Replacement) -> None:
        """Put a replacement into effect; on the event loop, where all users of the context are."""
        if replacement.context is None:
            replacement.material.load_into(self.context)
        else:
            self.context = replacement.context
        self.material = replacement.material
        log.info("%s: certificate replaced", self._name)

    def _make(self, material: Material) -> ssl.SSLContext:
        if isinstance(self._settings, UpstreamTls):
            return upstream_context(self._settings, material)
        return listener_context(self._settings, material)


class ProxyTls(NamedTuple):
    """All TLS contexts of a proxy; workers, forked later, share the keys of session tickets."""

    listeners: dict[str, Tls]
    """The contexts by listener name, without listeners that have no TLS."""
    upstream: Tls | None = None
    """The context of connections to brokers; None without TLS."""

    @property
    def all(self) -> tuple[Tls, ...]:
        """All contexts."""
        others = (other for one in self.listeners.values() for other in one.others)
        upstream = () if self.upstream is None else (self.upstream,)
        return (*self.listeners.values(), *others, *upstream)


def open_tls(config: Config, wall: float) -> ProxyTls:
    """Make all contexts from their files; `wall` is Unix time. Raises ConfigError."""
    listeners = {
        one.name: open_listener_tls(index, one, wall)
        for index, one in enumerate(config.listeners)
        if one.tls
    }
    return ProxyTls(listeners=listeners, upstream=open_upstream_tls(config.upstream, wall))


def open_listener_tls(index: int, listener: Listener, wall: float) -> Tls:
    """Make the contexts of a listener with TLS. Raises ConfigError."""
    name, path = f"listener {listener.name}", f"listeners[{index}]"
    tls, others = _open(listener, name, path, wall), []
    for number, keystore in enumerate(listener.ssl_keystores):
        settings = copy(listener)
        settings.__dict__.update(keystore.__dict__)
        place = f"ssl.keystores[{number}]"
        others.append(_open(settings, f"{name}, {place}", f"{path}.{place}", wall))
    tls.others = tuple(others)
    return tls


def open_upstream_tls(upstream: Upstream, wall: float) -> Tls | None:
    """Make the context of connections to brokers; None without TLS. Raises ConfigError."""
    return _open(upstream, "upstream", "upstream", wall) if upstream.tls else None


def _open(settings: Listener | UpstreamTls, name: str, path: str, wall: float) -> Tls:
    try:
        return Tls(settings, name, wall)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error.path}", error.problem) from None


CHECK_EVERY: Final = 1.0
"""Seconds between two checks of the files."""


async def follow(certificates: Collection[Tls]) -> None:
    """Check the files of each context periodically, and put replacements into effect. Does not
    return."""
    while True:
        await asyncio.sleep(CHECK_EVERY)
        for tls in certificates:
            try:
                replacement = await asyncio.to_thread(tls.check, time.time())
                if replacement is not None:
                    tls.replace(replacement)
            except Exception:  # the old certificate stays until the next check
                log.exception("a certificate could not be checked")
