"""Signed tokens (JWS compact serialization, RFC 7515): strict parsing, then verification.

The order matters: nothing but a short header is parsed before the signature is verified, so that an
unverified token costs one signature check at most. A header's `jwk`, `jku`, `x5u` and `x5c` are
never looked at: keys come from the JWKS alone.
"""

import base64
import re
from dataclasses import dataclass
from typing import Any, Final

from sasl.jwks import KeyCache, KeyMissing
from sasl.jwt_claims import AcceptedClaims, OAuthBearerSettings, judge_claims
from sasl.mechanism import FailureReason
from sasl.signatures import ALGORITHMS, PublicKey
from sasl.strict_json import read_object

MAX_HEADER_CHARACTERS: Final = 32 * 1024
"""The most characters of a header, which is parsed unverified. A chain of four certificates has
about 12 KiB."""

_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_LAST_CHARACTERS: Final = {
    0: "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
    2: "AQgw",
    3: "AEIMQUYcgkosw048",
}
"""The characters that may end canonical base64url, by length modulo 4 (RFC 4648, 3.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedToken:
    """A token that lets its bearer in, and the key that vouches for it."""

    claims: AcceptedClaims
    algorithm: str
    kid: str | None
    key: PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedToken:
    algorithm: str
    kid: str | None
    signed: bytes
    payload: bytes
    signature: bytes


def judge_token(
    token: str, keys: KeyCache, settings: OAuthBearerSettings, wall_now: float, now: float
) -> AcceptedToken | FailureReason | KeyMissing:
    """Decide on a token; `KeyMissing` when the key for its signature cannot be found."""
    parsed = _parse(token)
    if isinstance(parsed, FailureReason):
        return parsed
    key = keys.find(parsed.algorithm, parsed.kid, now)
    if isinstance(key, KeyMissing):
        return key
    if not ALGORITHMS[parsed.algorithm].verify(key, parsed.signed, parsed.signature):
        return FailureReason.BAD_SIGNATURE
    said = read_object(parsed.payload)
    if said is None:
        return FailureReason.BAD_CLAIMS
    claims = judge_claims(said, settings, wall_now)
    if isinstance(claims, FailureReason):
        return claims
    return AcceptedToken(claims=claims, algorithm=parsed.algorithm, kid=parsed.kid, key=key)


def _parse(token: str) -> _SignedToken | FailureReason:
    match = _COMPACT.fullmatch(token)
    if match is None or match.end(1) > MAX_HEADER_CHARACTERS:
        return FailureReason.BAD_MESSAGE
    header_bytes, payload, signature = map(_base64url, match.groups())
    if header_bytes is None or payload is None or signature is None:
        return FailureReason.BAD_MESSAGE
    header = read_object(header_bytes)
    if header is None:
        return FailureReason.BAD_MESSAGE
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        return FailureReason.FORBIDDEN_ALGORITHM
    if _demands_extensions(header) or not (kid is None or isinstance(kid, str)):
        return FailureReason.BAD_MESSAGE
    return _SignedToken(
        algorithm=algorithm,
        kid=kid,
        signed=token[: match.end(2)].encode(),
        payload=payload,
        signature=signature,
    )


def _demands_extensions(header: dict[str, Any]) -> bool:
    """Return True if the header has `crit` (RFC 7515 section 4.1.11): no extension is known."""
    return "crit" in header


def _base64url(text: str) -> bytes | None:
    """Read base64url without padding; None unless canonical, or a token had several spellings."""
    if text[-1] not in _LAST_CHARACTERS.get(len(text) % 4, ""):
        return None
    return base64.urlsafe_b64decode(text + "==")
