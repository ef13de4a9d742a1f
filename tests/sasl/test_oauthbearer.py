import gc
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sasl.json_web_token import MAX_CLAIMED_BYTES, AcceptedToken
from sasl.jwks import UNKNOWN_KID_INTERVAL_SECONDS, KeyCache, KeyCacheSettings
from sasl.mechanism import (
    MAX_QUOTED_CHARACTERS,
    Challenge,
    Failure,
    FailureReason,
    KeysNeeded,
    Step,
    Success,
)
from sasl.messages import MAX_PAIRS, client_initial_response, read_client_initial_response
from sasl.oauthbearer import (
    INVALID_TOKEN,
    MAX_CACHED_MESSAGE_BYTES,
    OAuthBearerServer,
    OAuthBearerServerExchange,
    VerifiedTokens,
)
from tests.support.sasl import (
    ALICE,
    NOW,
    WALL,
    Key,
    all_keys,
    cache_of,
    claims,
    document,
    ec_key,
    judged,
    oauth_exchange,
    only,
    rsa_key,
    tampered,
    token,
)

REJECTED = Challenge(b'{"status":"invalid_token"}')
BAD_MESSAGE = Failure(reason=FailureReason.BAD_MESSAGE)
GOOD_TOKEN = token()


def offer(bearer: str) -> Step:
    return oauth_exchange().step(client_initial_response(bearer), NOW)


def rejection(bearer: str) -> Failure:
    """The failure of a rejected token, which shows only after the error round."""
    exchange = oauth_exchange()
    assert exchange.step(client_initial_response(bearer), NOW) == REJECTED
    failure = exchange.step(b"\x01", NOW)
    assert isinstance(failure, Failure)
    assert failure.message == INVALID_TOKEN
    return failure


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.kid)
def test_good_tokens_let_in(key: Key) -> None:
    assert offer(token(key=key)) == Success(data=b"", identity=ALICE, credential_deadline=NOW + 300)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_every_rsa_algorithm_is_offered(algorithm: str) -> None:
    assert isinstance(offer(token(algorithm=algorithm)), Success)


def test_a_token_without_kid_is_accepted_when_one_key_fits() -> None:
    assert isinstance(offer(token(kid=None)), Success)


class TestMessages:
    @pytest.mark.parametrize(
        "message",
        [
            b"n,,\x01auth=bearer a.b.c\x01\x01",
            b"n,,\x01auth=BEARER   a.b.c\x01\x01",
            b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01",
            b"n,,\x01k=v\x01auth=Bearer a.b.c\x01\x01",
            b"n,,\x01auth=Bearer a.b.c\x01k=v w\t\r\n=x\x01\x01",
        ],
    )
    def test_accepted(self, message: bytes) -> None:
        response = read_client_initial_response(message)
        assert response is not None
        assert response.token == "a.b.c"

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"\x01",
            b"n,,",
            b"n,,\x01\x01",
            b"n,,\x01auth=Bearer a",
            b"n,,\x01auth=Bearer a\x01",
            b"n,,\x01auth=Bearer a\x01\x01\x01",
            b"n,,\x01auth=Bearer a\x01\x01 ",
            b"y,,\x01auth=Bearer a\x01\x01",
            b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
            b"n,a=,\x01auth=Bearer a\x01\x01",
            b"n,a=b=2c,\x01auth=Bearer a\x01\x01",
            b"n,,\x01auth=Bearer\x01\x01",
            b"n,,\x01auth=Bearer \x01\x01",
            b"n,,\x01auth=Bearer\ta\x01\x01",
            b"n,,\x01auth=Bearer a b\x01\x01",
            b"n,,\x01auth=Bearer =a\x01\x01",
            b"n,,\x01auth=Basic a\x01\x01",
            b"n,,\x01Auth=Bearer a\x01\x01",
            b"n,,\x01k=v\x01\x01",
            b"n,,\x01auth=Bearer a\x01k\x01\x01",
            b"n,,\x01auth=Bearer a\x01k=\x01\x01",
            b"n,,\x01auth=Bearer a\x01k1=v\x01\x01",
            b"n,,\x01auth=Bearer a\x01k=\x02\x01\x01",
            b"n,,\x01auth=Bearer a\x01k=\xc3\xa9\x01\x01",
            b"n,,\x01auth=Bearer a\x01k=\xff\x01\x01",
            b"n,,\x01auth=Bearer a\x01k=v\x01k=w\x01\x01",
            b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
            b"n,,\x01auth=B\xc5\xbfarer a\x01\x01",
        ],
    )
    def test_malformed_ones_end_the_exchange(self, message: bytes) -> None:
        exchange = oauth_exchange()
        assert exchange.step(message, NOW) == BAD_MESSAGE
        assert exchange.step(client_initial_response(GOOD_TOKEN), NOW) == Failure(
            reason=FailureReason.ILLEGAL_STATE
        )

    def test_the_client_helper_writes_what_the_server_reads(self) -> None:
        message = client_initial_response("a.b.c", {"logicalCluster": "lkc-1", "k": "v"})
        assert message == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01k=v\x01\x01"
        response = read_client_initial_response(message)
        assert response is not None
        assert response.extensions == {"logicalCluster": "lkc-1", "k": "v"}

    def test_pairs_are_few(self) -> None:
        """Half a megabyte of them costs a tenth of a second, and it takes no login to send it."""
        most = {"k" * length: "v" for length in range(1, MAX_PAIRS)}
        assert read_client_initial_response(client_initial_response("a.b.c", most)) is not None
        more = most | {"x": "v"}
        assert read_client_initial_response(client_initial_response("a.b.c", more)) is None
        assert read_client_initial_response(b"n,," + b"\x01" * 500_000) is None

    def test_a_token_does_not_show_in_a_repr(self) -> None:
        """A bearer token in a log is a login."""
        assert GOOD_TOKEN not in repr(
            read_client_initial_response(client_initial_response(GOOD_TOKEN))
        )


class TestErrorRound:
    @pytest.mark.parametrize(
        ("changed", "reason", "detail"),
        [
            ({"exp": WALL - 10_746}, "expired", "expired 10,746 s ago by this machine's clock"),
            (
                {"nbf": WALL + 90},
                "not_yet_valid",
                "not valid for another 90 s by this machine's clock",
            ),
            (
                {"nbf": 1e300},
                "not_yet_valid",
                "not valid for another 31,536,000 s by this machine's clock",
            ),
            ({"aud": "x"}, "wrong_audience", ""),
        ],
    )
    def test_the_failure_comes_second_with_its_reason(
        self, changed: dict[str, Any], reason: str, detail: str
    ) -> None:
        """The clock is named where it decides."""
        failure = rejection(token(claims(**changed)))
        assert (failure.reason, failure.detail) == (FailureReason(reason), detail)

    def test_a_good_token_after_a_bad_one_lets_in(self) -> None:
        """As Kafka does."""
        exchange = oauth_exchange()
        assert exchange.step(client_initial_response("a.b.c"), NOW) == REJECTED
        assert isinstance(exchange.step(client_initial_response(GOOD_TOKEN), NOW), Success)

    def test_a_second_bad_token_ends_it(self) -> None:
        """One connection is not for guessing: failures must be counted."""
        exchange = oauth_exchange()
        expired = client_initial_response(token(claims(exp=WALL - 40)))
        assert exchange.step(expired, NOW) == REJECTED
        assert exchange.step(client_initial_response("a.b.c"), NOW) == Failure(
            reason=FailureReason.EXPIRED, message=INVALID_TOKEN
        )

    def test_garbage_after_a_bad_token_keeps_its_reason(self) -> None:
        exchange = oauth_exchange()
        assert exchange.step(client_initial_response(token(claims(aud="x"))), NOW) == REJECTED
        assert exchange.step(b"garbage", NOW) == Failure(reason=FailureReason.WRONG_AUDIENCE)


class TestKeysNeeded:
    LATER = NOW + UNKNOWN_KID_INTERVAL_SECONDS

    def test_an_unknown_key_is_sought_once_and_then_found(self) -> None:
        keys = cache_of(ec_key())
        exchange = oauth_exchange(keys)
        message = client_initial_response(GOOD_TOKEN)
        assert exchange.step(message, self.LATER) == KeysNeeded()
        assert keys.loaded(document(rsa_key().jwk()), self.LATER)
        assert isinstance(exchange.step(message, self.LATER), Success)

    def test_a_key_that_stays_unknown_is_rejected(self) -> None:
        """Even when the cache would allow another fetch: no loop."""
        keys = cache_of(ec_key())
        exchange = oauth_exchange(keys)
        message = client_initial_response(GOOD_TOKEN)
        assert exchange.step(message, self.LATER) == KeysNeeded()
        assert exchange.step(message, self.LATER) == REJECTED
        assert exchange.step(message, self.LATER) == Failure(
            reason=FailureReason.UNKNOWN_KEY, message=INVALID_TOKEN
        )

    def test_no_keys_at_all(self) -> None:
        keys = KeyCache()
        exchange = oauth_exchange(keys)
        message = client_initial_response(GOOD_TOKEN)
        assert exchange.step(message, NOW) == KeysNeeded()
        keys.failed("refused", NOW)
        assert exchange.step(message, NOW) == REJECTED
        assert exchange.step(b"\x01", NOW) == Failure(
            reason=FailureReason.NO_KEYS, message=INVALID_TOKEN
        )

    @pytest.mark.parametrize("kid", ["rsa", None])
    def test_no_fetch_for_a_key_of_the_wrong_type(self, kid: str | None) -> None:
        """A fetch could not help, and anybody could cause it at will."""
        keys = cache_of(rsa_key(), rsa_key("rsa-2"))
        exchange = oauth_exchange(keys)
        bearer = token(key=ec_key(), kid=kid)
        assert exchange.step(client_initial_response(bearer), self.LATER) == REJECTED


@pytest.mark.parametrize(
    ("authorization_id", "quoted"),
    [("b=2Cob", "b,ob"), ("x" * 100_000, "x" * MAX_QUOTED_CHARACTERS)],
)
def test_another_name_fails_in_kafkas_words(authorization_id: str, quoted: str) -> None:
    """The length of an error message is an int16: more would break the response."""
    first = client_initial_response(GOOD_TOKEN).replace(
        b"n,,", f"n,a={authorization_id},".encode(), 1
    )
    failure = oauth_exchange().step(first, NOW)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.message) == (
        FailureReason.BAD_CLAIMS,
        f"Authentication failed: Client requested an authorization id ({quoted}) that is "
        "different from the token's principal name (alice)",
    )
    assert failure.claimed == authorization_id.replace("=2C", ",")


def test_a_deadline_follows_the_monotonic_clock() -> None:
    """The wall clock stands still here: only the lifetime left is taken from it."""
    for now in (NOW, NOW + 100):
        step = oauth_exchange().step(client_initial_response(GOOD_TOKEN), now)
        assert isinstance(step, Success)
        assert step.credential_deadline == now + 300


PIECES = st.sampled_from(
    [
        b"n,,",
        b"n,a=alice,",
        b"\x01",
        b"\x01\x01",
        b"auth=Bearer ",
        b"k=v",
        GOOD_TOKEN.partition(".")[0].encode(),
        b".",
    ]
)
MESSAGES = st.binary(max_size=80) | st.lists(PIECES, max_size=8).map(b"".join)


@given(st.lists(MESSAGES, max_size=4))
@settings(deadline=None)
def test_arbitrary_bytes_never_raise_and_never_succeed(messages: list[bytes]) -> None:
    exchange = oauth_exchange(cache_of(rsa_key()))
    for message in messages:
        assert isinstance(exchange.step(message, NOW), Challenge | Failure)


@pytest.mark.parametrize(
    ("bearer", "name"),
    [
        (token(claims(exp=WALL - 40)), "alice"),
        (token(claims(aud="other")), "alice"),
        (token(key=ec_key("unknown")), "alice"),
        (tampered(GOOD_TOKEN), "admin"),
        (token(claims(exp=WALL - 40, sub=7)), None),
        (token(claims(exp=WALL - 40, sub=" ")), None),
        (token(claims(exp=WALL - 40, sub="\ud800")), None),
        (token(claims(exp=WALL - 40, padding="x" * MAX_CLAIMED_BYTES)), None),
        ("a.b.c", None),
    ],
    ids=[
        *("expired", "for another service", "by an unknown key", "with a wrong signature"),
        *("no text", "blank", "a lone surrogate", "in much else", "no token"),
    ],
)
def test_the_name_in_a_rejected_token_is_a_claim(bearer: str, name: str | None) -> None:
    """For the operator, who looks for the client; it proves nothing, and is compared by nobody."""
    assert rejection(bearer).claimed == name


TOKEN = token()
ACCEPTED = Success(data=b"", identity=ALICE, credential_deadline=NOW + 300)


class Listener:
    """State shared by the logins of one listener."""

    def __init__(self, *keys: Key, cache: KeyCache | None = None) -> None:
        self.keys = cache_of(*keys) if cache is None else cache
        self._later = 0.0
        self._server = OAuthBearerServer(
            issuers=only(self.keys), wall_clock=lambda: WALL + self._later
        )

    def login(self, bearer: str, later: float = 0.0) -> Success | FailureReason:
        """The success, or the reason of the failure; no newer keys are available."""
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
    """No result is kept for longer than `refresh_ms`, whatever the fault."""
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
    """The cached verdict covers the whole message, including its authorization id."""
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
    assert tokens.find(b"first", WALL, NOW) == accepted
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
    """The proxy's memory must not contain credentials that work elsewhere."""
    held = logged_in().memory
    _, payload, signature = TOKEN.split(".")
    assert signature not in held
    assert payload not in held
    assert "alice" in held  # the search would find it
