"""The index as a whole: its listings, under changes, and among many ACLs.

Its decisions are compared with a naive scan in `test_groups.py`.
"""

from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.scheduling.steps import in_steps
from tests.support.acl_index import (
    ACLS,
    ADDRESS,
    ALICE,
    DENY,
    DESCRIBE,
    HOSTS,
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
    may,
)

FILTERS = st.builds(
    AclFilter,
    resource_type=st.sampled_from(ResourceType),
    pattern_type=st.sampled_from(PatternType),
    name=st.none() | NAMES | st.just(""),
    principal=st.none() | PRINCIPALS,
    host=st.none() | HOSTS,
    operation=st.just(Operation.ANY) | OPERATIONS,
    permission=st.sampled_from(Permission),
)


@settings(max_examples=300, deadline=None)
@given(acls=ACLS, asked=FILTERS)
def test_a_listing_is_that_of_a_naive_scan(acls: list[Acl], asked: AclFilter) -> None:
    made = index(*acls)
    expected = sorted(one for one in {*acls} if asked.matches(one))
    assert [*made.matching(asked)] == expected
    assert len(made) == len({*acls})


@given(
    first=ACLS,
    changes=st.lists(st.tuples(ACLS, ACLS), min_size=1, max_size=4),
    keep=st.integers(0, 300),
    everyone=st.booleans(),
)
def test_an_index_that_was_changed_is_one_that_was_built(
    first: list[Acl], changes: list[tuple[list[Acl], list[Acl]]], keep: int, everyone: bool
) -> None:
    """Earlier versions stay unchanged. `keep`: number of other ACLs, enough for no rebuild."""
    others = [acl(f"other{number}", principal="User:c") for number in range(keep)]
    made, known = index(*first, *others, everyone=everyone), {*first, *others}
    for number, (created, deleted) in enumerate(changes, 2):
        before, was = made, [*made.matching(AclFilter())]
        made = made.with_changes(created=created, deleted=deleted, version=number)
        known = known - {*deleted} | {*created}
        _assert_alike(made, index(*known, everyone=everyone))
        assert [*before.matching(AclFilter())] == was
        _assert_alike(before, index(*was, everyone=everyone))
        assert made.version == number


def _assert_alike(one: AclIndex, other: AclIndex) -> None:
    assert [*one.matching(AclFilter())] == [*other.matching(AclFilter())]
    assert [*one.matching(AclFilter(principal="User:a"))] == [
        *other.matching(AclFilter(principal="User:a"))
    ]
    for operation in (READ, DESCRIBE):
        for name in ("a", "abc", "abz", "b", "é", "z"):
            question = (("User:a",), "10.0.0.1", operation, TOPIC)
            found = one.decide(*question, name)
            assert found.allowed is other.decide(*question, name).allowed
            assert found.rule is None or found.rule in one
        assert one.decide_any(*question).allowed is other.decide_any(*question).allowed
        for beginning in ("", "ab"):
            every = one.decide_every(*question, beginning)
            assert every.allowed is other.decide_every(*question, beginning).allowed


def test_a_listing_goes_on_with_what_it_began_with() -> None:
    acls = index(*(acl(f"t{number}") for number in range(3000)))
    listing = acls.matching(AclFilter())
    next(listing)
    acls.with_changes(deleted=[*acls.matching(AclFilter())], version=2)
    assert len([*listing]) == 2999


def test_a_listing_that_finds_nothing_comes_in_steps() -> None:
    """A filter that nothing matches must not hold up the event loop for 100,000 ACLs."""
    acls = index(*(acl(f"t{number}") for number in range(3000)))
    found = acls.matching(AclFilter(host="nowhere"))
    assert len([*in_steps(lambda: [*found], max_values=0, seconds=0)]) >= 3


def test_a_change_of_one_spelling_leaves_the_other() -> None:
    """Two ACLs that mean the same host: each must be deleted to be gone."""
    one, other = acl(host="::1"), acl(host="0:0:0:0:0:0:0:1")
    far = [acl(f"other{number}") for number in range(50)]
    acls = index(one, other, *far)
    for first, second in ((one, other), (other, one)):
        left = acls.with_changes(deleted=[first], version=2)
        assert left.decide((ALICE,), "::1", READ, TOPIC, "orders").rule == second
        assert not may(left.with_changes(deleted=[second], version=3), host="::1")


HOSTILE = {
    "one resource, many principals": [
        acl("t", principal=f"User:{number:05}") for number in range(5000)
    ],
    "one principal, many addresses": [
        acl("t", host=f"10.0.{number >> 8}.{number & 255}") for number in range(5000)
    ],
    "nested prefixes": [
        acl("t" * number, permission=DENY, pattern_type=PREFIXED, host="9.9.9.9")
        for number in range(1, 2000)
    ],
    "nested prefixes of one's own": [
        acl("t" * number, WRITE, pattern_type=PREFIXED) for number in range(1, 2000)
    ],
    "many topics": [acl(f"t{number}") for number in range(5000)],
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_a_decision_takes_as_many_steps_as_among_ten(shape: str) -> None:
    """Counted in calls, not in time: a busy machine is no reason to fail."""
    few, many = HOSTILE[shape][:10], HOSTILE[shape]

    def decision(rules: list[Acl]) -> int:
        """The first one, which collects what concerns the client."""
        acls = index(*rules)
        return calls(lambda: acls.decide((ALICE,), ADDRESS, DESCRIBE, TOPIC, "t" * 5000))

    decision(few)
    assert decision(many) <= decision(few) + 10


def test_the_order_is_that_of_acl() -> None:
    """Whatever order they come in."""
    acls = [acl("b"), acl("a", pattern_type=PREFIXED), acl("a"), acl("a", WRITE), acl("a")]
    assert [*index(*acls).matching(AclFilter())] == sorted({*acls}, key=attrgetter(*Acl.__slots__))


def test_prefixes_of_a_long_name_are_found_quickly() -> None:
    """A MATCH filter of 30,000 letters among nested prefixes: no look at each length."""
    acls = index(*(acl("t" * n, pattern_type=PREFIXED) for n in range(1, 500)))
    asked = AclFilter(
        resource_type=TOPIC, pattern_type=PatternType.MATCH, name="t" * 250 + "x" * 30_000
    )
    found: list[Acl] = []
    assert calls(lambda: found.extend(acls.matching(asked))) < 10_000
    assert len(found) == 250
