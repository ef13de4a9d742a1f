import json
from dataclasses import replace
from typing import Any

import pytest

from sasl.json_web_token import AcceptedToken
from sasl.token_explanation import MAX_SHOWN, Finding, explain_token
from tests.support.sasl import (
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

WITH_GROUPS = replace(SETTINGS, groups_claim_name="groups")


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
    found = explained(token(claims(aud="else", iss="x" * 1_000, exp=WALL - 90)))
    assert found["aud"] == Finding("aud", "else", "expected is kafka or kafka-dev")
    assert found["iss"].found == "x" * MAX_SHOWN + "…"
    assert found["exp"] == Finding("exp", "2023-11-14 22:11:50 UTC", "has passed 90 s ago")
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
