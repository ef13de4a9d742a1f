"""Claims of a token (RFC 7519 section 4), judged as Kafka's `BrokerJwtValidator` does.

Deliberate differences: a token that has expired is refused even within the clock skew (Kafka lets
it in with lifetime 0, which tells the client "no expiry"), and lifetimes are clamped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sasl.mechanism import FailureReason

MAX_LIFETIME_SECONDS: Final = 365 * 86_400.0
"""The longest lifetime of a token, in seconds: tokens of the year 10^18 must not overflow the int64
of `session_lifetime_ms` or a timer, and no process runs for a year."""

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's `String.trim` removes: U+0000 to U+0020."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearerSettings:
    """Conditions that a token must meet: Kafka's `sasl.oauthbearer.*`, with its defaults."""

    expected_audience: frozenset[str] = frozenset()
    """The audiences of which one must be in `aud` (`expected.audience`). Empty: tokens that carry
    an audience are refused, for they are meant for somebody else (RFC 7519 section 4.1.3; Kafka
    does the same)."""
    expected_issuer: str | None = None
    """The issuer that `iss` must name (`expected.issuer`); None: `iss` is not checked."""
    clock_skew_seconds: int = 30
    """The time in seconds by which `nbf` may lie in the future (`clock.skew.seconds`)."""
    scope_claim_name: str = "scope"
    """The claim that holds the scopes (`scope.claim.name`)."""
    sub_claim_name: str = "sub"
    """The claim that names the principal (`sub.claim.name`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedClaims:
    """A token that is for us and still valid. Times are wall-clock seconds since 1970."""

    subject: str
    not_before: float
    """The time before which the token is not valid; minus infinity: it names none."""
    expires_at: float


def judge_claims(
    claims: Mapping[str, Any], settings: OAuthBearerSettings, wall_now: float
) -> AcceptedClaims | FailureReason:
    """Judge the claims of a token whose signature is right; `wall_now` is seconds since 1970."""
    expires_at, issued_at = numeric_date(claims, "exp"), numeric_date(claims, "iat")
    not_before = numeric_date(claims, "nbf") if "nbf" in claims else -math.inf
    if expires_at is None or issued_at is None or not_before is None:
        return FailureReason.BAD_CLAIMS
    untimely = judge_times(not_before, expires_at, settings, wall_now)
    if untimely is not None:
        return untimely
    if not _issuer_is_expected(claims, settings):
        return FailureReason.WRONG_ISSUER
    if not _audience_is_expected(claims.get("aud"), settings):
        return FailureReason.WRONG_AUDIENCE
    subject = _text(claims.get(settings.sub_claim_name))
    if (
        subject is None
        or expires_at < max(issued_at, not_before)
        or not _scope_is_well_formed(claims.get(settings.scope_claim_name))
    ):
        return FailureReason.BAD_CLAIMS
    return AcceptedClaims(subject=subject, not_before=not_before, expires_at=expires_at)


def judge_times(
    not_before: float, expires_at: float, settings: OAuthBearerSettings, wall_now: float
) -> FailureReason | None:
    """Judge the part of the claims that changes with time; None: they hold now."""
    if expires_at <= wall_now:
        return FailureReason.EXPIRED
    if not_before > wall_now + settings.clock_skew_seconds:
        return FailureReason.NOT_YET_VALID
    return None


def deadline_of(expires_at: float, wall_now: float, now: float) -> float:
    """The monotonic second at which a token expires: the one place where two clocks meet.

    The lifetime left is taken once from the wall clock and clamped to 0 … `MAX_LIFETIME_SECONDS`;
    later jumps of the wall clock change nothing.
    """
    return now + min(max(expires_at - wall_now, 0.0), MAX_LIFETIME_SECONDS)


def numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    """Read a NumericDate in whole seconds, cut off as Kafka does; None: missing or wrong."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return float(math.floor(seconds)) if math.isfinite(seconds) and seconds >= 0 else None


def _issuer_is_expected(claims: Mapping[str, Any], settings: OAuthBearerSettings) -> bool:
    return settings.expected_issuer is None or claims.get("iss") == settings.expected_issuer


def _audience_is_expected(audience: object, settings: OAuthBearerSettings) -> bool:
    if audience is None:
        return not settings.expected_audience
    values = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(value, str) for value in values):
        return False
    return not settings.expected_audience.isdisjoint(values)


def _scope_is_well_formed(scope: object) -> bool:
    """Kafka's `ClaimValidationUtils.validateScopes`: no blank scope and none twice."""
    if not isinstance(scope, str | list):
        return True
    scopes = [_text(value) for value in ([scope] if isinstance(scope, str) else scope)]
    return None not in scopes and len(set(scopes)) == len(scopes)


def _text(value: object) -> str | None:
    """A claim's text without blanks around it; None: not a text, blank, or not Unicode."""
    if not isinstance(value, str):
        return None
    text = value.strip(_JAVA_BLANKS)
    try:
        text.encode()  # JSON can spell lone surrogates, which no later writer could encode
    except UnicodeEncodeError:
        return None
    return text or None
