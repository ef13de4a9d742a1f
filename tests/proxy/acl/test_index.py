"""The index: every rule of `StandardAuthorizer` by itself, then the index as a whole.

Its decisions are compared with a naive scan in `test_groups.py`.
"""

from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.scheduling.steps import in_steps
from tests.support import acl_index
from tests.support.acl_index import (
    ACLS,
    ADDRESS,
    ALICE,
    ALL,
    DENY,
    DESCRIBE,
    GROUP,
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
from tests.support.tables import table


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl("order")], False),
        ([acl("*")], True),
        ([acl("ord", pattern_type=PREFIXED)], True),
        ([acl("orders2", pattern_type=PREFIXED)], False),
        ([acl("*", pattern_type=PREFIXED)], False),
        ([acl(resource_type=GROUP)], False),
        ([acl(principal="User:Alice")], False),
        ([acl(principal="User:*")], True),
        ([acl(principal="Group:*")], False),
        ([acl(principal="*")], False),
        ([acl(), acl("o", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl(), acl(operation=ALL, permission=DENY, principal="User:*")], False),
        ([acl(), acl(permission=DENY, principal="User:bob")], True),
        ([acl(), acl(permission=DENY, host="10.0.0.2")], True),
    ],
)
def test_a_decision(acls: list[Acl], allowed: bool) -> None:
    """Examples; another test compares many decisions with a naive scan."""
    assert may(index(*acls)) is allowed
    assert acl_index.decide(acls, [ALICE], ADDRESS, READ, TOPIC, "orders") is allowed


@pytest.mark.parametrize("asked", [one for one in Operation if one > Operation.ALL])
def test_operations_that_include_others(asked: Operation) -> None:
    """Only where they are allowed: a deny of READ does not hide a topic."""
    included = {
        DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(asked, set()) | {asked}
    for other in (one for one in Operation if one > Operation.ALL):
        assert may(index(acl(operation=other)), asked) is (other in included)
        denied = index(acl(operation=ALL), acl(operation=other, permission=DENY))
        assert may(denied, asked) is (other is not asked)


@pytest.mark.parametrize(
    ("of_acl", "of_client", "applies"),
    [*table(__file__, "hosts"), ("10.0.0.0/" + "8" * 10_000, "10.0.0.1", False)],
)
def test_hosts(of_acl: str, of_client: str, applies: bool) -> None:
    """A host that is neither an address nor a block is kept and never applies."""
    assert may(index(acl(host=of_acl)), host=of_client) is applies
    denying = index(acl(), acl(host=of_acl, permission=DENY))
    assert may(denying, host=of_client) is not applies


def test_super_users_are_above_denials() -> None:
    acls = index(acl("*", ALL, DENY, principal="User:*"), super_users=[ALICE])
    decision = acls.decide((ALICE,), ADDRESS, READ, TOPIC, "orders")
    assert (decision.allowed, decision.super_user, decision.rule) == (True, True, None)
    assert acls.decide_any((ALICE,), ADDRESS, READ, TOPIC).allowed
    assert acls.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "").super_user
    assert not acls.decide(("User:alic",), ADDRESS, READ, TOPIC, "orders").allowed


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], True),
        ([acl("other")], True),
        ([acl(principal="User:bob")], False),
        ([acl(host="no address")], False),
        ([acl("ord", WRITE, pattern_type=PREFIXED, principal="User:bob")], False),
        ([acl("*", WRITE, DENY, principal="User:bob")], False),
        ([acl(resource_type=GROUP)], True),
    ],
)
def test_a_resource_without_acls_is_open_if_so_configured(acls: list[Acl], allowed: bool) -> None:
    """Any ACL on a resource, for any principal, closes it for all others."""
    assert may(index(*acls, everyone=True)) is allowed
    assert not may(index(*acls))


def test_the_rule_that_decided_is_told() -> None:
    allowing, denying = acl("ord", pattern_type=PREFIXED), acl("orders2", ALL, DENY)
    acls = index(allowing, denying)
    assert acls.decide((ALICE,), ADDRESS, READ, TOPIC, "orders").rule == allowing
    assert acls.decide((ALICE,), ADDRESS, READ, TOPIC, "orders2").rule == denying
    assert acls.decide((ALICE,), ADDRESS, READ, TOPIC, "x").rule is None


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl(), acl(permission=DENY)], False),
        ([acl("ord", pattern_type=PREFIXED), acl("orders", permission=DENY)], True),
        (
            [acl("ord", pattern_type=PREFIXED), acl("o", permission=DENY, pattern_type=PREFIXED)],
            False,
        ),
        ([acl(), acl("*", permission=DENY)], False),
        ([acl("*"), acl("hardcode", permission=DENY)], True),
        ([acl(operation=WRITE)], False),
        ([acl(principal="User:*"), acl(permission=DENY)], False),
    ],
)
def test_any_resource_of_a_type(acls: list[Acl], allowed: bool) -> None:
    """Patterns against patterns: a narrower deny does not defeat a wider allow."""
    assert index(*acls).decide_any((ALICE,), ADDRESS, READ, TOPIC).allowed is allowed
    assert acl_index.decide_any(acls, ALICE, ADDRESS, READ, TOPIC) is allowed


def test_what_includes_an_operation_does_not_count_for_any_resource() -> None:
    """Seen in Kafka's `authorizeByResourceType`; only a rule for every name does."""
    assert not index(acl(operation=READ)).decide_any((ALICE,), ADDRESS, DESCRIBE, TOPIC).allowed
    assert index(acl("*", READ)).decide_any((ALICE,), ADDRESS, DESCRIBE, TOPIC).allowed


@pytest.mark.parametrize(
    ("acls", "everyone", "certain"),
    [
        ([acl("*")], False, True),
        ([acl("*", ALL, principal="User:*")], False, True),
        ([acl("o", pattern_type=PREFIXED)], False, False),
        ([acl("*"), acl("secret", permission=DENY)], False, False),
        ([acl("*"), acl("secret", permission=DENY, principal="User:bob")], False, True),
        ([acl("*"), acl("secret", WRITE, DENY)], False, True),
        ([], True, True),
        ([acl(resource_type=GROUP)], True, True),
        ([acl("x", principal="User:bob")], True, False),
    ],
)
def test_every_resource(acls: list[Acl], everyone: bool, certain: bool) -> None:
    decision = index(*acls, everyone=everyone).decide_every((ALICE,), ADDRESS, READ, TOPIC, "")
    assert decision.allowed is certain


@pytest.mark.parametrize(
    ("acls", "everyone", "certain"),
    [
        ([acl("orders-", pattern_type=PREFIXED)], False, True),
        ([acl("ord", WRITE, pattern_type=PREFIXED)], False, True),
        ([acl("orders-eu", pattern_type=PREFIXED)], False, False),
        ([acl("orders-")], False, False),
        ([acl("orders-", pattern_type=PREFIXED, principal="User:bob")], False, False),
        ([acl("orders-", pattern_type=PREFIXED, host="10.0.0.2")], False, False),
        ([acl("*"), acl("orders-", DESCRIBE, DENY)], False, False),
        ([acl("*"), acl("orders-secret", DESCRIBE, DENY)], False, False),
        ([acl("*"), acl("orders", DESCRIBE, DENY), acl("orders.", ALL, DENY)], False, True),
        ([acl("*"), acl("orders-", READ, DENY)], False, True),
        ([acl("*"), acl("o", ALL, DENY, pattern_type=PREFIXED)], False, False),
        ([acl("*"), acl("orders-s", DESCRIBE, DENY, pattern_type=PREFIXED)], False, False),
        ([acl("*"), acl("orders.", DESCRIBE, DENY, pattern_type=PREFIXED)], False, True),
        ([acl("*"), acl("*", DESCRIBE, DENY, principal="User:*")], False, False),
        ([acl("*"), acl("*", DESCRIBE, DENY, host="10.0.0.2")], False, True),
        ([acl("a"), acl("z", pattern_type=PREFIXED)], True, True),
        ([acl("orders-x", principal="User:bob")], True, False),
        ([acl("or", principal="User:bob", pattern_type=PREFIXED)], True, False),
        ([acl("orders-x", DESCRIBE, DENY)], True, False),
    ],
)
def test_every_resource_whose_name_begins_so(
    acls: list[Acl], everyone: bool, certain: bool
) -> None:
    made = index(*acls, everyone=everyone)
    assert made.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "orders-").allowed is certain


def test_why_not_every_resource() -> None:
    rule = acl("orders-secret", DESCRIBE, DENY)
    made = index(acl("*"), rule)
    assert made.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "orders-").rule == rule
    other = acl("orders-new", DESCRIBE, DENY)
    changed = made.with_changes(created=[other], deleted=[rule], version=2)
    assert changed.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "orders-").rule == other


# The index as a whole: its listings, under changes, and among many ACLs


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
