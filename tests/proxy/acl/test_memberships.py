"""The file that gives groups to SCRAM users and certificates."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.acl.memberships import MAX_BYTES, BadMemberships, Memberships
from sasl.identity import MAX_ALL_GROUP_CHARACTERS, MAX_GROUP_CHARACTERS, MAX_GROUPS, Identity

GOOD = json.dumps(
    {"groups": {"analysts": ["User:alice", "User:CN=bob,O=x"], "interns": ["User:alice"], "e": []}}
).encode()
MOST = [
    f"{number:0{MAX_ALL_GROUP_CHARACTERS // MAX_GROUPS - len('Group:')}}"
    for number in range(MAX_GROUPS)
]
"""Names of as many groups, and as long ones, as a principal may have."""


def test_the_groups_of_a_principal_are_those_that_name_it() -> None:
    found = Memberships.parse(GOOD)
    assert found.identity("User:alice").groups == ("Group:analysts", "Group:interns")
    assert found.identity("User:CN=bob,O=x").groups == ("Group:analysts",)
    assert found.identity("User:Alice") == Identity("User:Alice")
    assert found.identity("Group:analysts") == Identity("Group:analysts")


def test_a_principal_has_groups_up_to_the_bounds() -> None:
    document = json.dumps({"groups": {name: ["User:alice", "User:bob"] for name in MOST}})
    found = Memberships.parse(document.encode())
    groups = found.identity("User:alice").groups
    assert len(groups) == MAX_GROUPS
    others = found.identity("User:bob").groups
    assert all(one is other for one, other in zip(groups, others, strict=True)), "no copies"


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_file_that_is_half_written_is_refused(length: int) -> None:
    """An ACL may deny a group that is not there yet."""
    with pytest.raises(BadMemberships):
        Memberships.parse(GOOD[:length])


@pytest.mark.parametrize(
    "groups",
    [
        None,
        [],
        ["User:alice"],
        {"analysts": "User:alice"},
        {"analysts": ["alice"]},
        {"analysts": ["User:"]},
        {"analysts": [":alice"]},
        {"analysts": ["Group:interns"]},
        {"analysts": ["User:alice", 7]},
        {"analysts": ["User:alice", "User:alice"]},
        {"*": ["User:alice"]},
        {"": ["User:alice"]},
        {" analysts": ["User:alice"]},
        {"analysts\n": ["User:alice"]},
        {"x" * (MAX_GROUP_CHARACTERS + 1): ["User:alice"]},
        {f"g{number}": ["User:alice"] for number in range(MAX_GROUPS + 1)},
        {"x" + name: ["User:alice"] for name in MOST},
    ],
)
def test_what_makes_no_sense_is_refused_as_a_whole(groups: Any) -> None:
    document = {"groups": {"good": ["User:alice"]}}
    for bad in (groups, document["groups"] | groups if isinstance(groups, dict) else groups):
        with pytest.raises(BadMemberships) as caught:
            Memberships.parse(json.dumps({"groups": bad}).encode())
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


@example(b"{}")
@example(b"[]")
@example(b'{"groups": {}, "more": 1}')
@example(b'{"groups": {"a": ["User:x"], "a": []}}')
@example(b'{"groups": {}}' + b" " * MAX_BYTES)
@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_nothing_else_comes_of_any_bytes(document: bytes) -> None:
    """Documents of another form are refused, whatever they are."""
    with pytest.raises(BadMemberships):
        Memberships.parse(document)
