"""Groups of tokens: all of them count, or the token is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.identity import (
    MAX_ALL_GROUP_CHARACTERS,
    MAX_GROUP_CHARACTERS,
    MAX_GROUPS,
    BadGroups,
    groups_of,
)
from sasl.jwt_claims import AcceptedClaims, judge_claims
from sasl.mechanism import FailureReason
from tests.support.sasl import SETTINGS, WALL, claims

GROUPS = SETTINGS._replace(groups_claim_name="groups")
ROLES = SETTINGS._replace(groups_claim_name="realm_access.roles")


def judged(settings: Any = GROUPS, **changes: object) -> AcceptedClaims | FailureReason:
    return judge_claims(claims(**changes), settings, WALL)


def groups(settings: Any = GROUPS, **changes: object) -> tuple[str, ...]:
    accepted = judged(settings, **changes)
    assert isinstance(accepted, AcceptedClaims), accepted
    return accepted.identity.groups


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (["b", "a"], ("Group:a", "Group:b")),
        (["a", "a"], ("Group:a",)),
        ([], ()),
        ("analysts", ("Group:analysts",)),
        ("two words", ("Group:two words",)),
        ("a,b", ("Group:a,b",)),
        (["/eu/analysts", "Ä", "User:root"], ("Group:/eu/analysts", "Group:User:root", "Group:Ä")),
        ([f"g{n}" for n in range(MAX_GROUPS)], tuple(sorted(f"Group:g{n}" for n in range(256)))),
        ("g" * MAX_GROUP_CHARACTERS, ("Group:" + "g" * MAX_GROUP_CHARACTERS,)),
    ],
)
def test_groups_are_principals_of_their_own_type(claim: object, expected: tuple[str, ...]) -> None:
    assert groups(groups=claim) == expected


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        (GROUPS, {}, ()),
        (SETTINGS, {"groups": ["analysts"]}, ()),  # no claim is configured
        (GROUPS, {"hasgroups": True, "groups": ["a"]}, ("Group:a",)),
        (GROUPS, {"hasgroups": False}, ()),
        (GROUPS, {"groups": "a", "_claim_names": {"photo": "src1"}}, ("Group:a",)),
    ],
)
def test_groups_of_a_token(settings: Any, changes: Any, expected: tuple[str, ...]) -> None:
    assert groups(settings, **changes) == expected


@pytest.mark.parametrize("prefix", ["", "partner:"])
@pytest.mark.parametrize("over", [False, True])
def test_all_groups_together_are_bounded(prefix: str, over: bool) -> None:
    """Caches keep thousands of identities, and events have all groups of a login."""
    width = MAX_ALL_GROUP_CHARACTERS // MAX_GROUPS - len("Group:" + prefix)
    names = [f"{number:0{width}}" for number in range(MAX_GROUPS)]
    names[0] += "x" * over
    settings = GROUPS._replace(prefix=prefix)
    if over:
        assert judged(settings, groups=names) is FailureReason.BAD_GROUPS
    else:
        assert len(groups(settings, groups=names)) == MAX_GROUPS


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, {"Group:a"}),
        ("realm_access.roles", {"realm_access": {"other": ["a"]}}, set()),
        ("realm_access.roles", {}, set()),
        ("https://id.example/groups", {"https://id.example/groups": "a"}, {"Group:a"}),
        ("a.b", {"a.b": "whole", "a": {"b": "path"}}, {"Group:whole"}),
        ("a..b", {"a": {"": {"b": "x"}}}, {"Group:x"}),
        ("groups.0", {"groups": {"0": "x"}}, {"Group:x"}),
    ],
)
def test_a_path_leads_through_objects(
    path: str, document: dict[str, Any], expected: set[str]
) -> None:
    assert groups_of(document, path) == expected


@pytest.mark.parametrize(
    "claim",
    [
        None,
        7,
        True,
        {},
        {"name": "analysts"},
        [["analysts"]],
        ["analysts", None],
        ["analysts", {"name": "x"}],
        "",
        " ",
        " analysts",
        "analysts\n",
        "*",
        ["analysts", "*"],
        "a\0b",
        "a\x7f",
        "a\u202eb",
        "a\u200bb",
        "\ud800",
        "g" * (MAX_GROUP_CHARACTERS + 1),
        [f"g{n}" for n in range(MAX_GROUPS + 1)],
        ["same"] * 5_000,
    ],
)
def test_what_is_not_a_list_of_names_refuses_the_token(claim: object) -> None:
    """A group that is left out would be a denial that is left out."""
    bad = claims() | {"groups": claim}
    assert judge_claims(bad, GROUPS, WALL) is FailureReason.BAD_GROUPS


@pytest.mark.parametrize("access", [["roles"], "roles", 7, None, [{"roles": ["a"]}]])
def test_a_path_through_what_is_no_object_refuses_the_token(access: object) -> None:
    bad = claims() | {"realm_access": access}
    assert judge_claims(bad, ROLES, WALL) is FailureReason.BAD_GROUPS


@pytest.mark.parametrize(
    ("settings", "elsewhere"),
    [
        (GROUPS, {"groups": "src1"}),
        (ROLES, {"realm_access": "src1"}),
        (ROLES, {"realm_access.roles": "src1"}),
        (GROUPS, ["groups"]),
    ],
)
def test_groups_that_are_in_another_document_refuse_the_token(
    settings: Any, elsewhere: object
) -> None:
    """As of a member of more than 200 groups in Microsoft Entra ID."""
    assert judged(settings, _claim_names=elsewhere) is FailureReason.BAD_GROUPS
    here = {"groups": ["a"], "realm_access": {"roles": ["a"]}, "realm_access.roles": ["a"]}
    assert judged(settings, _claim_names=elsewhere, **here) is FailureReason.BAD_GROUPS


@pytest.mark.parametrize("value", [True, "true", 1, None])
def test_groups_that_a_token_has_no_room_for_refuse_it(value: object) -> None:
    """As of a member of six groups or more in the implicit flow of Microsoft Entra ID."""
    bad = claims() | {"hasgroups": value}
    assert judge_claims(bad, GROUPS, WALL) is FailureReason.BAD_GROUPS
    assert groups(ROLES, hasgroups=value) == ()


def test_look_alikes_are_other_groups() -> None:
    composed, decomposed, cyrillic = "caf\u00e9", "cafe\u0301", "\u0430dmins"
    found = groups(groups=[composed, decomposed, cyrillic])
    assert len(found) == 3
    assert "Group:admins" not in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["groups", "roles", "_claim_names"]), inner, max_size=3)
    ),
)


@given(document=st.dictionaries(st.sampled_from(["groups", "_claim_names"]), JSON))
def test_no_document_is_more_than_refused(document: dict[str, Any]) -> None:
    for path in ("groups", "groups.roles", "groups.roles.groups"):
        try:
            found = groups_of(document, path)
        except BadGroups:
            continue
        assert all(name.startswith("Group:") for name in found)
