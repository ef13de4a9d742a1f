"""Certificate of the webhook: an authority of its own, and what that signs.

The API server trusts the authority (`caBundle`). Its key is thrown away when it has signed: a new
certificate comes from a new authority. The one before is trusted besides, since other replicas go
on with its certificate until they look again.
"""

import datetime
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = datetime.timedelta(days=365)
RENEW_BEFORE: Final = datetime.timedelta(days=120)
_SKEW: Final = datetime.timedelta(minutes=5)
"""How far the API server's clock may be behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate with its key, as PEM."""

    authority: bytes
    """The authority that signed it, then the one before, if there was one, as PEM."""
    certificate: bytes
    key: bytes

    def is_to_be_renewed(self, names: list[str], now: datetime.datetime) -> bool:
        """Return whether it ends soon, or is not for these names, or its parts do not fit."""
        try:
            read = x509.load_pem_x509_certificate(self.certificate)
            found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            read.verify_directly_issued_by(x509.load_pem_x509_certificate(self.authority))
            key = serialization.load_pem_private_key(self.key, password=None)
        except (
            ValueError,
            TypeError,
            InvalidSignature,
            UnsupportedAlgorithm,
            x509.ExtensionNotFound,
        ):
            return True
        held = found.value.get_values_for_type(x509.DNSName)
        return (
            now > read.not_valid_after_utc - RENEW_BEFORE
            or set(held) != set(names)
            or key.public_key() != read.public_key()
        )


def make(
    names: list[str], now: datetime.datetime, before: Certificate | None = None
) -> Certificate:
    """Make an authority, and a certificate for these host names, which replaces another one."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = _name("reauth-proxy webhook authority")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_KEY_USAGE_OF_AUTHORITY, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(authority_name, _name(names[0][:64]), key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificate(
        authority=_pem(authority) + (b"" if before is None else _last_authority(before)),
        certificate=_pem(certificate),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _last_authority(certificate: Certificate) -> bytes:
    try:
        return _pem(x509.load_pem_x509_certificates(certificate.authority)[0])
    except ValueError:  # something else was put there
        return b""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


_KEY_USAGE_OF_AUTHORITY: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
