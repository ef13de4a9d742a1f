"""Messages whose tokens were found to be good, so that to judge them again is to look them up.

A client offers the same token on each of its connections and again after each interruption, until
its identity provider gives it another: when a broker comes back, thousands of connections offer a
few tokens at once. Laws:

- What is remembered is one fact: this very key object verifies the token in this very message, and
  by these rules it says this. What changes with time is judged anew, each time: whether the key is
  still there, and whether the token is valid now. A key that was withdrawn, replaced (under its old
  id, too) or is too old lets nobody in, and each good fetch of the JWKS makes new key objects, so
  no signature is believed for longer than `refresh_ms`.
- Only what let somebody in is remembered: strangers can neither fill nor flush the memory.
- Memory is bounded, and holds no token, only the message's SHA-256, whom it names and until when.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from sasl.json_web_token import AcceptedToken
from sasl.jwks import KeyCache
from sasl.jwt_claims import AcceptedClaims, OAuthBearerSettings, judge_times

MAX_TOKENS: Final = 1_024
"""At most 4 MiB with `MAX_BYTES`; each has as many connections as it likes."""
MAX_BYTES: Final = 4_096
"""Of a message that is remembered; most have about a thousand."""


class VerifiedTokens:
    """What one listener of one worker remembers; the longest unused is forgotten first."""

    def __init__(
        self, keys: KeyCache, settings: OAuthBearerSettings, most_tokens: int = MAX_TOKENS
    ) -> None:
        """Remember what `keys` verified, and `settings` let in."""
        self._keys = keys
        self._settings = settings
        self._most_tokens = most_tokens
        self._by_digest: OrderedDict[bytes, AcceptedToken] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, message: bytes, wall_now: float, now: float) -> AcceptedClaims | None:
        """What the token of `message` says, if it is known to be good; None: judge it."""
        if len(message) > MAX_BYTES:
            return None
        digest = hashlib.sha256(message).digest()
        known = self._by_digest.get(digest)
        if known is None:
            return None
        claims = known.claims
        if (
            self._keys.find(known.algorithm, known.kid, now) is not known.key
            or judge_times(claims.not_before, claims.expires_at, self._settings, wall_now)
            is not None
        ):
            del self._by_digest[digest]
            return None
        self._by_digest.move_to_end(digest)
        return claims

    def remember(self, message: bytes, accepted: AcceptedToken) -> None:
        """Keep in mind that the token of `message` lets its bearer in."""
        if len(message) > MAX_BYTES:
            return
        self._by_digest[hashlib.sha256(message).digest()] = accepted
        if len(self._by_digest) > self._most_tokens:
            self._by_digest.popitem(last=False)
