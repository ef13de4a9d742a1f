"""TLS contexts of one side, kept up to date with their files.

Rules:

- A replacement is judged before it is used; a bad one is refused, told once, and the old one kept.
- Open connections keep what they were opened with.
- A new certificate of the same kind goes into the living context, whose session tickets stay
  valid: the workers share their key, because the context is older than they are. Whatever else
  changes makes a new context: no context forgets an authority, or a certificate of another kind,
  and a session that was resumed is not verified anew.
"""

import logging
import ssl
from dataclasses import dataclass
from typing import Final

from proxy.config.listener import Listener
from proxy.config.model import Config, Upstream
from proxy.config.tls import ClientAuth, ListenerTls, TlsSettings, UpstreamTls
from proxy.errors import ConfigError
from proxy.tls.material import Material, Signatures, read, signatures

log = logging.getLogger(__name__)

RETRY_AFTER: Final = 60.0
"""Seconds after which refused files are checked again: a certificate may have become valid by
then."""

_VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def listener_context(settings: ListenerTls, material: Material) -> ssl.SSLContext:
    """Return what clients are met with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _VERIFY[settings.ssl_client_auth]
    _prepare(context, settings, material)
    return context


def upstream_context(settings: UpstreamTls, material: Material) -> ssl.SSLContext:
    """Return what brokers are met with."""
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
    # Java takes every certificate of a truststore for an authority, not those at a root alone.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if material.trusted:
        context.load_verify_locations(cadata=material.trusted.decode("ascii", "replace"))
    if settings.ssl_cipher_suites:
        context.set_ciphers(":".join(map(_known_cipher, settings.ssl_cipher_suites)))
    material.load_into(context)


def _known_cipher(suite: str) -> str:
    """Return OpenSSL's name of a suite, which passes over in silence what it does not know."""
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


@dataclass(frozen=True, slots=True)
class Replacement:
    """New certificate files, checked and not in effect yet."""

    material: Material
    context: ssl.SSLContext | None
    """The new context; None: the present context takes the certificate."""


class Tls:
    """TLS context of one side, and the material that it was made from."""

    def __init__(self, settings: ListenerTls | UpstreamTls, name: str, wall: float) -> None:
        """Read the files; `name` is for the log. Raises ConfigError."""
        self._settings = settings
        self._name = name
        self._looked = self._seen = signatures(settings)
        self._refused: str | None = None
        self._refused_at = 0.0
        self._material = read(settings, wall)
        self.context = self._make(self._material)
        """The context of future connections."""

    @property
    def expires_at(self) -> float | None:
        """End of our own certificate in Unix time; None: there is none."""
        return self._material.expires_at

    def look(self, wall: float) -> Replacement | None:
        """Look whether there is a replacement; may take a while, so not on the event loop."""
        looked, self._looked = self._looked, signatures(self._settings)
        if self._looked != looked:
            return None  # still being written
        if self._looked == self._seen and not self._is_to_be_retried(wall):
            return None
        before = self._looked
        try:
            material = read(self._settings, wall)
            return self._replacement(material, before)
        except (ConfigError, ssl.SSLError) as error:
            self._refuse(str(error), wall)
        self._seen = before
        return None

    def _is_to_be_retried(self, wall: float) -> bool:
        return self._refused is not None and wall >= self._refused_at + RETRY_AFTER

    def _replacement(self, material: Material, before: Signatures) -> Replacement | None:
        self._seen = before
        self._refused = None
        if material == self._material:
            return None
        same_kind = (
            material.trusted == self._material.trusted
            and material.algorithm == self._material.algorithm
        )
        return Replacement(material, None if same_kind else self._make(material))

    def _refuse(self, problem: str, wall: float) -> None:
        if problem != self._refused:
            log.error("%s: certificate not replaced, the old one stays: %s", self._name, problem)
        self._refused, self._refused_at = problem, wall

    def take(self, replacement: Replacement) -> None:
        """Put a replacement into effect; on the event loop, where nobody else uses the context."""
        if replacement.context is None:
            replacement.material.load_into(self.context)
        else:
            self.context = replacement.context
        self._material = replacement.material
        log.info("%s: certificate replaced", self._name)

    def _make(self, material: Material) -> ssl.SSLContext:
        if isinstance(self._settings, UpstreamTls):
            return upstream_context(self._settings, material)
        return listener_context(self._settings, material)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOfAll:
    """TLS contexts of a proxy: made before its workers, which share the keys of session tickets."""

    listeners: dict[str, Tls]
    """The contexts by listener name, without listeners that have no TLS."""
    upstream: Tls | None = None

    @property
    def all(self) -> tuple[Tls, ...]:
        """Every context there is."""
        mine = () if self.upstream is None else (self.upstream,)
        return (*self.listeners.values(), *mine)


def open_tls(config: Config, wall: float) -> TlsOfAll:
    """Read every file that TLS needs; `wall` is Unix time. Raises ConfigError."""
    listeners = {
        one.name: _open(one, f"listener {one.name}", f"listeners[{index}]", wall)
        for index, one in enumerate(config.listeners)
        if one.tls
    }
    return TlsOfAll(listeners=listeners, upstream=open_upstream_tls(config.upstream, wall))


def open_upstream_tls(upstream: Upstream, wall: float) -> Tls | None:
    """Read what TLS towards brokers needs; None: there is none. Raises ConfigError."""
    return _open(upstream, "upstream", "upstream", wall) if upstream.tls else None


def _open(settings: Listener | UpstreamTls, name: str, path: str, wall: float) -> Tls:
    try:
        return Tls(settings, name, wall)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error.path}", error.problem) from None
