"""Issuers whose tokens a listener accepts, and which of them a token is judged by.

Laws:

- A token is judged by one issuer alone: the keys, the audience, the rules and the prefix are all
  that one's. The `iss` that chooses is not verified yet; a token that lies there needs a signature
  by the issuer that it names.
- Keys of two issuers never meet, so that they may have the same key id.
- Where there is one issuer without a name, nothing of the payload is read before the signature is
  verified.
"""

from collections.abc import Iterable
from typing import Final

from sasl.json_web_token import SignedToken, TrustedIssuer
from sasl.mechanism import FailureReason
from sasl.strict_json import read_object

MAX_UNVERIFIED_BYTES: Final = 64 * 1024
"""Maximum size in bytes of a payload that is parsed unverified: 256 groups of 200 characters fit.
Parsing so much takes a millisecond or two at most."""


class TrustedIssuers:
    """Issuers of a listener."""

    def __init__(self, issuers: Iterable[TrustedIssuer]) -> None:
        """Trust these: one, or any number with names."""
        self._by_name: Final = {one.name: one for one in issuers}
        self._only: Final = self._by_name.get("")
        assert self._only is None or len(self._by_name) == 1

    def issuer_of(self, token: SignedToken) -> TrustedIssuer | FailureReason:
        """Return the issuer by which a token is judged, or the reason for its rejection."""
        if self._only is not None:
            return self._only
        if len(token.payload) > MAX_UNVERIFIED_BYTES:
            return FailureReason.BAD_CLAIMS
        claims = read_object(token.payload)
        if claims is None:
            return FailureReason.BAD_CLAIMS
        return self.issuer_named(claims.get("iss")) or FailureReason.WRONG_ISSUER

    def issuer_named(self, name: object) -> TrustedIssuer | None:
        """Return the issuer of tokens with this `iss`; None if there is none."""
        return self._only or (self._by_name.get(name) if isinstance(name, str) else None)
