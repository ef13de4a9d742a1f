"""OAUTHBEARER on the server's side (RFC 7628, KIP-255, KIP-768).

Rules of this module:

- A message that does not parse ends the exchange. A rejected token is answered with the error as
  JSON, and the client's next message ends the exchange; a valid token in it is accepted, as in
  Kafka. A second rejected token ends the exchange (Kafka allows any number of them, and does not
  count them).
- The failure has the reason for the rejection, which is never sent to the client.
- An exchange returns `KeysNeeded` once at most.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from sasl.json_web_token import (
    AcceptedToken,
    TrustedIssuer,
    TrustedIssuers,
    claimed_subject,
    judge_token,
    parse_token,
    untimely_by,
)
from sasl.jwks import KeyMissing
from sasl.jwt_claims import deadline_of, judge_times
from sasl.mechanism import (
    MAX_QUOTED_CHARACTERS,
    Challenge,
    Failure,
    FailureReason,
    KeysNeeded,
    Step,
    Success,
)
from sasl.messages import read_client_initial_response

NAME: Final = "OAUTHBEARER"

INVALID_TOKEN: Final = '{"status":"invalid_token"}'  # noqa: S105  (no password)
"""Error of RFC 7628 section 3.2.2, as Kafka's `OAuthBearerSaslServer` writes it."""

ERROR_ACKNOWLEDGED: Final = b"\x01"
"""Message of a client after an error (RFC 7628 section 3.2.3)."""


class OAuthBearerServer:
    """OAUTHBEARER mechanism, shared by all connections of a listener."""

    name: Final = NAME

    def __init__(
        self, *, issuers: TrustedIssuers, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Accept tokens of `issuers`; `wall_clock` returns seconds since 1970."""
        self.issuers: Final = issuers
        self.wall_clock: Final = wall_clock
        self.verified: Final = VerifiedTokens()

    def exchange(self) -> "OAuthBearerServerExchange":
        """Begin an authentication."""
        return OAuthBearerServerExchange(self)


class OAuthBearerServerExchange:
    """OAUTHBEARER authentication; see the rules of `sasl.mechanism`."""

    __slots__ = ("_claimed", "_detail", "_ended", "_keys_requested", "_rejected", "_server")

    def __init__(self, server: OAuthBearerServer) -> None:
        self._server = server
        self._keys_requested = False
        self._rejected: FailureReason | None = None
        """The reason why a token was rejected; None if no token was rejected."""
        self._claimed: str | None = None
        """The unverified name in that token; None if it is unknown."""
        self._detail = ""
        """How far its times are from the clock, if that is the reason; else empty."""
        self._ended = False

    def step(self, message: bytes, now: float) -> Step:
        """Process the client's next message, and return the result."""
        if self._ended:
            return Failure(reason=FailureReason.ILLEGAL_STATE)
        step = self._answer(message, now)
        self._ended = isinstance(step, Success | Failure)
        if isinstance(step, Failure) and self._rejected is not None:
            return replace(step, reason=self._rejected, claimed=self._claimed, detail=self._detail)
        return step

    def _answer(self, message: bytes, now: float) -> Step:
        if self._rejected is not None and message == ERROR_ACKNOWLEDGED:
            return Failure(reason=self._rejected, message=INVALID_TOKEN)
        server = self._server
        wall_now = server.wall_clock()
        accepted = server.verified.find(message, wall_now, now)
        if accepted is not None:
            return _success(accepted, wall_now, now)
        return self._judge(message, wall_now, now)

    def _judge(self, message: bytes, wall_now: float, now: float) -> Step:
        server = self._server
        response = read_client_initial_response(message)
        if response is None:
            return Failure(reason=FailureReason.BAD_MESSAGE)
        parsed = parse_token(response.token)
        if isinstance(parsed, FailureReason):
            return self._reject(parsed)
        issuer = server.issuers.issuer_of(parsed)
        if isinstance(issuer, FailureReason):
            return self._reject(issuer)
        verdict = judge_token(parsed, issuer, wall_now, now)
        if isinstance(verdict, KeyMissing):
            if self._may_fetch_keys(issuer, verdict, now):
                return KeysNeeded(issuer.name)
            no_keys = verdict is KeyMissing.NO_KEYS
            verdict = FailureReason.NO_KEYS if no_keys else FailureReason.UNKNOWN_KEY
        if isinstance(verdict, FailureReason):
            self._detail = untimely_by(verdict, parsed, wall_now)
            return self._reject(verdict, claimed_subject(parsed, issuer.settings))
        authorization_id = response.authorization_id
        if authorization_id is not None and authorization_id != verdict.claims.subject:
            return _authorization_id_differs(authorization_id, verdict.claims.subject)
        server.verified.remember(message, verdict)
        return _success(verdict, wall_now, now)

    def _may_fetch_keys(self, issuer: TrustedIssuer, missing: KeyMissing, now: float) -> bool:
        if missing is KeyMissing.NO_FIT or self._keys_requested:
            return False
        self._keys_requested = issuer.keys.may_fetch_for_unknown_kid(now)
        return self._keys_requested

    def _reject(self, reason: FailureReason, claimed: str | None = None) -> Step:
        if self._rejected is not None:
            return Failure(reason=self._rejected, message=INVALID_TOKEN)
        self._rejected, self._claimed = reason, claimed
        return Challenge(INVALID_TOKEN.encode())


def _success(accepted: AcceptedToken, wall_now: float, now: float) -> Success:
    claims = accepted.claims
    return Success(
        data=b"",
        identity=claims.identity,
        credential_deadline=deadline_of(claims.expires_at, wall_now, now),
        facts=claims.facts,
        is_current=partial(accepted.issuer.keys.has, accepted.key),
    )


def _authorization_id_differs(authorization_id: str, name: str) -> Failure:
    """Return the failure with Kafka's message, in which names are truncated."""
    return Failure(
        reason=FailureReason.BAD_CLAIMS,
        message=(
            f"Authentication failed: Client requested an authorization id "
            f"({authorization_id[:MAX_QUOTED_CHARACTERS]}) that"
            f" is different from the token's principal name ({name[:MAX_QUOTED_CHARACTERS]})"
        ),
        claimed=authorization_id,
    )


MAX_CACHED_TOKENS: Final = 1_024
"""Maximum number of cached tokens: they take 20 MiB if each names 200 groups by GUIDs. The bounds
of an identity and `MAX_CACHED_MESSAGE_BYTES` limit them to 120 MiB, which they take if each has as
many and as long names as allowed, in characters that Python stores in four bytes."""
MAX_CACHED_MESSAGE_BYTES: Final = 16_384
"""Maximum size in bytes of a message that is cached; most have about a thousand, and one with 200
GUIDs has 11,000."""


class VerifiedTokens:
    """Cache of the verified tokens of one listener in one worker, so that judging one again is a
    lookup; the least recently used token is evicted first.

    A client sends the same token on each of its connections until it has a new one: when a broker
    restarts, thousands of connections send a few tokens at once. Rules:

    - An entry records the key object and the issuer that verified the token in a message, and the
      accepted claims. Each lookup checks whether the key is still in use, and whether the token is
      valid now. A key that was withdrawn, was replaced (even under the same id) or is too old
      verifies no token. Each fetch of the JWKS creates new key objects, so no entry is used for
      longer than `refresh_ms`.
    - Only tokens of authenticated clients are cached: no other client can fill or flush the cache.
    - Memory is bounded. An entry has the message's SHA-256 and the accepted claims, but no token.
    """

    def __init__(self, max_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._by_digest: OrderedDict[bytes, AcceptedToken] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, message: bytes, wall_now: float, now: float) -> AcceptedToken | None:
        """Return a message's token if it is cached and valid; None if it must be verified.

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
        return known

    def remember(self, message: bytes, accepted: AcceptedToken) -> None:
        """Cache the accepted token of `message`."""
        if len(message) > MAX_CACHED_MESSAGE_BYTES:
            return
        self._by_digest[hashlib.sha256(message).digest()] = accepted
        if len(self._by_digest) > self._max_tokens:
            self._by_digest.popitem(last=False)
