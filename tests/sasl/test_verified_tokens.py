"""A token that was verified once is not verified again, and nothing else about it is taken over."""

import gc
import uuid
from dataclasses import replace

import pytest

from sasl.json_web_token import AcceptedToken
from sasl.jwks import KeyCache, KeyCacheSettings
from sasl.mechanism import Challenge, Failure, FailureReason, KeysNeeded, Success
from sasl.oauthbearer import OAuthBearerServer, OAuthBearerServerExchange
from sasl.oauthbearer_messages import client_initial_response
from sasl.verified_tokens import MAX_CACHED_MESSAGE_BYTES, VerifiedTokens
from tests.support.sasl import (
    ALICE,
    NOW,
    WALL,
    Key,
    cache_of,
    claims,
    document,
    ec_key,
    judged,
    only,
    rsa_key,
    token,
)

TOKEN = token()
ACCEPTED = Success(data=b"", identity=ALICE, credential_deadline=NOW + 300)


class Listener:
    """What the logins of one listener have in common."""

    def __init__(self, *keys: Key, cache: KeyCache | None = None) -> None:
        self.keys = cache_of(*keys) if cache is None else cache
        self._later = 0.0
        self._server = OAuthBearerServer(
            issuers=only(self.keys), wall_clock=lambda: WALL + self._later
        )

    def login(self, bearer: str, later: float = 0.0) -> Success | FailureReason:
        """The success, or the reason of the failure; no newer keys are to be had."""
        self._later = later
        exchange = self.exchange()
        message = client_initial_response(bearer)
        step = exchange.step(message, NOW + later)
        if isinstance(step, KeysNeeded):
            step = exchange.step(message, NOW + later)
        if isinstance(step, Challenge):
            step = exchange.step(b"\x01", NOW + later)
        assert isinstance(step, Success | Failure)
        return step.reason if isinstance(step, Failure) else step

    def exchange(self) -> OAuthBearerServerExchange:
        return self._server.exchange()

    @property
    def remembered(self) -> int:
        return len(self._server.verified)

    def remembers(self, bearer: str) -> bool:
        message = client_initial_response(bearer)
        return self._server.verified.find(message, WALL, NOW) is not None

    @property
    def memory(self) -> str:
        return repr(gc.get_referents(self._server.verified))


def logged_in() -> Listener:
    listener = Listener(rsa_key(), ec_key())
    assert listener.login(TOKEN) == ACCEPTED
    assert listener.remembers(TOKEN)
    return listener


def test_the_same_token_is_judged_the_same_from_memory() -> None:
    listener = logged_in()
    assert listener.login(TOKEN) == ACCEPTED
    assert listener.remembered == 1


def test_its_lifetime_is_what_is_left_now() -> None:
    """The session of a connection that comes later must not outlive the token."""
    assert logged_in().login(TOKEN, later=100) == ACCEPTED


def test_it_expires_nevertheless_and_is_forgotten() -> None:
    listener = logged_in()
    assert isinstance(listener.login(TOKEN, later=329), Success)  # within the clock skew
    assert listener.login(TOKEN, later=330) is FailureReason.EXPIRED
    assert listener.remembered == 0


def test_a_wall_clock_that_was_set_back_is_believed_again() -> None:
    """`nbf` is looked at each time, as `exp` is."""
    listener = Listener(rsa_key())
    bearer = token(claims(nbf=WALL))
    assert listener.login(bearer) == ACCEPTED
    assert listener.login(bearer, later=-31) is FailureReason.NOT_YET_VALID


def test_a_key_that_was_withdrawn_lets_nobody_in() -> None:
    """The identity provider's answer to a stolen key: it must not work any longer from memory."""
    listener = logged_in()
    assert listener.keys.loaded(document(ec_key().jwk()), NOW)
    assert listener.login(TOKEN) is FailureReason.UNKNOWN_KEY
    assert listener.remembered == 0


def test_a_key_that_was_replaced_under_its_id_lets_nobody_in() -> None:
    listener = logged_in()
    other = replace(rsa_key("other"), kid="rsa")
    assert listener.keys.loaded(document(other.jwk(), ec_key().jwk()), NOW)
    assert listener.login(TOKEN) is FailureReason.BAD_SIGNATURE
    assert not listener.remembers(TOKEN)


def test_a_token_without_kid_is_refused_once_two_keys_fit() -> None:
    listener = Listener(rsa_key())
    bearer = token(kid=None)
    assert listener.login(bearer) == ACCEPTED
    assert listener.keys.loaded(document(rsa_key().jwk(), rsa_key("second").jwk()), NOW)
    assert listener.login(bearer) is FailureReason.UNKNOWN_KEY


def test_keys_that_are_too_old_let_nobody_in() -> None:
    listener = Listener(cache=KeyCache(KeyCacheSettings(refresh_ms=1_000, max_age_ms=10_000)))
    listener.keys.loaded(document(rsa_key().jwk()), NOW)
    assert listener.login(TOKEN) == ACCEPTED
    assert listener.login(TOKEN, later=10) == ACCEPTED
    assert listener.login(TOKEN, later=11) is FailureReason.NO_KEYS


def test_every_good_fetch_has_signatures_verified_anew() -> None:
    """So nothing is believed for longer than `refresh_ms`, whatever was wrong with it."""
    listener = logged_in()
    assert listener.keys.loaded(document(rsa_key().jwk(), ec_key().jwk()), NOW)
    assert not listener.remembers(TOKEN)
    assert listener.login(TOKEN) == ACCEPTED
    assert listener.remembers(TOKEN)


def test_whatever_differs_by_a_character_is_another_token() -> None:
    listener = logged_in()
    head, payload, signature = TOKEN.split(".")
    for forged in (
        f"{head}.{payload}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}",
        f"{head}.{payload}.",
        f"{head}.{payload}",
        token(claims(sub="mallory"), key=rsa_key("other"), kid="rsa").rpartition(".")[0]
        + f".{signature}",
    ):
        assert isinstance(listener.login(forged), FailureReason)
    assert listener.remembered == 1


def test_a_known_token_does_not_let_in_as_somebody_else() -> None:
    """What was judged is the whole message, the authorization id in it included."""
    listener = logged_in()
    message = client_initial_response(TOKEN).replace(b"n,,", b"n,a=mallory,")
    step = listener.exchange().step(message, NOW)
    assert isinstance(step, Failure)
    assert step.reason is FailureReason.BAD_CLAIMS
    assert listener.remembered == 1


@pytest.mark.parametrize(
    "bearer",
    [
        token(key=replace(rsa_key("other"), kid="rsa")),
        token(claims(aud="others")),
        token(claims(exp=WALL - 40)),
        token(b"no JSON"),
        "no token",
    ],
    ids=["signature", "audience", "expired", "no claims", "garbage"],
)
def test_what_was_refused_is_not_remembered(bearer: str) -> None:
    """Rejected clients must not push out accepted ones."""
    listener = Listener(rsa_key())
    assert isinstance(listener.login(bearer), FailureReason)
    assert listener.remembered == 0


def test_the_longest_unused_is_forgotten_first() -> None:
    accepted = judged(token(key=ec_key()), only(cache_of(ec_key())))
    assert isinstance(accepted, AcceptedToken)
    tokens = VerifiedTokens(max_tokens=2)
    tokens.remember(b"first", accepted)
    tokens.remember(b"second", accepted)
    assert tokens.find(b"first", WALL, NOW) == accepted.claims
    tokens.remember(b"third", accepted)
    known = [tokens.find(name, WALL, NOW) is not None for name in (b"first", b"second", b"third")]
    assert known == [True, False, True]


def test_long_tokens_take_no_room() -> None:
    listener = Listener(rsa_key())
    assert listener.login(token(claims(groups="x" * MAX_CACHED_MESSAGE_BYTES))) == ACCEPTED
    assert listener.remembered == 0


def test_tokens_with_many_groups_are_remembered() -> None:
    """Microsoft Entra ID names up to 200 groups, by their GUIDs."""
    listener = Listener(rsa_key())
    groups = [str(uuid.UUID(int=number)) for number in range(200)]
    assert listener.login(token(claims(groups=groups))) == ACCEPTED
    assert listener.remembered == 1


def test_no_token_lies_in_memory() -> None:
    """Whoever reads the proxy's memory shall not find what would let him in elsewhere."""
    held = logged_in().memory
    _, payload, signature = TOKEN.split(".")
    assert signature not in held
    assert payload not in held
    assert "alice" in held  # the search would find it
