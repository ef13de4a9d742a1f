"""PKCS #12 (RFC 7292) key stores, as PEM."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pkcs12:
    """Contents of a PKCS #12 file, as PEM."""

    key: bytes = field(repr=False)
    """The first private key, decrypted; empty: there is none."""
    chain: bytes
    """The key's certificate, followed by its chain; empty: there is none."""
    certificates: bytes
    """All other certificates; empty: there are none."""


def read_pkcs12(data: bytes, password: str) -> Pkcs12:
    """Decrypt a file. Raises ValueError if it is not one, damaged, or has another password."""
    from cryptography.exceptions import UnsupportedAlgorithm  # not imported where there is no TLS
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
