"""Claims of a token (RFC 7519 section 4), judged as Kafka's `BrokerJwtValidator` does.

A token that expired within the clock skew is accepted, as in Kafka, but no request of its session
is forwarded (`Authenticated.began_expired`). Deliberate difference: lifetimes are clamped.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sasl.identity import (
    MAX_PRINCIPAL_CHARACTERS,
    USER_TYPE,
    BadGroups,
    Identity,
    LoginFacts,
    groups_of,
    kept,
)
from sasl.mechanism import FailureReason
from sasl.untrusted import BrokenPath, value_at

MAX_LIFETIME_SECONDS: Final = 365 * 86_400.0
"""Maximum lifetime of a token in seconds: an `exp` in the year 10^18 must not overflow the int64 of
`session_lifetime_ms`, or a timer; and no process runs for a year."""

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's `String.trim` removes: U+0000 to U+0020."""


class OAuthBearerSettings(NamedTuple):
    """Conditions that a token must meet: Kafka's `sasl.oauthbearer.*`, with its defaults."""

    expected_audience: frozenset[str] | None
    """Audiences of which one must be in `aud` (`expected.audience`); None if `aud` is not checked
    (`allow.unverified.audience`)."""
    expected_issuer: str | None
    """Issuer that `iss` must name (`expected.issuer`); None if `iss` is not checked
    (`allow.unverified.issuer`)."""
    clock_skew_seconds: int = 30
    """Time in seconds by which `nbf` may lie in the future, and `exp` in the past
    (`clock.skew.seconds`)."""
    scope_claim_name: str = "scope"
    """Name of the claim that holds the scopes (`scope.claim.name`)."""
    sub_claim_name: str = "sub"
    """Path of the claim that holds the principal's name (`sub.claim.name`)."""
    groups_claim_name: str | None = None
    """Path of the claim that holds the groups (`groups.claim.name`); None if they are ignored."""
    name_of: Callable[[str], str | None] | None = None
    """Mapping from the claim to the principal's name (`principal.mapping.rules`), which returns
    None if no rule matches; None if the claim is the name."""
    prefix: str = ""
    """Prefix of the names of the principal and of its groups (`principal.prefix`)."""
    reserved: tuple[str, ...] = ()
    """Prefixes of other issuers, which names of this issuer must not begin with."""


class AcceptedClaims(NamedTuple):
    """Claims of a valid token. Times are wall-clock seconds since 1970."""

    subject: str
    """The claim that holds the principal's name."""
    identity: Identity
    not_before: float
    """Time before which the token is not valid; minus infinity if it has no `nbf`."""
    expires_at: float
    facts: LoginFacts
    """Claims by which the token can be blocked."""


def judge_claims(
    claims: Mapping[str, Any], settings: OAuthBearerSettings, wall_now: float
) -> AcceptedClaims | FailureReason:
    """Return the claims of a token with a valid signature if they are accepted, or the reason for
    their rejection. `wall_now` is seconds since 1970."""
    expires_at, issued_at = numeric_date(claims, "exp"), numeric_date(claims, "iat")
    not_before = numeric_date(claims, "nbf") if "nbf" in claims else -math.inf
    if expires_at is None or issued_at is None or not_before is None:
        return FailureReason.BAD_CLAIMS
    untimely = judge_times(not_before, expires_at, settings, wall_now)
    if untimely is not None:
        return untimely
    if not issuer_is_expected(claims, settings):
        return FailureReason.WRONG_ISSUER
    if not audience_is_expected(claims.get("aud"), settings):
        return FailureReason.WRONG_AUDIENCE
    subject = subject_of(claims, settings)
    if (
        subject is None
        or expires_at < max(issued_at, not_before)
        or not scope_is_well_formed(claims.get(settings.scope_claim_name))
    ):
        return FailureReason.BAD_CLAIMS
    return _accepted(claims, settings, subject, not_before, expires_at)


def _accepted(
    claims: Mapping[str, Any],
    settings: OAuthBearerSettings,
    subject: str,
    not_before: float,
    expires_at: float,
) -> AcceptedClaims | FailureReason:
    """Return valid claims with the identity that they map to, or the reason for rejection."""
    name = principal_name(subject, settings)
    if name is None:
        return FailureReason.NO_PRINCIPAL
    try:
        groups = groups_in(claims, settings)
    except BadGroups:
        return FailureReason.BAD_GROUPS
    return AcceptedClaims(
        subject=subject,
        identity=Identity(USER_TYPE + name, groups),
        not_before=not_before,
        expires_at=expires_at,
        facts=facts_of(claims),
    )


def facts_of(claims: Mapping[str, Any]) -> LoginFacts:
    """Return the claims by which a token can be blocked."""
    return LoginFacts(
        issuer=kept(claims.get("iss")),
        subject=kept(claims.get("sub")),
        token_id=kept(claims.get("jti")),
        issued_at=numeric_date(claims, "iat"),
        is_token=True,
    )


def subject_of(claims: Mapping[str, Any], settings: OAuthBearerSettings) -> str | None:
    """Return the text of the claim that holds the principal's name; None if it has no text."""
    try:
        return text_of(value_at(claims, settings.sub_claim_name))
    except BrokenPath:
        return None


def principal_name(subject: str, settings: OAuthBearerSettings) -> str | None:
    """Return the principal's name; None if no rule gives one, it has the prefix of another issuer,
    or it is too long."""
    name = subject if settings.name_of is None else settings.name_of(subject)
    if name is None or name.startswith(settings.reserved):
        return None
    name = settings.prefix + name
    return name if len(USER_TYPE) + len(name) <= MAX_PRINCIPAL_CHARACTERS else None


def groups_in(claims: Mapping[str, Any], settings: OAuthBearerSettings) -> frozenset[str]:
    """Return the groups of a token, as principals. Raises BadGroups."""
    path = settings.groups_claim_name
    if path is None:
        return frozenset()
    return groups_of(claims, path, settings.prefix, settings.reserved)


def judge_times(
    not_before: float, expires_at: float, settings: OAuthBearerSettings, wall_now: float
) -> FailureReason | None:
    """Return the reason why the token is not valid at `wall_now`; None if it is valid."""
    if expires_at + settings.clock_skew_seconds <= wall_now:
        return FailureReason.EXPIRED
    if not_before > wall_now + settings.clock_skew_seconds:
        return FailureReason.NOT_YET_VALID
    return None


def deadline_of(expires_at: float, wall_now: float, now: float) -> float:
    """Return the time in monotonic seconds at which a token expires.

    Only this function computes a remaining lifetime from the wall clock, and clamps it to between 0
    and `MAX_LIFETIME_SECONDS`; later jumps of the wall clock change nothing.
    """
    return now + min(max(expires_at - wall_now, 0.0), MAX_LIFETIME_SECONDS)


def numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a NumericDate in whole seconds, rounded down as in Kafka; None if it is missing or
    invalid."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return float(math.floor(seconds)) if math.isfinite(seconds) and seconds >= 0 else None


def issuer_is_expected(claims: Mapping[str, Any], settings: OAuthBearerSettings) -> bool:
    """Return whether `iss` is the expected issuer; True if any issuer is accepted."""
    return settings.expected_issuer is None or claims.get("iss") == settings.expected_issuer


def audience_is_expected(audience: object, settings: OAuthBearerSettings) -> bool:
    """Return whether `aud` contains an expected audience; True if any audience is accepted."""
    if settings.expected_audience is None:
        return True
    values = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(value, str) for value in values):
        return False
    return not settings.expected_audience.isdisjoint(values)


def scope_is_well_formed(scope: object) -> bool:
    """Return whether no scope is blank or occurs twice (Kafka's
    `ClaimValidationUtils.validateScopes`)."""
    if not isinstance(scope, str | list):
        return True
    scopes = [text_of(value) for value in ([scope] if isinstance(scope, str) else scope)]
    return None not in scopes and len(set(scopes)) == len(scopes)


def text_of(value: object) -> str | None:
    """Return a claim's text without surrounding blanks; None if it is not a string, is blank, or
    has a lone surrogate."""
    if not isinstance(value, str):
        return None
    text = value.strip(_JAVA_BLANKS)
    try:
        text.encode()  # JSON can express lone surrogates, which UTF-8 cannot
    except UnicodeEncodeError:
        return None
    return text or None
