"""Certificate and key files, including PKCS #12 (RFC 7292), which are read and checked before use.

The bytes in use are those that were checked, so a file that is replaced meanwhile cannot be used
unchecked.
"""

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from proxy.config.security import TlsSettings, files_of
from proxy.errors import ConfigError
from proxy.scheduling.file_signature import Signature, signature_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MAX_BYTES: Final = 4_194_304
"""Largest file in bytes; the authorities that systems trust take about 250 KB."""
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_CERTIFICATE_END: Final = b"-----END CERTIFICATE-----"

T = TypeVar("T")

Signatures = tuple[Signature, ...]
"""Signatures of all files of one side, to detect changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Checked contents of the files of one side."""

    chain: bytes
    """Certificates as PEM, the proxy's own first; empty if no certificate is sent."""
    key: bytes = field(repr=False)
    """The private key as PEM; empty if it is in `chain`."""
    password: str | None = field(repr=False)
    """The password of the private key; None if the key is not encrypted."""
    trusted: bytes
    """Trusted certificates as PEM. If empty, a listener trusts no certificates, and connections to
    brokers trust those that the system trusts."""
    algorithm: str
    """The algorithm of the key; a context has one certificate for each."""
    expires_at: float | None
    """The expiry of the proxy's own certificate in Unix time; None without a certificate."""
    hosts: frozenset[str] = frozenset()
    """The hosts that the proxy's own certificate is for; see `hosts_of`."""

    def load_into(self, context: ssl.SSLContext) -> None:
        """Make a context present the certificate. Raises ssl.SSLError."""
        if not self.chain:
            return
        # Python's ssl module loads keys from files only; this file exists only in memory.
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, self.key + b"\n" + self.chain)
            password = self.password or ""  # never None, or OpenSSL would prompt for it
            context.load_cert_chain(f"/proc/self/fd/{file}", password=lambda: password)
        finally:
            os.close(file)


def signatures(settings: TlsSettings) -> Signatures:
    """Return the signatures of the files, without reading them."""
    return tuple(signature_of(path) for path in files_of(settings))


def read(settings: TlsSettings, wall: float) -> Material:
    """Read and check all files of one side; `wall` is Unix time.

    Raises ConfigError with the key of the setting whose file is at fault.
    """
    chain = _contents("ssl.keystore.location", settings.ssl_keystore_location)
    key_file = settings.ssl_keystore_key_location
    key = chain if key_file is None else _contents("ssl.keystore.key.location", key_file)
    trusted = _contents("ssl.truststore.location", settings.ssl_truststore_location)
    secret = settings.ssl_key_password
    password = None if secret is None else _read_setting("ssl.key.password", secret.read)
    algorithm, expires_at, hosts = "", None, frozenset[str]()
    if chain:
        algorithm, expires_at, hosts = _check_own(chain, wall)
    if settings.ssl_truststore_location is not None:
        certificates("ssl.truststore.location", trusted)
    material = Material(
        chain=chain,
        key=b"" if key is chain else key,
        password=password,
        trusted=trusted,
        algorithm=algorithm,
        expires_at=expires_at,
        hosts=hosts,
    )
    key_setting = "ssl.keystore.location" if key_file is None else "ssl.keystore.key.location"
    check_material(material, key_setting, "ssl.truststore.location")
    return material


def _contents(key: str, path: Path | None) -> bytes:
    if path is None:
        return b""

    def contents() -> bytes:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)

    found = _read_setting(key, contents)
    if len(found) > MAX_BYTES:
        raise ConfigError(key, f"{path} is larger than {MAX_BYTES} bytes")
    if not found.strip():
        raise ConfigError(key, f"{path} is empty")
    return found


def _read_setting(key: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        raise ConfigError(key, f"{error.filename} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise ConfigError(key, "is not text") from None
    except ValueError as error:
        raise ConfigError(key, str(error)) from None


def _check_own(chain: bytes, wall: float) -> tuple[str, float, frozenset[str]]:
    """Return the key algorithm of the proxy's own certificate, its expiry in Unix time, and its
    hosts."""
    key = "ssl.keystore.location"
    own = certificates(key, chain)[0]
    begins_at = own.not_valid_before_utc.timestamp()
    expires_at = own.not_valid_after_utc.timestamp()
    if wall >= expires_at:
        raise ConfigError(key, f"the certificate expired {_date(expires_at)}")
    if wall < begins_at:
        raise ConfigError(key, f"the certificate is not valid before {_date(begins_at)}")
    return _algorithm(key, own), expires_at, hosts_of(own)


def hosts_of(certificate: "Certificate") -> frozenset[str]:
    """Return the host names, perhaps with a wildcard, and IP addresses of a certificate, in lower
    case. Empty if they do not parse: a client cannot parse them either."""
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:  # Kafka's clients then use the common name
        subject = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return frozenset(str(one.value).lower() for one in subject)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return frozenset()
    names = [one.lower() for one in extension.value.get_values_for_type(x509.DNSName)]
    addresses = extension.value.get_values_for_type(x509.IPAddress)
    return frozenset((*names, *map(str, addresses)))


def is_for_host(hosts: frozenset[str], host: str) -> bool:
    """Return whether clients that verify the host name accept a certificate for `hosts` (RFC 9525
    section 6). `host` is in lower case."""
    return host in hosts or f"*.{host.partition('.')[2]}" in hosts


def _algorithm(key: str, own: "Certificate") -> str:
    """Return the algorithm of a certificate's key, which must be one that clients accept."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    kinds = (
        rsa.RSAPublicKey,
        ec.EllipticCurvePublicKey,
        ed25519.Ed25519PublicKey,
        ed448.Ed448PublicKey,
    )
    try:
        public = own.public_key()
    except (UnsupportedAlgorithm, ValueError):
        public = None
    if not isinstance(public, kinds):
        raise ConfigError(key, "the certificate's key must be RSA, EC, Ed25519 or Ed448")
    return type(public).__name__


def certificates(key: str, pem: bytes) -> "list[Certificate]":
    """Parse all certificates; raises ConfigError with `key`, also if the file is incomplete."""
    from cryptography import x509  # imported only with TLS
    from cryptography.exceptions import UnsupportedAlgorithm

    begins, ends = pem.count(_CERTIFICATE), pem.count(_CERTIFICATE_END)
    if not begins:
        raise ConfigError(key, "holds no certificate in PEM")
    if begins != ends or pem.count(b"-----BEGIN ") != pem.count(b"-----END "):
        raise ConfigError(key, "is cut off in the middle")
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise ConfigError(key, "holds a certificate that does not parse") from None


def check_material(material: Material, key_setting: str, trust_setting: str) -> None:
    """Check that OpenSSL can load the material, in a temporary context.

    Raises ConfigError with the setting at fault, one of the two.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        material.load_into(context)
    except ssl.SSLError as error:
        raise ConfigError(key_setting, _why_not_loaded(material, error)) from None
    if material.trusted:
        try:
            context.load_verify_locations(cadata=material.trusted.decode("ascii", "replace"))
        except ssl.SSLError as error:
            problem = f"cannot be used: {words(error.reason)}"
            raise ConfigError(trust_setting, problem) from None


def _why_not_loaded(material: Material, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate"
    pem = material.key or material.chain
    if b"PRIVATE KEY-----" not in pem:
        return "holds no private key in PEM"
    if b"ENCRYPTED" in pem and material.password is None:
        return "the private key is encrypted: set ssl.key.password"
    if b"ENCRYPTED" in pem:
        return "the private key cannot be decrypted with ssl.key.password"
    return f"cannot be used: {words(error.reason)}"


def words(reason: str | None) -> str:
    """Return OpenSSL's name of a reason in words."""
    return (reason or "unknown reason").replace("_", " ").lower()


def _date(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pkcs12:
    """Contents of a PKCS #12 file, as PEM."""

    key: bytes = field(repr=False)
    """The first private key, decrypted; empty if there is no key."""
    chain: bytes
    """The key's certificate, followed by its chain; empty if there is no key."""
    certificates: bytes
    """All other certificates; empty if the file has no others."""


def read_pkcs12(data: bytes, password: str) -> Pkcs12:
    """Decrypt a file. Raises ValueError if it is invalid or damaged, or has another password."""
    from cryptography.exceptions import UnsupportedAlgorithm  # imported only with TLS
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    key = b""
    if store.key is not None:
        key = store.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    others = [one.certificate for one in store.additional_certs]
    own = None if store.cert is None else store.cert.certificate
    chain = [] if own is None else _chain(own, others)
    return Pkcs12(key=key, chain=_pem(chain), certificates=_pem(others))


def _chain(own: "Certificate", others: "Sequence[Certificate]") -> "list[Certificate]":
    """Order certificates as TLS 1.2 requires, issuers last; the file has them in any order."""
    chain = [own]
    while chain[-1].issuer != chain[-1].subject:
        above = (one for one in others if one.subject == chain[-1].issuer and one not in chain)
        found = next(above, None)
        if found is None:
            break
        chain.append(found)
    return chain


def _pem(certificates: "Sequence[Certificate]") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
