"""Tokens whose signatures were found to be right, so that to verify them again is to look them up.

A client offers the same token on each of its connections and again after each interruption, until
its identity provider gives it another: when a broker comes back, thousands of connections offer a
few tokens at once. Laws:

- What is remembered is one fact: this very key object verifies this very token. Nothing that
  changes with time is: the key is looked for and the claims are judged anew, each time. A key that
  was withdrawn, replaced (under its old id, too) or is too old lets nobody in, and each good fetch
  of the JWKS makes new key objects, so no signature is believed for longer than `refresh_ms`.
- Only what let somebody in is remembered: strangers can neither fill nor flush the memory.
- Memory is bounded, and holds no token, only its SHA-256 and what it says.
"""

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

from sasl.jwks import KeyCache, KeyMissing
from sasl.signatures import PublicKey

MOST_TOKENS: Final = 1_024
"""At most 4 MiB with `MOST_CHARACTERS`; each has as many connections as it likes."""
MOST_CHARACTERS: Final = 4_096
"""Of a token that is remembered; most have about a thousand."""


class _Verified(NamedTuple):
    algorithm: str
    kid: str | None
    key: PublicKey
    payload: bytes


class VerifiedTokens:
    """What one listener of one worker remembers; the longest unused is forgotten first."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._by_digest: OrderedDict[bytes, _Verified] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def payload(self, token: str, keys: KeyCache, now: float) -> bytes | None:
        """What a token says whose signature is known to be right; None: verify it."""
        digest = _digest(token)
        verified = self._by_digest.get(digest)
        if verified is None:
            return None
        key = keys.find(verified.algorithm, verified.kid, now)
        if isinstance(key, KeyMissing) or key is not verified.key:
            del self._by_digest[digest]
            return None
        self._by_digest.move_to_end(digest)
        return verified.payload

    def remember(
        self, token: str, *, algorithm: str, kid: str | None, key: PublicKey, payload: bytes
    ) -> None:
        """Keep in mind that `key`, found by `algorithm` and `kid`, verifies a token."""
        if len(token) > MOST_CHARACTERS:
            return
        self._by_digest[_digest(token)] = _Verified(algorithm, kid, key, payload)
        if len(self._by_digest) > self._most_tokens:
            self._by_digest.popitem(last=False)

    def forget(self, token: str) -> None:
        """Give up what will let nobody in any more."""
        self._by_digest.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
