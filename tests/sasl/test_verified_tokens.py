"""A token that was verified once is not verified again, and nothing else about it is taken over."""

import json
from dataclasses import replace

import pytest

from sasl.json_web_token import AcceptedToken, judge_token
from sasl.jwks import KeyCache, KeyCacheSettings, KeyMissing
from sasl.jwt_claims import OAuthBearerSettings
from sasl.mechanism import FailureReason
from sasl.verified_tokens import MOST_CHARACTERS, VerifiedTokens
from tests.sasl.given import (
    NOW,
    SETTINGS,
    WALL,
    Key,
    cache_of,
    claims,
    document,
    ec_key,
    rsa_key,
    token,
)

TOKEN = token()
ACCEPTED = AcceptedToken(principal_name="alice", deadline=NOW + 300)
Verdict = AcceptedToken | FailureReason | KeyMissing


class Judge:
    """What a listener has: keys, rules, a memory."""

    def __init__(self, *keys: Key, most_tokens: int = 10) -> None:
        self.keys = cache_of(*keys)
        self.settings = SETTINGS
        self.verified = VerifiedTokens(most_tokens)

    def __call__(self, bearer: str, later: float = 0.0) -> Verdict:
        return judge_token(
            bearer, self.keys, self.settings, WALL + later, NOW + later, self.verified
        )

    def remembers(self, bearer: str, later: float = 0.0) -> bool:
        return self.verified.payload(bearer, self.keys, NOW + later) is not None


def logged_in() -> Judge:
    judge = Judge(rsa_key(), ec_key())
    assert judge(TOKEN) == ACCEPTED
    assert judge.remembers(TOKEN)
    return judge


def test_the_same_token_is_judged_the_same_from_memory() -> None:
    judge = logged_in()
    assert judge(TOKEN) == ACCEPTED
    assert len(judge.verified) == 1


def test_its_lifetime_is_what_is_left_now() -> None:
    """The session of a connection that comes later must not outlive the token."""
    assert logged_in()(TOKEN, later=100) == ACCEPTED


def test_it_expires_nevertheless_and_is_forgotten() -> None:
    judge = logged_in()
    assert judge(TOKEN, later=300) is FailureReason.EXPIRED
    assert len(judge.verified) == 0


def test_a_wall_clock_that_was_set_back_is_believed_again() -> None:
    """`nbf` is looked at each time, as `exp` is."""
    judge = Judge(rsa_key())
    bearer = token(claims(nbf=WALL))
    assert judge(bearer) == ACCEPTED
    assert judge(bearer, later=-31) is FailureReason.NOT_YET_VALID


def test_a_key_that_was_withdrawn_lets_nobody_in() -> None:
    """The identity provider's answer to a stolen key: it must not work any longer from memory."""
    judge = logged_in()
    assert judge.keys.loaded(document(ec_key().jwk()), NOW)
    assert judge(TOKEN) is KeyMissing.UNKNOWN_KID
    assert len(judge.verified) == 0


def test_a_key_that_was_replaced_under_its_id_lets_nobody_in() -> None:
    judge = logged_in()
    other = replace(rsa_key("other"), kid="rsa")
    assert judge.keys.loaded(document(other.jwk(), ec_key().jwk()), NOW)
    assert judge(TOKEN) is FailureReason.BAD_SIGNATURE
    assert not judge.remembers(TOKEN)


def test_a_token_without_kid_is_refused_once_two_keys_fit() -> None:
    judge = Judge(rsa_key())
    bearer = token(kid=None)
    assert judge(bearer) == ACCEPTED
    assert judge.keys.loaded(document(rsa_key().jwk(), rsa_key("second").jwk()), NOW)
    assert judge(bearer) is KeyMissing.NO_FIT


def test_keys_that_are_too_old_let_nobody_in() -> None:
    judge = logged_in()
    judge.keys = KeyCache(KeyCacheSettings(refresh_ms=1_000, max_age_ms=10_000))
    judge.keys.loaded(document(rsa_key().jwk()), NOW)
    assert judge(TOKEN) == ACCEPTED
    assert judge(TOKEN, later=10) == ACCEPTED
    assert judge(TOKEN, later=11) is KeyMissing.NO_KEYS


def test_every_good_fetch_has_signatures_verified_anew() -> None:
    """So nothing is believed for longer than `refresh_ms`, whatever was wrong with it."""
    judge = logged_in()
    assert judge.keys.loaded(document(rsa_key().jwk(), ec_key().jwk()), NOW)
    assert not judge.remembers(TOKEN)
    assert judge(TOKEN) == ACCEPTED
    assert judge.remembers(TOKEN)


def test_other_rules_apply_to_it_at_once() -> None:
    judge = logged_in()
    judge.settings = OAuthBearerSettings(expected_audience=frozenset({"others"}))
    assert judge(TOKEN) is FailureReason.BAD_CLAIMS


def test_whatever_differs_by_a_character_is_another_token() -> None:
    judge = logged_in()
    head, payload, signature = TOKEN.split(".")
    for forged in (
        f"{head}.{payload}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}",
        f"{head}.{payload}.",
        f"{head}.{payload}",
        token(claims(sub="mallory"), key=rsa_key("other"), kid="rsa").rpartition(".")[0]
        + f".{signature}",
    ):
        assert isinstance(judge(forged), FailureReason)
    assert len(judge.verified) == 1


@pytest.mark.parametrize(
    "bearer",
    [
        token(key=replace(rsa_key("stranger"), kid="rsa")),
        token(claims(aud="others")),
        token(claims(exp=WALL - 1)),
        token(b"no JSON"),
        "no token",
    ],
    ids=["signature", "audience", "expired", "no claims", "garbage"],
)
def test_what_was_refused_is_not_remembered(bearer: str) -> None:
    """Strangers must not push out those who are let in."""
    judge = Judge(rsa_key())
    assert isinstance(judge(bearer), FailureReason)
    assert len(judge.verified) == 0


def test_the_longest_unused_is_forgotten_first() -> None:
    judge = Judge(ec_key(), most_tokens=2)
    first, second, third = (token(claims(sub=name), key=ec_key()) for name in "abc")
    for bearer in (first, second, first, third):
        assert isinstance(judge(bearer), AcceptedToken)
    assert [judge.remembers(bearer) for bearer in (first, second, third)] == [True, False, True]


def test_long_tokens_take_no_room() -> None:
    judge = Judge(rsa_key())
    bearer = token(claims(groups="x" * MOST_CHARACTERS))
    assert judge(bearer) == ACCEPTED
    assert len(judge.verified) == 0


def test_no_token_lies_in_memory() -> None:
    """Whoever reads the proxy's memory shall not find what would let him in elsewhere."""
    held = repr(vars(logged_in().verified))
    _, payload, signature = TOKEN.split(".")
    assert signature not in held
    assert payload not in held
    assert json.dumps(claims())[:20] in held  # the search would find it
