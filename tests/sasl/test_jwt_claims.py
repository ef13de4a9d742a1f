import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.jwt_claims import (
    MAX_LIFETIME_SECONDS,
    AcceptedClaims,
    OAuthBearerSettings,
    deadline_of,
    judge_claims,
)
from sasl.learned import reader_of
from sasl.mechanism import FailureReason
from tests.support.frames import bearer
from tests.support.sasl import NOW, SETTINGS, WALL, claims

EXPIRED = FailureReason.EXPIRED
NOT_YET_VALID = FailureReason.NOT_YET_VALID
BAD_CLAIMS = FailureReason.BAD_CLAIMS
WRONG_ISSUER = FailureReason.WRONG_ISSUER
WRONG_AUDIENCE = FailureReason.WRONG_AUDIENCE

ANY = OAuthBearerSettings(expected_audience=None, expected_issuer=None)


@pytest.mark.parametrize(
    ("expires_in", "lifetime"),
    [
        (300.0, 300.0),
        (0.5, 0.5),
        (0.0, 0.0),
        (-5.0, 0.0),
        (1e18, MAX_LIFETIME_SECONDS),
        (1e300, MAX_LIFETIME_SECONDS),
    ],
)
def test_a_wall_clock_time_becomes_a_monotonic_deadline(expires_in: float, lifetime: float) -> None:
    assert deadline_of(WALL + expires_in, WALL, NOW) == NOW + lifetime


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": ["other", "kafka-dev"]},
        {"nbf": WALL + 30},
        {"iat": WALL + 200},
        {"iat": 0},
        {"exp": WALL + 1},
        {"exp": WALL + 300.75, "iat": WALL - 0.5},
        {"exp": 10**18},
        {"exp": 1e308},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": 7},
        {"jti": {"any": ["thing"]}},
    ],
)
def test_good_claims(changes: dict[str, Any]) -> None:
    """As Kafka: iat may lie in the future, exp may have a fraction, scope may be missing."""
    accepted = judge_claims(claims(**changes), SETTINGS, WALL)
    assert isinstance(accepted, AcceptedClaims), accepted
    assert accepted.subject == "alice"
    assert accepted.expires_at == math.floor(claims(**changes)["exp"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": None}, BAD_CLAIMS),
        ({"exp": True}, BAD_CLAIMS),
        ({"exp": "1800000000"}, BAD_CLAIMS),
        ({"exp": math.inf}, BAD_CLAIMS),
        ({"exp": math.nan}, BAD_CLAIMS),
        ({"exp": 10**400}, BAD_CLAIMS),
        ({"exp": -1}, BAD_CLAIMS),
        ({"exp": [WALL + 300]}, BAD_CLAIMS),
        ({"exp": WALL - 30}, EXPIRED),
        ({"exp": WALL - 29.1}, EXPIRED),
        ({"exp": WALL - 1e6}, EXPIRED),
        ({"iat": None}, BAD_CLAIMS),
        ({"iat": "now"}, BAD_CLAIMS),
        ({"iat": -1}, BAD_CLAIMS),
        ({"iat": WALL + 400}, BAD_CLAIMS),
        ({"nbf": WALL + 31}, NOT_YET_VALID),
        ({"nbf": "soon"}, BAD_CLAIMS),
        ({"nbf": WALL + 20, "exp": WALL + 10}, BAD_CLAIMS),
        ({"iss": None}, WRONG_ISSUER),
        ({"iss": "https://issuer.test/"}, WRONG_ISSUER),
        ({"iss": ["https://issuer.test"]}, WRONG_ISSUER),
        ({"aud": None}, WRONG_AUDIENCE),
        ({"aud": []}, WRONG_AUDIENCE),
        ({"aud": "Kafka"}, WRONG_AUDIENCE),
        ({"aud": ["kafka", 7]}, WRONG_AUDIENCE),
        ({"aud": ["kafka", ["kafka"]]}, WRONG_AUDIENCE),
        ({"aud": {"kafka": 1}}, WRONG_AUDIENCE),
        ({"sub": None}, BAD_CLAIMS),
        ({"sub": ""}, BAD_CLAIMS),
        ({"sub": " \t\n"}, BAD_CLAIMS),
        ({"sub": 7}, BAD_CLAIMS),
        ({"sub": ["alice"]}, BAD_CLAIMS),
        ({"sub": "\ud800"}, BAD_CLAIMS),
        ({"scope": ""}, BAD_CLAIMS),
        ({"scope": ["read", "read "]}, BAD_CLAIMS),
        ({"scope": ["read", 7]}, BAD_CLAIMS),
    ],
)
def test_bad_claims(changes: dict[str, Any], reason: FailureReason) -> None:
    assert judge_claims(claims(**changes), SETTINGS, WALL) is reason


def test_an_expired_token_is_accepted_within_the_clock_skew() -> None:
    """As by Kafka; the session that begins with it is closed when it is used."""
    old = claims(iat=WALL - 300, exp=WALL - 29)
    assert isinstance(judge_claims(old, SETTINGS, WALL), AcceptedClaims)
    assert judge_claims(old, replace(SETTINGS, clock_skew_seconds=29), WALL) is EXPIRED


def test_subjects_are_trimmed_as_java_does() -> None:
    """Control characters and blanks go, a no-break space stays: it is another principal."""
    accepted = judge_claims(claims(sub="\0 alice\n"), SETTINGS, WALL)
    assert isinstance(accepted, AcceptedClaims)
    assert accepted.subject == "alice"
    accepted = judge_claims(claims(sub="\u00a0alice"), SETTINGS, WALL)
    assert isinstance(accepted, AcceptedClaims)
    assert accepted.subject == "\u00a0alice"


@pytest.mark.parametrize("audience", ["kafka", ["a", "b"], ["a", 7], {"a": 1}, "", None])
@pytest.mark.parametrize("issuer", [7, "", None])
def test_claims_that_need_not_be_verified_may_be_anything(audience: Any, issuer: Any) -> None:
    """As with Kafka's allow.unverified.audience and allow.unverified.issuer."""
    assert isinstance(judge_claims(claims(aud=audience, iss=issuer), ANY, WALL), AcceptedClaims)


def test_each_claim_is_verified_by_itself() -> None:
    said = claims(aud="other", iss="https://other.test")
    assert judge_claims(said, replace(SETTINGS, expected_issuer=None), WALL) is WRONG_AUDIENCE
    assert judge_claims(said, replace(SETTINGS, expected_audience=None), WALL) is WRONG_ISSUER


def test_another_claim_may_name_the_principal() -> None:
    settings = replace(ANY, sub_claim_name="client_id", scope_claim_name="scp")
    said = claims(aud=None, sub=None, client_id="svc", scope="")
    accepted = judge_claims(said, settings, WALL)
    assert isinstance(accepted, AcceptedClaims)
    assert accepted.subject == "svc"
    assert judge_claims(said | {"scp": ""}, settings, WALL) is BAD_CLAIMS


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["exp", "iat", "nbf", "iss", "aud", "sub", "scope"]), ANYTHING, max_size=4
    )
)
def test_no_claims_raise(changes: dict[str, Any]) -> None:
    accepted = judge_claims(claims() | changes, SETTINGS, WALL)
    if isinstance(accepted, AcceptedClaims):
        assert accepted.expires_at > WALL
        assert accepted.subject.strip()


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("alice", "alice"),
        ("\u0000 \t alice \u001f\n", "alice"),  # what Java's `String.trim` removes
        ("\u00a0admin", "\u00a0admin"),  # and what it does not
        ("admin\u3000", "admin\u3000"),
        ("\u2028admin", "\u2028admin"),
        ("\ud800", None),  # a lone surrogate, which no answer could name
        (" \n", None),
        (7, None),
        (None, None),
    ],
)
def test_the_subject_of_a_token_is_trimmed_as_by_kafka(subject: object, name: str | None) -> None:
    """Or a client of an identity provider could be somebody else here than to the broker."""
    reader = reader_of("OAUTHBEARER", "sub")
    reader.heard(bearer(sub=subject))
    assert reader.name == name
