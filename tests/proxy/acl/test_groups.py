"""Clients with groups: a denial for any of their principals counts, and an allowance for any."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.authorizer import SUPPORTED_OPERATIONS, Authorizer, Denial
from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AuthorizerMode, Operation
from tests.support import acl_index
from tests.support.acl_index import (
    ACLS,
    ADDRESS,
    ALICE,
    ALL,
    ALLOW,
    DENY,
    LITERAL,
    NAMES,
    OPERATIONS,
    PREFIXED,
    PRINCIPALS,
    READ,
    TOPIC,
    WRITE,
    acl,
    calls,
    index,
)

ANALYSTS, INTERNS = "Group:analysts", "Group:interns"
MEMBER = (ALICE, ANALYSTS, INTERNS)


def may(acls: AclIndex, operation: Operation = READ, name: str = "orders") -> bool:
    return acls.decide(MEMBER, ADDRESS, operation, TOPIC, name).allowed


@pytest.mark.parametrize("allowed", [ALICE, ANALYSTS, "User:*"])
@pytest.mark.parametrize("denied", [ALICE, ANALYSTS, INTERNS, "User:*"])
def test_a_denial_for_any_outweighs_what_any_is_allowed(allowed: str, denied: str) -> None:
    deny = acl(principal=denied, permission=DENY)
    acls = index(acl("*", principal=allowed), deny)
    assert may(acls, name="other")
    decision = acls.decide(MEMBER, ADDRESS, READ, TOPIC, "orders")
    assert (decision.allowed, decision.rule) == (False, deny)


@pytest.mark.parametrize(
    "principal", ["Group:*", "Group:analyst", "User:analysts", "group:analysts"]
)
def test_a_group_is_meant_by_its_whole_name_alone(principal: str) -> None:
    assert not may(index(acl(principal=principal)))
    assert may(index(acl(principal=ANALYSTS), acl(principal=principal, permission=DENY)))


def test_members_of_a_super_group_may_do_everything() -> None:
    """Whatever is denied, as to a super user."""
    acls = index(acl(permission=DENY), super_users=[INTERNS])
    assert may(acls)
    assert acls.decide_any(MEMBER, ADDRESS, READ, TOPIC).super_user
    assert acls.decide_every(MEMBER, ADDRESS, READ, TOPIC, "").super_user
    assert not acls.decide((ALICE, ANALYSTS), ADDRESS, READ, TOPIC, "orders").allowed


CROWD = tuple(f"Group:crowd{number}" for number in range(12))
OF_CROWD = [acl("other", principal=one) for one in CROWD]
"""Rules that say nothing of `NAMES`, but with which a client has so many groups that the rules of
all are searched at once, and not those of one after the other."""
MEMBERS = st.builds(
    lambda few, crowd: (*few, *crowd),
    st.lists(PRINCIPALS, min_size=1, max_size=6, unique=True),
    st.sampled_from([(), CROWD]),
)


@settings(max_examples=500, deadline=None)
@given(
    acls=ACLS,
    principals=MEMBERS,
    host=st.sampled_from(["10.0.0.1", "10.9.9.9", "::1", "192.0.2.1"]),
    operation=OPERATIONS.filter(lambda one: one is not ALL),
    name=NAMES,
    everyone=st.booleans(),
)
def test_decisions_are_those_of_a_naive_scan(
    acls: list[Acl],
    principals: tuple[str, ...],
    host: str,
    operation: Operation,
    name: str,
    everyone: bool,
) -> None:
    acls = [*acls, *OF_CROWD]
    made, question = index(*acls, everyone=everyone), (host, operation, TOPIC)
    decision = made.decide(principals, *question, name)
    assert decision.allowed is acl_index.decide(
        acls, principals, *question, name, open_by_default=everyone
    )
    said = decision.rule
    assert said is None or any(acl_index.concerns(said, one, host) for one in principals)
    reversed_ = made.decide(principals[::-1], *question, name)
    assert reversed_.allowed is decision.allowed

    # ACLs of its groups count as ACLs of the client itself
    own = [
        replace(one, principal=principals[0]) if one.principal in principals else one
        for one in acls
    ]
    assert made.decide_any(principals, *question).allowed is acl_index.decide_any(
        own, principals[0], *question, open_by_default=everyone
    )
    for length in range(len(name) + 1):
        if made.decide_every(principals, *question, name[:length]).allowed:
            assert decision.allowed


SETS = st.sets(
    st.builds(
        acl,
        st.sampled_from(["*", "a", "ab", "abc", "abd"]),
        permission=st.sampled_from([ALLOW, DENY]),
        pattern_type=st.sampled_from([LITERAL, PREFIXED]),
        principal=st.sampled_from([*CROWD[:3], ANALYSTS]),
        host=st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1"]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(sets=st.lists(SETS, min_size=2, max_size=5))
def test_a_changed_index_decides_by_its_own_rules(sets: list[set[Acl]]) -> None:
    """And so do those before it."""
    others = {acl(f"other{n}", principal=CROWD[n % len(CROWD)]) for n in range(200)}
    made = index(*sets[0], *others)
    versions = [made]
    for version, (old, new) in enumerate(pairwise(sets), 2):
        made = made.with_changes(created=new - old, deleted=old - new, version=version)
        versions.append(made)
    for rules, one in zip(sets, versions, strict=True):
        for name in ("a", "ab", "abc", "abd", "abz", "b"):
            decision = one.decide((ALICE, *CROWD), ADDRESS, READ, TOPIC, name)
            assert decision.allowed is acl_index.decide([*rules], CROWD, ADDRESS, READ, TOPIC, name)
            assert decision.rule is None or decision.rule in rules


GROUPS = tuple(f"Group:{number:05}" for number in range(250, 270))
CROWDS = {
    "one topic, many groups": [acl("t" * 30, principal=f"Group:{n:05}") for n in range(5000)],
    "many topics": [acl(f"t{n}", principal=f"Group:{n % 300:05}") for n in range(5000)],
    "nested prefixes": [
        acl("t" * n, pattern_type=PREFIXED, principal=f"Group:{n:05}") for n in range(1, 2000)
    ],
}


@pytest.mark.parametrize("shape", CROWDS)
def test_a_decision_takes_as_many_steps_as_among_the_rules_of_its_groups(shape: str) -> None:
    """However many groups have rules for the same names; counted in calls."""
    own = [one for one in CROWDS[shape] if one.principal in GROUPS]

    def decision(rules: list[Acl]) -> int:
        made = index(*rules)

        def decide() -> object:
            return made.decide((ALICE, *GROUPS), ADDRESS, READ, TOPIC, "t" * 5000)

        decide()
        return calls(decide)

    assert decision(CROWDS[shape]) <= decision(own) + 10


def test_twenty_groups_take_hardly_more_steps_than_none() -> None:
    made = index(*CROWDS["many topics"])

    def decision(*groups: str) -> int:
        def decide() -> object:
            return made.decide((ALICE, *groups), ADDRESS, READ, TOPIC, "u")

        decide()
        return calls(decide)

    assert decision(*GROUPS) <= decision() + 10


# The authorizer


def test_decisions_are_remembered_for_a_set_of_principals() -> None:
    authorizer = Authorizer(
        index(acl(principal=ANALYSTS)), mode=AuthorizerMode.ENFORCE, report=lambda _: None
    )
    member, outsider = (authorizer.authority(each, ADDRESS) for each in (MEMBER, (ALICE,)))
    assert authorizer.authority(MEMBER, ADDRESS) is member
    for _ in range(2):
        assert member.may(READ, TOPIC, "orders")
        assert not outsider.may(READ, TOPIC, "orders")
    assert authorizer.counts.cache_hits == 2


def test_authorized_operations_are_those_of_all_principals() -> None:
    acls = index(
        acl(operation=ALL, principal=ANALYSTS),
        acl(operation=WRITE, principal=INTERNS, permission=DENY),
    )
    authorizer = Authorizer(acls, mode=AuthorizerMode.ENFORCE, report=lambda _: None)
    bits = authorizer.authority(MEMBER, ADDRESS).operations(TOPIC, "orders")
    expected = {*SUPPORTED_OPERATIONS[TOPIC]} - {WRITE}
    assert bits == sum(1 << operation for operation in expected)


def test_a_denial_names_the_client_and_the_rule_of_its_group() -> None:
    deny = acl(principal=INTERNS, permission=DENY)
    reported: list[Denial] = []
    authorizer = Authorizer(index(deny), mode=AuthorizerMode.ENFORCE, report=reported.append)
    assert not authorizer.authority(MEMBER, ADDRESS).may(READ, TOPIC, "orders")
    assert [(one.principal, one.rule) for one in reported] == [(ALICE, deny)]
