"""Claims of JSON Web Tokens, hostile ones, and explanations of rejected tokens."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.json_web_token import AcceptedToken
from sasl.jwt_claims import (
    MAX_LIFETIME_SECONDS,
    AcceptedClaims,
    OAuthBearerSettings,
    deadline_of,
    judge_claims,
)
from sasl.learned import reader_of
from sasl.mechanism import FailureReason
from sasl.token_explanation import MAX_SHOWN, Finding, explain_token
from sasl.untrusted import MAX_NESTING, fit_for_log, read_object
from tests.support.frames import bearer
from tests.support.sasl import (
    JSON,
    NOW,
    SETTINGS,
    WALL,
    cache_of,
    claims,
    ec_key,
    judged,
    only,
    rsa_key,
    sign,
    token,
)

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
    assert judge_claims(old, SETTINGS._replace(clock_skew_seconds=29), WALL) is EXPIRED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"expected_issuer": None}, WRONG_AUDIENCE), ({"expected_audience": None}, WRONG_ISSUER)],
)
def test_each_claim_is_verified_by_itself(changes: Any, reason: FailureReason) -> None:
    said = claims(aud="other", iss="https://other.test")
    assert judge_claims(said, SETTINGS._replace(**changes), WALL) is reason


@pytest.mark.parametrize("audience", ["kafka", ["a", "b"], ["a", 7], {"a": 1}, "", None])
@pytest.mark.parametrize("issuer", [7, "", None])
def test_claims_that_need_not_be_verified_may_be_anything(audience: Any, issuer: Any) -> None:
    """As with Kafka's allow.unverified.audience and allow.unverified.issuer."""
    assert isinstance(judge_claims(claims(aud=audience, iss=issuer), ANY, WALL), AcceptedClaims)


def test_another_claim_may_name_the_principal() -> None:
    settings = ANY._replace(sub_claim_name="client_id", scope_claim_name="scp")
    said = claims(aud=None, sub=None, client_id="svc", scope="")
    accepted = judge_claims(said, settings, WALL)
    assert isinstance(accepted, AcceptedClaims)
    assert accepted.subject == "svc"
    assert judge_claims(said | {"scp": ""}, settings, WALL) is BAD_CLAIMS


@given(
    st.dictionaries(
        st.sampled_from(["exp", "iat", "nbf", "iss", "aud", "sub", "scope"]), JSON, max_size=4
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
    accepted = judge_claims(claims(sub=subject), SETTINGS, WALL)
    judged = accepted.subject if isinstance(accepted, AcceptedClaims) else None
    assert reader.name == judged == name


# How deeply untrusted JSON may be nested


def nested(depth: int, opening: str = "[", closing: str = "]", *, within: str = "") -> bytes:
    return f'{{"a": {opening * (depth - 1)}{within}{closing * (depth - 1)}}}'.encode()


@pytest.mark.parametrize("within", ["", r'"[[{{\"[[" , "\\", [], {}', "1, " * 10_000 + "2"])
def test_nesting_is_limited(within: str) -> None:
    innermost = 1 if "[]" in within else 0
    assert read_object(nested(MAX_NESTING - innermost, within=within)) is not None
    assert read_object(nested(MAX_NESTING - innermost + 1, within=within)) is None
    assert read_object(nested(10_000, within=within)) is None


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (nested(MAX_NESTING, '{"a": ', "}", within="1"), True),
        (nested(MAX_NESTING + 1, '{"a": ', "}", within="1"), False),
        (rb'{"a": "\"' + b"[{" * 10_000 + b'"}', True),  # in a string
        (b'{"a": [' + b'{"b": [1]}, ' * 10_000 + b"{}]}", True),  # width
    ],
    ids=["objects", "too many objects", "a string", "width"],
)
def test_what_counts_as_nesting(text: bytes, is_read: bool) -> None:
    assert (read_object(text) is not None) is is_read


DEEP = """
import threading
from proxy.config.document import parse
from proxy.errors import ConfigError
from sasl.untrusted import read_object

def read():
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        assert read_object(b'{"a":' + opening * 10_000 + closing * 10_000 + b"}") is None
        assert read_object(opening * 10_000) is None
    try:
        parse(b"[" * 10_000)
    except ConfigError as error:
        assert str(error) == "line 1: is nested too deeply", error
        print("lives")

threading.stack_size(128 * 1024)
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""


def test_the_process_lives_in_a_thread_with_a_small_stack() -> None:
    """128 KiB is what threads have with musl; Python's decoder alone overran them before 3.14."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "lives\n", "")


SECRET = "s3cret/with+signs"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invalid_client: it's wrong", "invalid_client: it's wrong"),
        ("one\r\ntwo\x1b[31m", "one\\r\\ntwo\\x1b[31m"),
        ("left\u202eright", "left\\u202eright"),
        ("\ud800", "\\ud800"),
        ("y" * 10_000, "y" * 200 + "..."),
    ],
)
def test_what_others_wrote_becomes_one_short_line(text: str, shown: str) -> None:
    """Or a provider could write lines of our log, or paint the terminal that shows it."""
    assert fit_for_log(text, [SECRET]) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"wrong secret {SECRET}",
        f"wrong secret {SECRET.upper()}",
        f"wrong secret {SECRET[:8]}...",
        f"wrong secret ...{SECRET[-8:]}",
    ],
)
def test_what_repeats_a_secret_is_withheld(text: str) -> None:
    assert "not shown" in fit_for_log(text, ["another", SECRET])
    assert SECRET[:8].lower() not in fit_for_log(text, [SECRET]).lower()


def test_a_short_secret_is_withheld_as_a_whole() -> None:
    assert "not shown" in fit_for_log("password pw is wrong", ["pw"])
    assert fit_for_log("p w", ["pw"]) == "p w"


#

WITH_GROUPS = SETTINGS._replace(groups_claim_name="groups")


def explained(text: str) -> dict[str, Finding]:
    findings = explain_token(text, only(cache_of(rsa_key()), WITH_GROUPS), WALL, NOW)
    return {one.part: one for one in findings}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (token(), set()),
        ("not.a.token", {"form"}),
        ("x", {"form"}),
        (sign(b'{"alg":"none"}', b"{}", rsa_key(), "RS256"), {"alg"}),
        (token(key=ec_key()), {"kid"}),
        (token()[:-8] + "AAAAAAAA", {"signature"}),
        (token(b"[]"), {"claims"}),
        (token(claims(exp=WALL - 90)), {"exp"}),
        (token(claims(exp=None)), {"exp"}),
        (token(claims(iat="now")), {"iat"}),
        (token(claims(iat=WALL + 400)), {"exp"}),
        (token(claims(nbf=WALL + 90)), {"nbf"}),
        (token(claims(nbf=None)), set()),
        (token(claims(iss="else")), {"iss"}),
        (token(claims(aud=["a", "b"])), {"aud"}),
        (token(claims(aud=None, sub=" ")), {"aud", "sub"}),
        (token(claims(sub="x" * 4_091)), set()),
        (token(claims(sub="x" * 4_092)), {"sub"}),
        (token(claims(scope="  ")), {"scope"}),
        (token(claims(scope=["a", "a"], exp=10**18)), {"scope"}),
        (token(claims(scope="s" * 20_000)), set()),
        (token(claims(groups=["a", "b"])), set()),
        (token(claims(groups=["a", "*"])), {"groups"}),
        (token(claims(groups=[f"{number:0250}" for number in range(65)])), {"groups"}),
        (token(claims(_claim_names={"groups": "src1"})), {"groups"}),
    ],
)
def test_what_is_wrong_is_named_if_and_only_if_it_is_refused(text: str, parts: set[str]) -> None:
    found = explained(text)
    assert {name for name, one in found.items() if one.problem is not None} == parts
    accepted = judged(text, only(cache_of(rsa_key()), WITH_GROUPS))
    assert isinstance(accepted, AcceptedToken) is (not parts)


def test_each_claim_is_shown_with_what_is_expected() -> None:
    found = explained(token(claims(aud="else", iss="x" * 1_000, exp=WALL - 9_090)))
    assert found["aud"] == Finding("aud", "else", "expected is kafka or kafka-dev")
    assert found["iss"].found == "x" * MAX_SHOWN + "…"
    assert found["exp"] == Finding("exp", "2023-11-14 19:41:50 UTC", "has passed 9,090 s ago")
    assert found["sub"] == Finding("sub", "alice", None)
    assert found["groups"] == Finding("groups", "missing", None)
    found = explained(token(claims(groups=["b", "a"])))
    assert found["groups"] == Finding("groups", "Group:a, Group:b", None)


@pytest.mark.parametrize("value", [None, 7, "x", [], ["a", 7], {}, 10**400, True, "\ud800"])
@pytest.mark.parametrize("name", ["iss", "aud", "sub", "exp", "iat", "nbf", "scope", "groups"])
def test_any_claim_is_explained(name: str, value: Any) -> None:
    """The token's author chose it: no content raises, and the two agree."""
    text = token(json.dumps(claims() | {name: value}).encode())
    wrong = [one for one in explained(text).values() if one.problem is not None]
    accepted = judged(text, only(cache_of(rsa_key()), WITH_GROUPS))
    assert isinstance(accepted, AcceptedToken) is (not wrong)
