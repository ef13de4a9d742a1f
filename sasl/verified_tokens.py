"""Cache of verified tokens, so that judging one again is a lookup.

A client sends the same token on each of its connections, and again after each reconnect, until it
has a new one: when a broker restarts, thousands of connections send a few tokens at once. Laws:

- An entry states that this key object of this issuer verified the token in this message, and which
  claims were accepted. What changes with time is checked at each lookup: whether the key is still
  in use, and whether the token is valid now. A key that was withdrawn, replaced (even under the
  same id) or is too old verifies no token, and each successful fetch of the JWKS creates new key
  objects, so no entry is used for longer than `refresh_ms`.
- Only tokens of authenticated clients are cached: no other client can fill or flush the cache.
- Memory is bounded, and contains no token, only the message's SHA-256 and the accepted claims.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from sasl.json_web_token import AcceptedToken
from sasl.jwt_claims import AcceptedClaims, judge_times

MAX_CACHED_TOKENS: Final = 1_024
"""Maximum number of cached tokens: 20 MiB if each names 200 groups by GUIDs. By the bounds of an
identity and `MAX_CACHED_MESSAGE_BYTES` it is 120 MiB at most: if each has as many and as long names
as it may, with characters that Python stores in four bytes."""
MAX_CACHED_MESSAGE_BYTES: Final = 16_384
"""Maximum size in bytes of a message that is cached; most have about a thousand, and one with 200
GUIDs has 11,000."""


class VerifiedTokens:
    """Cache of one listener in one worker; the least recently used token is evicted first."""

    def __init__(self, max_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._by_digest: OrderedDict[bytes, AcceptedToken] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, message: bytes, wall_now: float, now: float) -> AcceptedClaims | None:
        """Return the claims of a message's token if it is cached and valid; None if it has to be
        verified.

        `wall_now` is seconds since 1970, `now` monotonic seconds.
        """
        if len(message) > MAX_CACHED_MESSAGE_BYTES:
            return None
        digest = hashlib.sha256(message).digest()
        known = self._by_digest.get(digest)
        if known is None:
            return None
        claims, issuer = known.claims, known.issuer
        if (
            issuer.keys.find(known.algorithm, known.kid, now) is not known.key
            or judge_times(claims.not_before, claims.expires_at, issuer.settings, wall_now)
            is not None
        ):
            del self._by_digest[digest]
            return None
        self._by_digest.move_to_end(digest)
        return claims

    def remember(self, message: bytes, accepted: AcceptedToken) -> None:
        """Cache the accepted token of `message`."""
        if len(message) > MAX_CACHED_MESSAGE_BYTES:
            return
        self._by_digest[hashlib.sha256(message).digest()] = accepted
        if len(self._by_digest) > self._max_tokens:
            self._by_digest.popitem(last=False)
