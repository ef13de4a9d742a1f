"""Signed tokens (JWS compact serialization, RFC 7515): strict parsing, then verification.

Only a short header is parsed before the signature is verified, so that an invalid token costs one
signature check at most; the name in the claims of a rejected token is read if they are short, for
the operator only. A header's `jwk`, `jku`, `x5u` and `x5c` are ignored: keys come from the JWKS
alone. Rules for several issuers:

- A token is judged by one issuer alone: its keys, audience, rules and prefix. The `iss` that
  selects the issuer is not verified yet; a token with a false `iss` fails that issuer's signature
  check.
- Each issuer has its own keys, so two issuers may use the same key id.
- With a single issuer without a name, the payload is not read before the signature is verified.
"""

import base64
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sasl.jwks import KeyCache, KeyMissing
from sasl.jwt_claims import (
    MAX_LIFETIME_SECONDS,
    AcceptedClaims,
    OAuthBearerSettings,
    judge_claims,
    numeric_date,
    subject_of,
)
from sasl.mechanism import FailureReason
from sasl.untrusted import read_object

if TYPE_CHECKING:
    from sasl.signatures import PublicKey  # with 8 MiB of cryptography, if there are keys
from collections.abc import Iterable

MAX_HEADER_CHARACTERS: Final = 32 * 1024
"""Maximum length in characters of a header, which is parsed unverified. A chain of four
certificates takes about 12 KiB."""

MAX_CLAIMED_BYTES: Final = 8 * 1024
"""Maximum size in bytes of the claims of a rejected token that are read."""

_UNTIMELY: Final = {FailureReason.EXPIRED: "exp", FailureReason.NOT_YET_VALID: "nbf"}
"""Claim that is the reason for a rejection, if the clock decides it."""
_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_LAST_CHARACTERS: Final = {
    0: "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
    2: "AQgw",
    3: "AEIMQUYcgkosw048",
}
"""Characters that may end canonical base64url, by length modulo 4 (RFC 4648 section 3.5)."""


class TrustedIssuer(NamedTuple):
    """Issuer whose tokens are accepted: its keys, and the conditions that its tokens must meet."""

    settings: OAuthBearerSettings
    keys: KeyCache
    name: str = ""
    """The `iss` of its tokens, which selects one of several issuers; empty if there is only one."""


class AcceptedToken(NamedTuple):
    """Valid token, its issuer, and the key that verified its signature."""

    claims: AcceptedClaims
    issuer: TrustedIssuer
    algorithm: str
    kid: str | None
    key: "PublicKey"


class SignedToken(NamedTuple):
    """Parts of an unverified token."""

    algorithm: str
    kid: str | None
    type: object
    """`typ`; None without one."""
    signed: bytes
    payload: bytes
    signature: bytes


def judge_token(
    token: SignedToken, issuer: TrustedIssuer, wall_now: float, now: float
) -> AcceptedToken | FailureReason | KeyMissing:
    """Return the accepted token, or the reason for its rejection; `KeyMissing` if no key is found.

    `wall_now` is seconds since 1970, `now` monotonic seconds.
    """
    found = verified_claims(token, issuer.keys, now)
    if not isinstance(found, tuple):
        return found
    key, claims = found
    accepted = judge_claims(claims, issuer.settings, wall_now)
    if isinstance(accepted, FailureReason):
        return accepted
    return AcceptedToken(
        claims=accepted, issuer=issuer, algorithm=token.algorithm, kid=token.kid, key=key
    )


def verified_claims(
    token: SignedToken, keys: KeyCache, now: float
) -> "tuple[PublicKey, dict[str, Any]] | FailureReason | KeyMissing":
    """Return the key that signed a token, and its claims, or the reason for its rejection. `now` is
    monotonic seconds."""
    from sasl.signatures import ALGORITHMS

    key = keys.find(token.algorithm, token.kid, now)
    if isinstance(key, KeyMissing):
        return key
    if not ALGORITHMS[token.algorithm].verify(key, token.signed, token.signature):
        return FailureReason.BAD_SIGNATURE
    claims = read_object(token.payload)
    return FailureReason.BAD_CLAIMS if claims is None else (key, claims)


def claimed_subject(token: SignedToken, settings: OAuthBearerSettings) -> str | None:
    """Return the name in a rejected token, which is unverified; None if it is unknown. Mapping
    rules are not applied to it."""
    claims = read_object(token.payload) if len(token.payload) <= MAX_CLAIMED_BYTES else None
    return None if claims is None else subject_of(claims, settings)


def untimely_by(reason: FailureReason, token: SignedToken, wall_now: float) -> str:
    """Return how far the times of a token with a valid signature are from the clock, which may be
    wrong; empty if its times are not the reason for its rejection."""
    name = _UNTIMELY.get(reason)
    claims = None if name is None else read_object(token.payload)
    time = None if claims is None else numeric_date(claims, name or "")
    if time is None:
        return ""
    seconds = f"{min(abs(wall_now - time), MAX_LIFETIME_SECONDS):,.0f} s"
    when = f"expired {seconds} ago" if name == "exp" else f"not valid for another {seconds}"
    return f"{when} by this machine's clock"


def parse_token(token: str) -> SignedToken | FailureReason:
    """Return the parts of a token, or the reason for its rejection."""
    from sasl.signatures import ALGORITHMS

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
    # No extension is supported, and those in `crit` must be (RFC 7515 section 4.1.11)
    if "crit" in header or not (kid is None or isinstance(kid, str)):
        return FailureReason.BAD_MESSAGE
    return SignedToken(
        algorithm=algorithm,
        kid=kid,
        type=header.get("typ"),
        signed=token[: match.end(2)].encode(),
        payload=payload,
        signature=signature,
    )


def _base64url(text: str) -> bytes | None:
    """Decode base64url without padding; return None unless it is canonical, so that a token has
    only one encoding."""
    if text[-1] not in _LAST_CHARACTERS.get(len(text) % 4, ""):
        return None
    return base64.urlsafe_b64decode(text + "==")


MAX_UNVERIFIED_BYTES: Final = 64 * 1024
"""Maximum size in bytes of a payload that is parsed unverified: 256 groups of 200 characters fit.
Parsing so much takes a millisecond or two at most."""


class TrustedIssuers:
    """Issuers that a listener trusts."""

    def __init__(self, issuers: Iterable[TrustedIssuer]) -> None:
        """`issuers` has one without a name, or any number with names."""
        self._by_name: Final = {one.name: one for one in issuers}
        self._only: Final = self._by_name.get("")
        assert self._only is None or len(self._by_name) == 1

    def issuer_of(self, token: SignedToken) -> TrustedIssuer | FailureReason:
        """Return the issuer whose rules apply to a token, or the reason for its rejection."""
        if self._only is not None:
            return self._only
        if len(token.payload) > MAX_UNVERIFIED_BYTES:
            return FailureReason.BAD_CLAIMS
        claims = read_object(token.payload)
        if claims is None:
            return FailureReason.BAD_CLAIMS
        return self.issuer_named(claims.get("iss")) or FailureReason.WRONG_ISSUER

    def issuer_named(self, name: object) -> TrustedIssuer | None:
        """Return the issuer of tokens with this `iss`; None if it is not trusted."""
        return self._only or (self._by_name.get(name) if isinstance(name, str) else None)
