"""Cache of the proxy's own bearer token, with the schedule of its refreshes.

Pure: the caller sends the request to the token endpoint (RFC 6749 section 4.4) and reports the
result. Rules:

- Only a valid response replaces the token; an invalid one counts as a failed fetch.
- During an outage of the identity provider the token stays in use until it expires.
- Text from the provider is logged only after `fit_for_log`, and a token never.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from sasl.jwks import RefreshSchedule
from sasl.jwt_claims import MAX_LIFETIME_SECONDS, deadline_of, numeric_date
from sasl.untrusted import read_object, unverified_claims

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


# Kafka's `sasl.login.*`, with its defaults

REFRESH_WINDOW_FACTOR: Final = 0.8
"""Share of a token's lifetime after which it is refreshed (`refresh.window.factor`)."""
REFRESH_WINDOW_JITTER: Final = 0.05
"""Maximum of the random number that is added to the share (`refresh.window.jitter`)."""
REFRESH_MIN_PERIOD_SECONDS: Final = 60
"""Minimum time in seconds between two refreshes (`refresh.min.period.seconds`)."""
REFRESH_BUFFER_SECONDS: Final = 300
"""Time in seconds before its expiry at which a token is refreshed at the latest
(`refresh.buffer.seconds`). If the lifetime is shorter than the minimum period and this together,
only the share counts."""
RETRY_BACKOFF_MS: Final = 100
"""Wait in milliseconds after a failed fetch, which doubles with each further one
(`retry.backoff.ms`)."""
RETRY_BACKOFF_MAX_MS: Final = 10_000
"""Maximum wait in milliseconds after a failed fetch (`retry.backoff.max.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    token: str = field(repr=False)
    deadline: float
    """Expiry in monotonic seconds; infinite if unknown."""
    expires_at: float | None
    """Expiry in Unix time; None if unknown."""


class TokenCache(RefreshSchedule):
    """Token of one endpoint and client; one per worker."""

    def __init__(self) -> None:
        super().__init__(RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS)
        self._held: _Token | None = None

    def loaded(
        self,
        found: bytes | tuple[object, float | None],
        *,
        now: float,
        wall_now: float,
        jitter: float,
    ) -> bool:
        """Replace the token with that of a response, or with a token and its expiry in Unix time
        (None if the token's `exp` has it, or it is unknown).

        Returns False if it is invalid, which counts as `failed`. `now` is the time of the request
        in monotonic seconds, `wall_now` the same in Unix time; `jitter` is a random number from 0
        to 1.
        """
        try:
            if isinstance(found, bytes):
                token, lifetime = _read_answer(found, wall_now)
            else:
                token, lifetime = _read_pair(*found, wall_now)
            self._hold(token, lifetime, now=now, wall_now=wall_now, jitter=jitter)
        except _BadAnswerError as error:
            self.failed(str(error), now)
            return False
        return True

    def _hold(
        self, token: str, lifetime: float | None, *, now: float, wall_now: float, jitter: float
    ) -> None:
        if len(token) > MAX_ANSWER_BYTES:
            raise _BadAnswerError(f"the token is larger than {MAX_ANSWER_BYTES} bytes")
        if lifetime is not None and lifetime <= 0:
            raise _BadAnswerError("the token has already expired by this clock")
        deadline = math.inf if lifetime is None else now + lifetime
        expires_at = None if lifetime is None else wall_now + lifetime
        self._held = _Token(token=token, deadline=deadline, expires_at=expires_at)
        self._succeeded(_refresh_at(now, deadline, jitter))

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
    return numeric_date(unverified_claims(token) or {}, "exp")


def read_refusal(answer: bytes) -> str:
    """Return the text of an error response (RFC 6749 section 5.2), unchanged; empty if the response
    has no text."""
    members = read_object(answer) if len(answer) <= MAX_ANSWER_BYTES else None
    texts = [(members or {}).get(name) for name in ("error", "error_description")]
    return ": ".join(text for text in texts if isinstance(text, str) and text)


def _refresh_at(now: float, deadline: float, jitter: float) -> float:
    """Return the time of the refresh of a token issued `now`, in monotonic seconds, like Kafka 4.1
    (`ExpiringCredentialRefreshingLogin.refreshMs`).

    Kafka counts from the token's `iat` if it has one; here the clocks of two machines are not
    compared.
    """
    lifetime = deadline - now
    if math.isinf(lifetime):
        return now + UNKNOWN_LIFETIME_REFRESH_SECONDS
    at_share = now + lifetime * (REFRESH_WINDOW_FACTOR + REFRESH_WINDOW_JITTER * jitter)
    if lifetime < REFRESH_MIN_PERIOD_SECONDS + REFRESH_BUFFER_SECONDS:
        return at_share
    return min(max(at_share, now + REFRESH_MIN_PERIOD_SECONDS), deadline - REFRESH_BUFFER_SECONDS)


class _BadAnswerError(Exception):
    """The response is invalid; the message does not quote it."""


def _read_pair(
    token: object, expires_at: float | None, wall_now: float
) -> tuple[str, float | None]:
    """Like `_read_answer`, for a token and its expiry in Unix time."""
    if not isinstance(token, str) or not _B64TOKEN.fullmatch(token):
        raise _BadAnswerError("the result is not a bearer token in the grammar of RFC 6750")
    if expires_at is None:
        ends = expiry_claim(token)
    elif (ends := numeric_date({"expires_at": expires_at}, "expires_at")) is None:
        raise _BadAnswerError("the expiry is not a number of seconds")
    return token, None if ends is None else deadline_of(ends, wall_now, 0.0)


def _read_answer(answer: bytes, wall_now: float) -> tuple[str, float | None]:
    """Return the token of a successful response (RFC 6749 section 5.1), and its remaining lifetime
    in seconds; None if unknown."""
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
    return token, _lifetime(members, token, wall_now)


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
