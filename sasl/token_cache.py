"""Cache of the proxy's own bearer token, with the schedule of its refreshes.

Pure: the caller sends the request to the token endpoint (RFC 6749 section 4.4) and reports the
result. Rules:

- Only a valid response replaces the token; an invalid one counts as a failed fetch.
- During an outage of the identity provider the token stays in use until it expires.
- Text from the provider is logged only after `fit_for_log`, and a token never.
"""

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from sasl.jwks import RefreshSchedule
from sasl.jwt_claims import MAX_LIFETIME_SECONDS, deadline_of, numeric_date
from sasl.untrusted import read_object

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Maximum size in bytes of a response, or of a file with a token: half of a broker's limit on SASL
messages (`sasl.server.max.receive.size`), and a hundred times the size of usual tokens."""
UNKNOWN_LIFETIME_REFRESH_SECONDS: Final = 300.0
"""Time in seconds after which a token without a known expiry is refreshed. The old token is used
until the new one arrives, because the broker decides whether it is still valid."""

_B64TOKEN: Final = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
"""Grammar of a bearer token (RFC 6750 section 2.1), without blanks, commas and control characters,
so that no token can end the message that carries it (RFC 7628 section 3.1), or add to it."""
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCacheSettings:
    """Schedule of token refreshes: Kafka's `sasl.login.*`, with its defaults and bounds."""

    refresh_window_factor: float = 0.8
    """Share of a token's lifetime after which it is refreshed
    (`sasl.login.refresh.window.factor`)."""
    refresh_window_jitter: float = 0.05
    """Maximum of the random number that is added to the share
    (`sasl.login.refresh.window.jitter`)."""
    refresh_min_period_seconds: int = 60
    """Minimum time in seconds between two refreshes (`sasl.login.refresh.min.period.seconds`).
    Kafka also allows 0; then tokens with a lifetime of `refresh_buffer_seconds` would be refreshed
    without a pause."""
    refresh_buffer_seconds: int = 300
    """Time in seconds before its expiry at which a token is refreshed at the latest
    (`sasl.login.refresh.buffer.seconds`). If the lifetime is shorter than the minimum period and
    this together, only the share counts."""
    retry_backoff_ms: int = 100
    """Wait in milliseconds after a failed fetch, which doubles with each further one
    (`sasl.login.retry.backoff.ms`)."""
    retry_backoff_max_ms: int = 10_000
    """Maximum wait in milliseconds after a failed fetch (`sasl.login.retry.backoff.max.ms`)."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.refresh_window_factor <= 1:
            raise ValueError("refresh_window_factor must be from 0.5 to 1")
        if not 0 <= self.refresh_window_jitter <= 0.25:
            raise ValueError("refresh_window_jitter must be from 0 to 0.25")
        if not 1 <= self.refresh_min_period_seconds <= 900:
            raise ValueError("refresh_min_period_seconds must be from 1 to 900")
        if not 0 <= self.refresh_buffer_seconds <= 3600:
            raise ValueError("refresh_buffer_seconds must be from 0 to 3600")
        if not 0 < self.retry_backoff_ms <= self.retry_backoff_max_ms:
            raise ValueError("retry_backoff_ms must be positive, at most retry_backoff_max_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    token: str = field(repr=False)
    deadline: float
    """Expiry in monotonic seconds; infinite if unknown."""
    expires_at: float | None
    """Expiry in Unix time; None if unknown."""


class TokenCache(RefreshSchedule):
    """Token of one endpoint and client; one per worker."""

    def __init__(self, settings: TokenCacheSettings | None = None) -> None:
        self._settings = settings or TokenCacheSettings()
        super().__init__(self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        self._held: _Token | None = None

    def loaded(self, answer: bytes, *, now: float, wall_now: float, jitter: float) -> bool:
        """Replace the token with that of a response; return False if it is invalid, which counts as
        `failed`.

        `now` is the time of the request in monotonic seconds, `wall_now` the same in Unix time;
        `jitter` is a random number from 0 to 1.
        """
        try:
            held = _read_answer(answer, now, wall_now)
        except _BadAnswerError as error:
            self.failed(str(error), now)
            return False
        self._held = held
        self._succeeded(_refresh_at(self._settings, now, held.deadline, jitter))
        return True

    def token(self, now: float) -> str | None:
        """Return the token; None if it was never loaded, or has expired."""
        held = self._held
        return held.token if held is not None and now < held.deadline else None

    @property
    def expires_at(self) -> float | None:
        """Expiry of the last token in Unix time; None if it is unknown, or before a token is
        loaded."""
        return None if self._held is None else self._held.expires_at


def read_token(data: bytes) -> str | None:
    """Return the token in a file's content; None if it is not a bearer token."""
    try:
        token = data.strip().decode("ascii")
    except UnicodeDecodeError:
        return None
    return token if _B64TOKEN.fullmatch(token) else None


def expiry_claim(token: str) -> float | None:
    """Return a token's `exp` in Unix time (RFC 7519 section 4.1.4); None if the token is not a JWT,
    or lacks the claim.

    Nothing is verified, because only the refresh depends on it. Brokers verify the token.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "==")
    except ValueError:
        return None
    claims = read_object(payload)
    return None if claims is None else numeric_date(claims, "exp")


def read_refusal(answer: bytes) -> str:
    """Return the text of an error response (RFC 6749 section 5.2), unchanged; empty if the response
    has no text."""
    members = read_object(answer) if len(answer) <= MAX_ANSWER_BYTES else None
    texts = [(members or {}).get(name) for name in ("error", "error_description")]
    return ": ".join(text for text in texts if isinstance(text, str) and text)


def _refresh_at(settings: TokenCacheSettings, now: float, deadline: float, jitter: float) -> float:
    """Return the time of the refresh of a token issued `now`, in monotonic seconds, like Kafka 4.1
    (`ExpiringCredentialRefreshingLogin.refreshMs`).

    Kafka counts from the token's `iat` if it has one; here the clocks of two machines are not
    compared. Unlike in Kafka, where factor and jitter may exceed 1 together, it is never after the
    deadline.
    """
    lifetime = deadline - now
    if math.isinf(lifetime):
        return now + UNKNOWN_LIFETIME_REFRESH_SECONDS
    share = min(settings.refresh_window_factor + settings.refresh_window_jitter * jitter, 1.0)
    at_share = now + lifetime * share
    earliest, buffer = settings.refresh_min_period_seconds, settings.refresh_buffer_seconds
    if lifetime < earliest + buffer:
        return at_share
    return min(max(at_share, now + earliest), deadline - buffer)


class _BadAnswerError(Exception):
    """The response is invalid; the message does not quote it."""


def _read_answer(answer: bytes, now: float, wall_now: float) -> _Token:
    """Parse a successful response (RFC 6749 section 5.1)."""
    if len(answer) > MAX_ANSWER_BYTES:
        raise _BadAnswerError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    members = read_object(answer)
    if members is None:
        raise _BadAnswerError("the answer is not a JSON object")
    token, token_type = members.get("access_token"), members.get("token_type")
    if not isinstance(token, str) or not _B64TOKEN.fullmatch(token):
        raise _BadAnswerError("the answer has no access_token in the grammar of RFC 6750")
    # RFC 6749 section 7.1: a token of an unknown type must not be used.
    if token_type is not None and not (
        isinstance(token_type, str) and token_type.lower() == "bearer"
    ):
        raise _BadAnswerError("the answer's token_type is not Bearer")
    lifetime = _lifetime(members, token, wall_now)
    if lifetime is None:
        return _Token(token=token, deadline=math.inf, expires_at=None)
    if lifetime <= 0:
        raise _BadAnswerError("the token of the answer has already expired by this clock")
    return _Token(token=token, deadline=now + lifetime, expires_at=wall_now + lifetime)


def _lifetime(members: dict[str, Any], token: str, wall_now: float) -> float | None:
    """Return the remaining lifetime of a token in seconds; None if unknown.

    `expires_in` has precedence, because it does not depend on the clocks.
    """
    expires_in = members.get("expires_in")
    if expires_in is None:
        expires_at = expiry_claim(token)
        return None if expires_at is None else deadline_of(expires_at, wall_now, 0.0)
    if isinstance(expires_in, str) and _DIGITS.fullmatch(expires_in):
        expires_in = int(expires_in)  # Microsoft's endpoint of version 1 writes a string
    seconds = numeric_date({"expires_in": expires_in}, "expires_in")
    if seconds is None:
        raise _BadAnswerError("the answer's expires_in is not a number of seconds")
    return min(seconds, MAX_LIFETIME_SECONDS)
