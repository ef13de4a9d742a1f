"""Signature algorithms of tokens (RFC 7518, RFC 8037), and the keys that fit them.

All of them are asymmetric: `none` and HMAC have no row here, so no token or key can select them.
Whether a key fits depends on the type of the parsed key, never on its `alg`. Only this module of
the package imports cryptography and PyJWT; it is imported only if there are keys.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurve,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm, RSAPSSAlgorithm
from jwt.exceptions import PyJWTError

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class SignatureAlgorithm(NamedTuple):
    """Algorithm that a token's `alg` may name."""

    verifier: Algorithm
    key_types: tuple[type, ...]
    curve: type[EllipticCurve] | None = None
    """Curve of an ES algorithm (RFC 7518 section 3.4); None if any key of the types fits."""

    def fits(self, key: PublicKey) -> bool:
        """Return whether a key of this type may be used with the algorithm."""
        if not isinstance(key, self.key_types):
            return False
        return self.curve is None or isinstance(cast(EllipticCurvePublicKey, key).curve, self.curve)

    def verify(self, key: PublicKey, message: bytes, signature: bytes) -> bool:
        """Return whether the signature was made with the key, which must fit."""
        return self.verifier.verify(message, key, signature)


_RSA: Final = (RSAPublicKey,)
_EC: Final = (EllipticCurvePublicKey,)

ALGORITHMS: Final[Mapping[str, SignatureAlgorithm]] = MappingProxyType(
    {
        "RS256": SignatureAlgorithm(RSAAlgorithm(RSAAlgorithm.SHA256), _RSA),
        "RS384": SignatureAlgorithm(RSAAlgorithm(RSAAlgorithm.SHA384), _RSA),
        "RS512": SignatureAlgorithm(RSAAlgorithm(RSAAlgorithm.SHA512), _RSA),
        "PS256": SignatureAlgorithm(RSAPSSAlgorithm(RSAPSSAlgorithm.SHA256), _RSA),
        "PS384": SignatureAlgorithm(RSAPSSAlgorithm(RSAPSSAlgorithm.SHA384), _RSA),
        "PS512": SignatureAlgorithm(RSAPSSAlgorithm(RSAPSSAlgorithm.SHA512), _RSA),
        "ES256": SignatureAlgorithm(ECAlgorithm(ECAlgorithm.SHA256), _EC, SECP256R1),
        "ES384": SignatureAlgorithm(ECAlgorithm(ECAlgorithm.SHA384), _EC, SECP384R1),
        "ES512": SignatureAlgorithm(ECAlgorithm(ECAlgorithm.SHA512), _EC, SECP521R1),
        "EdDSA": SignatureAlgorithm(OKPAlgorithm(), (Ed25519PublicKey, Ed448PublicKey)),
    }
)

_READERS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


def read_public_key(members: dict[str, Any]) -> PublicKey | None:
    """Return the key of a JWK with these members; None if it is malformed or fits no algorithm."""
    key: PublicKey | None = None
    with contextlib.suppress(PyJWTError, ValueError, UnsupportedAlgorithm):
        key = cast(PublicKey, _READERS[members["kty"]](members))
    fits = key is not None and any(algorithm.fits(key) for algorithm in ALGORITHMS.values())
    return key if fits else None


def rsa_bits(key: PublicKey) -> int | None:
    """Return the length of an RSA key in bits; None for other keys."""
    return key.key_size if isinstance(key, RSAPublicKey) else None
