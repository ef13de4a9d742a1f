"""Verdicts on how ready a client is for re-authentication, and their texts in the report."""

from collections.abc import Mapping
from enum import StrEnum


class Verdict(StrEnum):
    """Readiness of a connection, or of all connections of a client."""

    READY = "ready"
    """It has re-authenticated, and was never used past the end of a session."""
    UNPROVEN = "unproven"
    """It speaks SaslAuthenticate v1 or later, but had no announced lifetime, or ended before it."""
    NOT_CAPABLE = "not_capable"
    """It speaks SaslAuthenticate v0 or sends raw tokens: no lifetime can be announced (KIP-368)."""
    FAILING = "failing"
    """It was killed, would have been killed, or failed to re-authenticate."""
    UNKNOWN = "unknown"
    """It never authenticated, or the log lacks the data to judge it."""


WORST_FIRST = (
    Verdict.FAILING,
    Verdict.NOT_CAPABLE,
    Verdict.UNKNOWN,
    Verdict.UNPROVEN,
    Verdict.READY,
)
"""The order of verdicts. A principal has the worst verdict of its clients. Clients that never
authenticated are listed last: they belong to no principal, and there may be many."""

VERDICT_LABELS: Mapping[str, str] = {
    Verdict.READY: "ready",
    Verdict.UNPROVEN: "capable, unproven",
    Verdict.NOT_CAPABLE: "not capable",
    Verdict.FAILING: "failing",
    Verdict.UNKNOWN: "unknown",
}

VERDICT_MEANINGS: Mapping[str, str] = {
    Verdict.READY: "has re-authenticated, always in time",
    Verdict.UNPROVEN: "speaks SaslAuthenticate v1 or later, so it can learn its lifetime; nobody "
    "has seen yet what it does then",
    Verdict.NOT_CAPABLE: "speaks SaslAuthenticate v0, or sends raw tokens: it cannot learn its "
    "lifetime, and breaks when one ends",
    Verdict.FAILING: "was given a lifetime and used a connection past it, failed to "
    "re-authenticate, or does so too often",
    Verdict.UNKNOWN: "never logged in, or used a session past its end or of an unknown lifetime "
    "while an older version of the proxy did not record on which days",
}
