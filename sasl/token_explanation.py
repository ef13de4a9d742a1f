"""Explanation of a token, claim by claim, for an operator; `judge_token` decides.

The claims are shown even if the signature is wrong: they are the sender's.
"""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sasl.identity import MAX_PRINCIPAL_CHARACTERS, USER_TYPE, BadGroups
from sasl.json_web_token import MAX_UNVERIFIED_BYTES, TrustedIssuers, parse_token
from sasl.jwks import KeyMissing
from sasl.jwt_claims import (
    OAuthBearerSettings,
    audience_is_expected,
    groups_in,
    issuer_is_expected,
    numeric_date,
    principal_name,
    scope_is_well_formed,
    subject_of,
)
from sasl.mechanism import FailureReason
from sasl.signatures import ALGORITHMS
from sasl.untrusted import read_object

MAX_SHOWN: Final = 200
"""Longest value of a claim that is shown, in characters."""
_MISSING: Final = "missing"
_KEY_PROBLEMS: Final = {
    KeyMissing.NO_KEYS: "there are no keys",
    KeyMissing.UNKNOWN_KID: "the JWKS has no key of this kid",
    KeyMissing.NO_FIT: "no key fits, or several do and the token has no kid",
}


class Finding(NamedTuple):
    """One part of a token."""

    part: str
    """The part: `form`, `alg`, `kid`, `signature`, or the name of a claim."""
    found: str
    """The token's value."""
    problem: str | None
    """Reason for its rejection; None if it is accepted."""


def explain_token(
    token: str, issuers: TrustedIssuers, wall_now: float, now: float
) -> list[Finding]:
    """Return the finding on each part. `wall_now` is seconds since 1970, `now` monotonic."""
    parsed = parse_token(token)
    if parsed is FailureReason.FORBIDDEN_ALGORITHM:
        return [Finding("alg", "?", f"is not one of {', '.join(ALGORITHMS)}")]
    if isinstance(parsed, FailureReason):
        return [Finding("form", f"{len(token)} characters", "is not a signed JWT (RFC 7515)")]
    findings = [
        Finding("form", f"{len(token)} characters", None),
        Finding("alg", parsed.algorithm, None),
    ]
    issuer = issuers.issuer_of(parsed)
    if isinstance(issuer, FailureReason):
        return [*findings, _of_no_issuer(parsed.payload)]
    key = issuer.keys.find(parsed.algorithm, parsed.kid, now)
    kid = _MISSING if parsed.kid is None else _shown(parsed.kid)
    if isinstance(key, KeyMissing):
        findings.append(Finding("kid", kid, _KEY_PROBLEMS[key]))
    else:
        right = ALGORITHMS[parsed.algorithm].verify(key, parsed.signed, parsed.signature)
        problem = None if right else "does not fit the key and the content"
        findings += [Finding("kid", kid, None), Finding("signature", "", problem)]
    claims = read_object(parsed.payload)
    if claims is None:
        return [*findings, Finding("claims", "?", "are not a JSON object without duplicate names")]
    return findings + list(_claims(claims, issuer.settings, wall_now))


def _of_no_issuer(payload: bytes) -> Finding:
    """Return the finding for a token that matches no issuer."""
    claims = read_object(payload) if len(payload) <= MAX_UNVERIFIED_BYTES else None
    if claims is None:
        problem = f"are not a JSON object of at most {MAX_UNVERIFIED_BYTES} bytes"
        return Finding("claims", f"{len(payload)} bytes", problem)
    return Finding("iss", _value(claims, "iss"), "is not in sasl.oauthbearer.issuers")


def _claims(
    claims: Mapping[str, Any], settings: OAuthBearerSettings, wall_now: float
) -> Iterator[Finding]:
    yield from _times(claims, settings, wall_now)
    expected = settings.expected_issuer
    problem = None if issuer_is_expected(claims, settings) else f"expected is {expected}"
    yield Finding("iss", _value(claims, "iss"), problem)
    audiences = " or ".join(sorted(settings.expected_audience or ()))
    fits = audience_is_expected(claims.get("aud"), settings)
    yield Finding("aud", _value(claims, "aud"), None if fits else f"expected is {audiences}")
    yield _principal(claims, settings)
    scope = settings.scope_claim_name
    fits = scope_is_well_formed(claims.get(scope))
    yield Finding(
        scope, _value(claims, scope), None if fits else "must not be blank, or name a scope twice"
    )
    if settings.groups_claim_name is not None:
        yield _groups(claims, settings.groups_claim_name, settings)


def _principal(claims: Mapping[str, Any], settings: OAuthBearerSettings) -> Finding:
    path, subject = settings.sub_claim_name, subject_of(claims, settings)
    if subject is None:
        return Finding(path, _value(claims, path), "must be text: the principal")
    name = principal_name(subject, settings)
    if name is None:
        problem = (
            "no rule gives it a principal, it has another issuer's prefix, or its principal has"
            f" more than {MAX_PRINCIPAL_CHARACTERS} characters"
        )
        return Finding(path, _shown(subject), problem)
    found = subject if name == subject else f"{subject}: {USER_TYPE}{name}"
    return Finding(path, _shown(found), None)


def _groups(claims: Mapping[str, Any], path: str, settings: OAuthBearerSettings) -> Finding:
    try:
        groups = groups_in(claims, settings)
    except BadGroups as bad:
        return Finding(path, "?", str(bad))
    return Finding(path, _shown(", ".join(sorted(groups))) or _MISSING, None)


def _times(
    claims: Mapping[str, Any], settings: OAuthBearerSettings, wall_now: float
) -> Iterator[Finding]:
    times = {name: numeric_date(claims, name) for name in ("iat", "nbf", "exp")}
    skew = settings.clock_skew_seconds
    for name, at in times.items():
        problem = None
        if at is None:
            is_missing = name == "nbf" and name not in claims
            problem = None if is_missing else "must be a number of seconds since 1970"
        elif name == "exp" and at <= wall_now:
            problem = f"has passed {wall_now - at:,.0f} s ago"
            if at + skew > wall_now:
                problem += ", within the clock skew: the login succeeds, and any request closes"
        elif name == "exp" and at < max(times["iat"] or 0.0, times["nbf"] or 0.0):
            problem = "is before iat or nbf"
        elif name == "nbf" and at > wall_now + skew:
            problem = f"is {at - wall_now:,.0f} s ahead, the clock skew is {skew} s"
        yield Finding(name, _moment(at) if at is not None else _value(claims, name), problem)


def _moment(at: float) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"


def _value(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if value is None:
        return _MISSING
    return _shown(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
