"""The schedule of the proxy's own token, and what is taken for one."""

import base64
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.jwt_claims import MAX_LIFETIME_SECONDS
from sasl.token_cache import (
    MAX_ANSWER_BYTES,
    REFRESH_MIN_PERIOD_SECONDS,
    UNKNOWN_LIFETIME_REFRESH_SECONDS,
    TokenCache,
    expiry_claim,
    read_refusal,
    read_token,
)
from tests.support.sasl import JSON, NOW, WALL


def answer(*token: object, **members: object) -> bytes:
    said = {"access_token": token[0] if token else "opaque", "token_type": "Bearer"}
    return json.dumps(said | members).encode()


def jwt(**claims: object) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(claims)}.c2lnbmF0dXJl"


def taken(cache: TokenCache, document: bytes, now: float = NOW, jitter: float = 0.0) -> bool:
    return cache.loaded(document, now=now, wall_now=WALL + now - NOW, jitter=jitter)


def holding(lifetime: object, *, jitter: float = 0.0) -> TokenCache:
    cache = TokenCache()
    assert taken(cache, answer(expires_in=lifetime), jitter=jitter)
    return cache


def test_a_token_holds_until_it_expires() -> None:
    cache = holding(600)
    assert cache.token(NOW) == cache.token(NOW + 599.9) == "opaque"
    assert cache.token(NOW + 600) is None
    assert cache.expires_at == WALL + 600


def test_before_the_first_answer_there_is_none_and_one_is_wanted() -> None:
    cache = TokenCache()
    assert cache.token(NOW) is None
    assert (cache.wants_refresh(NOW), cache.next_refresh(NOW)) == (True, NOW)
    assert (cache.expires_at, cache.last_error, cache.refresh_failures) == (None, None, 0)


@pytest.mark.parametrize(
    ("lifetime", "jitter", "after"),
    [
        (36_000, 0.0, 28_800.0),
        (36_000, 1.0, 30_600.0),
        (36_000, 0.5, 29_700.0),
        (1_600, 1.0, 1_300.0),  # 1,360 would be within the last five minutes
        (1_500, 0.0, 1_200.0),
        (900, 0.0, 600.0),
        (360, 0.0, 60.0),  # both bounds at once
        (359, 0.0, 359 * 0.8),  # too short for both, which are then ignored
        (359, 1.0, 359 * 0.85),
        (1, 0.0, 0.8),
    ],
)
def test_when_a_token_is_asked_for_anew(lifetime: int, jitter: float, after: float) -> None:
    """Worked out by Kafka's rule."""
    cache = holding(lifetime, jitter=jitter)
    assert cache.next_refresh(NOW) == pytest.approx(NOW + after)
    assert not cache.wants_refresh(NOW)
    assert cache.wants_refresh(NOW + after + 0.001)


@given(lifetime=st.integers(1, 10**12), jitter=st.floats(0, 1))
def test_a_token_is_asked_for_while_the_last_one_holds(lifetime: int, jitter: float) -> None:
    """But not at once, or the endpoint would be asked without a pause."""
    cache = TokenCache()
    assert taken(cache, answer(expires_in=lifetime), jitter=jitter)
    held_for = min(lifetime, MAX_LIFETIME_SECONDS)
    after = cache.next_refresh(NOW) - NOW
    assert min(held_for / 2, REFRESH_MIN_PERIOD_SECONDS) <= after + 0.001
    assert after <= held_for + 0.001


def test_failures_are_retried_with_doubling_delays_and_keep_the_token() -> None:
    cache = holding(600)
    now, delays = NOW + 480, []
    for _ in range(10):
        cache.failed("refused", now)
        delays.append(round(cache.next_refresh(now) - now, 3))
        now = cache.next_refresh(now)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert (cache.token(now), cache.refresh_failures, cache.last_error) == ("opaque", 10, "refused")
    assert cache.token(NOW + 600) is None
    assert taken(cache, answer("other", expires_in=600), now)
    assert (cache.token(now), cache.refresh_failures, cache.last_error) == ("other", 10, None)
    cache.failed("refused", now)
    assert cache.next_refresh(now) == pytest.approx(now + 0.1)


def test_a_refusal_is_not_retried_in_a_hurry() -> None:
    """A wrong secret ten times within a second locks accounts."""
    cache = TokenCache()
    cache.failed("HTTP status 401", NOW, refused=True)
    assert cache.next_refresh(NOW) == NOW + 10.0


@pytest.mark.parametrize(
    ("token", "members", "lifetime"),
    [
        (jwt(exp=WALL + 900), {}, 900.0),
        (jwt(exp=WALL + 900.7), {"expires_in": None}, 900.0),
        (jwt(exp=WALL + 900), {"expires_in": 60}, 60.0),  # no clock of ours can be wrong in this
        (jwt(exp=WALL - 900), {"expires_in": 60}, 60.0),
        ("opaque", {"expires_in": 3599.9}, 3599.0),
        ("opaque", {"expires_in": "3599"}, 3599.0),
        ("opaque", {"expires_in": 1e300}, MAX_LIFETIME_SECONDS),
        ("opaque", {"expires_in": 10**30}, MAX_LIFETIME_SECONDS),
        ("opaque", {"expires_in": "9" * 18}, MAX_LIFETIME_SECONDS),
        (jwt(exp=10**18), {}, MAX_LIFETIME_SECONDS),
    ],
)
def test_where_the_lifetime_is_read(
    token: str, members: dict[str, object], lifetime: float
) -> None:
    cache = TokenCache()
    assert taken(cache, answer(token, **members))
    assert cache.expires_at == pytest.approx(WALL + lifetime)
    assert cache.token(NOW + lifetime - 0.1) == token
    assert cache.token(NOW + lifetime) is None


@pytest.mark.parametrize(
    "token", ["opaque", "a.b.c", jwt(), jwt(exp="soon"), jwt(exp=True), jwt(exp=-1), jwt(exp=None)]
)
def test_a_token_that_does_not_say_when_it_expires(token: str) -> None:
    """Asked for again every five minutes; meanwhile the broker knows, and we do not."""
    cache = TokenCache()
    assert taken(cache, answer(token))
    assert cache.expires_at is None
    assert cache.next_refresh(NOW) == NOW + UNKNOWN_LIFETIME_REFRESH_SECONDS
    assert cache.token(NOW + 1e9) == token


HOSTILE: list[bytes] = [
    b"",
    b"not JSON",
    b"[]",
    b"null",
    b"{}",
    b"\xff",
    b"[" * 100_000,
    b'{"access_token":' + b"[" * 100_000,
    b'{"access_token":"one","access_token":"two"}',
    answer().decode().encode("utf-16"),
    answer() + b" " * MAX_ANSWER_BYTES,
    answer(None),
    answer(7),
    answer(["opaque"]),
    answer({"opaque": 1}),
    answer(""),
    answer(" opaque"),
    answer("opaque\n"),
    answer("opa\nque"),
    answer("opaque\x01auth=Bearer other"),
    answer("opaque,user=other"),
    answer("op\u00e4que"),
    answer("\ud800"),
    answer("="),
    answer("a=b"),
    answer(token_type="mac"),
    answer(token_type="DPoP"),
    answer(token_type=["Bearer"]),
    answer(expires_in=0),
    answer(expires_in=0.5),
    answer(expires_in=-1),
    answer(expires_in=-(10**30)),
    answer(expires_in=True),
    answer(expires_in="soon"),
    answer(expires_in="-5"),
    answer(expires_in="5\n"),
    answer(expires_in="\u0665"),
    answer(expires_in="9" * 5_000),
    answer(expires_in=""),
    answer(expires_in=[60]),
    answer(expires_in={}),
    b'{"access_token":"opaque","expires_in":NaN}',
    b'{"access_token":"opaque","expires_in":Infinity}',
    b'{"access_token":"opaque","expires_in":1e999}',
    b'{"access_token":"opaque","expires_in":' + b"9" * 5_000 + b"}",
    answer(jwt(exp=WALL)),
    answer(jwt(exp=0)),
    b'{"id_token":"opaque"}',
]


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_answer_changes_nothing_and_is_not_repeated(bad: bytes) -> None:
    cache = holding(600)
    assert not taken(cache, bad, NOW + 480)
    assert cache.token(NOW + 599) == "opaque"
    assert cache.expires_at == WALL + 600
    assert cache.refresh_failures == 1
    assert cache.last_error is not None
    assert "opa" not in cache.last_error
    assert cache.last_error.isprintable()
    assert cache.next_refresh(NOW + 480) == pytest.approx(NOW + 480.1)


@pytest.mark.parametrize("members", [{}, {"token_type": "bearer"}, {"token_type": "BEARER"}])
def test_the_type_of_a_token_is_bearer_in_any_case_or_not_said(members: dict[str, object]) -> None:
    """RFC 6749 section 5.1 wants it; Kafka's client never looks, so some endpoints say nothing."""
    document = json.dumps({"access_token": "opaque"} | members).encode()
    assert taken(TokenCache(), document)


NAMES = st.sampled_from(["access_token", "token_type", "expires_in", "error", "error_description"])


@given(st.binary(max_size=200) | st.dictionaries(NAMES, JSON).map(lambda x: json.dumps(x).encode()))
def test_no_answer_raises(document: bytes) -> None:
    cache = TokenCache()
    assert taken(cache, document) == (cache.token(NOW) is not None)
    read_refusal(document)
    read_token(document)


@given(st.text(max_size=60), JSON)
def test_no_token_raises(text: str, claims: object) -> None:
    for token in (text, f"a.{text}.b", jwt() if claims is None else jwt(exp=claims)):
        ends = expiry_claim(token)
        assert ends is None or math.isfinite(ends)


@pytest.mark.parametrize(
    ("content", "token"),
    [
        (b"a.b-c_d~e+f/g==", "a.b-c_d~e+f/g=="),
        (b"  opaque \r\n", "opaque"),
        (b"", None),
        (b"\n", None),
        (b"two words", None),
        (b"two\nlines", None),
        (b"opaque\x01", None),
        (b"opaque\0", None),
        (b"\xef\xbb\xbfopaque", None),
        ("op\u00e4que".encode(), None),
        (b"opaque,", None),
        (b"=", None),
    ],
)
def test_what_a_file_may_hold(content: bytes, token: str | None) -> None:
    assert read_token(content) == token


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b'{"error":"invalid_client"}', "invalid_client"),
        (b'{"error":"e","error_description":"d","error_uri":"u"}', "e: d"),
        (b'{"error_description":"d"}', "d"),
        (b'{"error":{"code":7},"error_description":["d"]}', ""),
        (b"{}", ""),
        (b"[]", ""),
        (b"<html>no</html>", ""),
        (b'{"error":"e"}' + b" " * MAX_ANSWER_BYTES, ""),
    ],
)
def test_what_an_error_answer_says(document: bytes, said: str) -> None:
    assert read_refusal(document) == said


def test_a_token_is_not_in_any_repr() -> None:
    cache = holding(600)
    assert "opaque" not in repr(cache) + repr(vars(cache))
