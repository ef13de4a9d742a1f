"""The index: every rule of `StandardAuthorizer` by itself, and all of them against a naive scan."""

import sys
import time
from collections.abc import Sequence
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.proxy.acl import naive

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALL, READ, WRITE, DESCRIBE = Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, ADDRESS = "User:alice", "10.0.0.1"


def acl(
    name: str = "orders",
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    resource_type: ResourceType = TOPIC,
    pattern_type: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(resource_type, pattern_type, name, principal, host, operation, permission)


def index(*acls: Acl, everyone: bool = False, super_users: Sequence[str] = ()) -> AclIndex:
    return AclIndex(
        acls,
        allow_everyone_if_no_acl_found=everyone,
        super_users=frozenset(super_users),
        version=1,
    )


def may(
    acls: AclIndex, operation: Operation = READ, name: str = "orders", host: str = ADDRESS
) -> bool:
    return acls.decide(ALICE, host, operation, TOPIC, name).allowed


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl("other")], False),
        ([acl("order")], False),
        ([acl("*")], True),
        ([acl("ord", pattern_type=PREFIXED)], True),
        ([acl("orders", pattern_type=PREFIXED)], True),
        ([acl("orders2", pattern_type=PREFIXED)], False),
        ([acl("*", pattern_type=PREFIXED)], False),
        ([acl(resource_type=GROUP)], False),
        ([acl(principal="User:bob")], False),
        ([acl(principal="User:Alice")], False),
        ([acl(principal="User:*")], True),
        ([acl(principal="Group:*")], False),
        ([acl(principal="*")], False),
        ([acl(operation=WRITE)], False),
        ([acl(operation=ALL)], True),
        ([acl(operation=DESCRIBE)], False),
        ([acl(), acl(permission=DENY)], False),
        ([acl(), acl("*", permission=DENY)], False),
        ([acl(), acl("o", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl(), acl(operation=ALL, permission=DENY)], False),
        ([acl(), acl(operation=ALL, permission=DENY, principal="User:*")], False),
        ([acl(), acl(operation=WRITE, permission=DENY)], True),
        ([acl(), acl(permission=DENY, principal="User:bob")], True),
        ([acl(), acl(permission=DENY, host="10.0.0.2")], True),
        ([acl(), acl(permission=DENY, host=ADDRESS)], False),
    ],
)
def test_a_decision(acls: list[Acl], allowed: bool) -> None:
    assert may(index(*acls)) is allowed
    assert naive.decide(acls, ALICE, ADDRESS, READ, TOPIC, "orders") is allowed


@pytest.mark.parametrize("asked", [one for one in Operation if one > Operation.ALL])
@pytest.mark.parametrize("given_", [one for one in Operation if one > Operation.ALL])
def test_operations_that_include_others(asked: Operation, given_: Operation) -> None:
    """Only where they are allowed: a deny of READ does not hide a topic."""
    included = {
        DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(asked, set()) | {asked}
    assert may(index(acl(operation=given_)), asked) is (given_ in included)
    denied = index(acl(operation=ALL), acl(operation=given_, permission=DENY))
    assert may(denied, asked) is (given_ is not asked)


@pytest.mark.parametrize(
    ("of_acl", "of_client", "applies"),
    [
        ("*", "anything", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.1.2.3/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.1/32", "10.0.0.1", True),
        ("0.0.0.0/0", "192.0.2.1", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("2001:db8::1", "2001:0DB8:0:0:0:0:0:1", True),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1", True),
        ("2001:db8::/32", "2001:db8:ffff::1", True),
        ("2001:db8::/33", "2001:db8:ffff::1", False),
        ("::/0", "10.0.0.1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.9.9.9", True),
        ("::ffff:10.0.0.0/95", "10.9.9.9", False),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("fe80::1", "fe80::1%eth0", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("010.0.0.1", "10.0.0.1", False),
        ("10.1", "10.0.0.1", False),
        ("10.0.0.0/33", "10.0.0.1", False),
        ("10.0.0.0/-1", "10.0.0.1", False),
        ("10.0.0.0/255.0.0.0", "10.0.0.1", False),
        ("10.0.0.0/", "10.0.0.1", False),
        ("10.0.0.0/" + "8" * 10_000, "10.0.0.1", False),
        ("10.0.0.0/\u0668", "10.0.0.1", False),
        ("localhost", "localhost", False),
        ("", "", False),
        ("10.0.0.1\0", "10.0.0.1", False),
        (" 10.0.0.1", "10.0.0.1", False),
    ],
)
def test_hosts(of_acl: str, of_client: str, applies: bool) -> None:
    """What is no address and no block is kept, and never applies: neither way."""
    assert may(index(acl(host=of_acl)), host=of_client) is applies
    denying = index(acl(), acl(host=of_acl, permission=DENY))
    assert may(denying, host=of_client) is not applies


def test_super_users_are_above_denials() -> None:
    acls = index(acl("*", ALL, DENY, principal="User:*"), super_users=[ALICE])
    decision = acls.decide(ALICE, ADDRESS, READ, TOPIC, "orders")
    assert (decision.allowed, decision.super_user, decision.rule) == (True, True, None)
    assert acls.decide_any(ALICE, ADDRESS, READ, TOPIC).allowed
    assert not acls.decide("User:alic", ADDRESS, READ, TOPIC, "orders").allowed


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
    """Any ACL on it, whoever it is for, closes it for all others."""
    assert may(index(*acls, everyone=True)) is allowed
    assert not may(index(*acls))


def test_the_rule_that_decided_is_told() -> None:
    allowing, denying = acl("ord", pattern_type=PREFIXED), acl("orders2", ALL, DENY)
    acls = index(allowing, denying)
    assert acls.decide(ALICE, ADDRESS, READ, TOPIC, "orders").rule == allowing
    assert acls.decide(ALICE, ADDRESS, READ, TOPIC, "orders2").rule == denying
    assert acls.decide(ALICE, ADDRESS, READ, TOPIC, "x").rule is None


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl(), acl(permission=DENY)], False),
        ([acl(), acl("orders2", permission=DENY)], True),
        ([acl(), acl("ord", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl("ord", pattern_type=PREFIXED), acl("orders", permission=DENY)], True),
        (
            [
                acl("ord", pattern_type=PREFIXED),
                acl("orders", permission=DENY, pattern_type=PREFIXED),
            ],
            True,
        ),
        (
            [
                acl("ord", pattern_type=PREFIXED),
                acl("o", permission=DENY, pattern_type=PREFIXED),
            ],
            False,
        ),
        ([acl("ord", pattern_type=PREFIXED), acl("ord", permission=DENY)], True),
        ([acl(), acl("*", permission=DENY)], False),
        ([acl("*"), acl("hardcode", permission=DENY)], True),
        ([acl("*"), acl("h", permission=DENY, pattern_type=PREFIXED)], True),
        ([acl(operation=ALL)], True),
        ([acl(operation=WRITE)], False),
        ([acl(principal="User:*"), acl(permission=DENY)], False),
    ],
)
def test_any_resource_of_a_type(acls: list[Acl], allowed: bool) -> None:
    """Patterns against patterns: a narrower deny does not defeat a wider allow."""
    assert index(*acls).decide_any(ALICE, ADDRESS, READ, TOPIC).allowed is allowed
    assert naive.decide_any(acls, ALICE, ADDRESS, READ, TOPIC) is allowed


def test_what_includes_an_operation_does_not_count_for_any_resource() -> None:
    """Seen in Kafka's `authorizeByResourceType`; only a rule for every name does."""
    assert not index(acl(operation=READ)).decide_any(ALICE, ADDRESS, DESCRIBE, TOPIC).allowed
    assert index(acl("*", READ)).decide_any(ALICE, ADDRESS, DESCRIBE, TOPIC).allowed


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
def test_all_resources_for_certain(acls: list[Acl], everyone: bool, certain: bool) -> None:
    assert index(*acls, everyone=everyone).allows_all(ALICE, ADDRESS, READ, TOPIC) is certain


NAMES = st.sampled_from(["*", "a", "ab", "abc", "abd", "b", "hardcode", "h", "a\0", "é"])
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*", "Group:a"])
ACL_HOSTS = [
    "*",
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "0.0.0.0/0",
    "::1",
    "x",
]
OPERATIONS = st.sampled_from([one for one in Operation if one >= ALL][:10])
ACLS = st.lists(
    st.builds(
        Acl,
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from([LITERAL, PREFIXED]),
        NAMES,
        PRINCIPALS,
        st.sampled_from(ACL_HOSTS),
        OPERATIONS,
        st.sampled_from([ALLOW, DENY]),
    ),
    max_size=25,
)
FILTERS = st.builds(
    AclFilter,
    resource_type=st.sampled_from(ResourceType),
    pattern_type=st.sampled_from(PatternType),
    name=st.none() | NAMES | st.just(""),
    principal=st.none() | PRINCIPALS,
    host=st.none() | st.sampled_from(ACL_HOSTS),
    operation=st.just(Operation.ANY) | OPERATIONS,
    permission=st.sampled_from(Permission),
)


@settings(max_examples=300, deadline=None)
@given(
    acls=ACLS,
    principal=PRINCIPALS,
    host=st.sampled_from(["10.0.0.1", "10.9.9.9", "::1", "192.0.2.1"]),
    operation=OPERATIONS.filter(lambda one: one is not ALL),
    name=NAMES,
    everyone=st.booleans(),
)
def test_decisions_are_those_of_a_naive_scan(
    acls: list[Acl], principal: str, host: str, operation: Operation, name: str, everyone: bool
) -> None:
    made = index(*acls, everyone=everyone)
    question = (principal, host, operation, TOPIC)
    decision = made.decide(*question, name)
    assert decision.allowed is naive.decide(acls, *question, name, open_by_default=everyone)
    assert decision.rule is None or naive.concerns(decision.rule, principal, host)
    assert made.decide_any(*question).allowed is naive.decide_any(
        acls, *question, open_by_default=everyone
    )
    if made.allows_all(*question):
        assert decision.allowed


@settings(max_examples=300, deadline=None)
@given(acls=ACLS, asked=FILTERS)
def test_a_listing_is_that_of_a_naive_scan(acls: list[Acl], asked: AclFilter) -> None:
    made = index(*acls)
    assert [*made.matching(asked)] == sorted(one for one in {*acls} if asked.matches(one))
    assert len(made) == len({*acls})


@settings(max_examples=300, deadline=None)
@given(
    first=ACLS,
    changes=st.lists(st.tuples(ACLS, ACLS), min_size=1, max_size=4),
    keep=st.integers(0, 300),
    everyone=st.booleans(),
)
def test_an_index_that_was_changed_is_one_that_was_built(
    first: list[Acl], changes: list[tuple[list[Acl], list[Acl]]], keep: int, everyone: bool
) -> None:
    """And those before it stay as they were. `keep`: so many others, that it is not built anew."""
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
            question = ("User:a", "10.0.0.1", operation, TOPIC)
            found = one.decide(*question, name)
            assert found.allowed is other.decide(*question, name).allowed
            assert found.rule is None or found.rule in one
        assert one.decide_any(*question).allowed is other.decide_any(*question).allowed
        assert one.allows_all(*question) is other.allows_all(*question)


def test_a_listing_goes_on_with_what_it_began_with() -> None:
    acls = index(*(acl(f"t{number}") for number in range(3000)))
    listing = acls.matching(AclFilter())
    next(listing)
    acls.with_changes(deleted=[*acls.matching(AclFilter())], version=2)
    assert len([*listing]) == 2999


def test_a_listing_that_finds_nothing_comes_in_steps() -> None:
    """A filter that nothing matches must not hold up the event loop for 100,000 ACLs."""
    acls = index(*(acl(f"t{number}") for number in range(3000)))
    steps = [*acls.matching_chunks(AclFilter(host="nowhere"))]
    assert len(steps) >= 3
    assert not any(steps)


def test_a_change_of_one_spelling_leaves_the_other() -> None:
    """Two ACLs that mean the same host: each must be deleted to be gone."""
    one, other = acl(host="::1"), acl(host="0:0:0:0:0:0:0:1")
    far = [acl(f"other{number}") for number in range(50)]
    acls = index(one, other, *far)
    for first, second in ((one, other), (other, one)):
        left = acls.with_changes(deleted=[first], version=2)
        assert left.decide(ALICE, "::1", READ, TOPIC, "orders").rule == second
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
    few, many = index(*HOSTILE[shape][:10]), index(*HOSTILE[shape])

    def calls(acls: AclIndex) -> int:
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            acls.decide(ALICE, ADDRESS, DESCRIBE, TOPIC, "t" * 5000)
        finally:
            sys.setprofile(None)
        return count

    calls(few)
    assert calls(many) <= calls(few) + 10


def test_the_order_is_that_of_acl() -> None:
    """Whatever order they come in."""
    acls = [acl("b"), acl("a", pattern_type=PREFIXED), acl("a"), acl("a", WRITE), acl("a")]
    assert [*index(*acls).matching(AclFilter())] == sorted({*acls}, key=attrgetter(*Acl.__slots__))


def test_prefixes_of_a_long_name_are_found_quickly() -> None:
    """A MATCH filter of 30,000 letters among nested prefixes: no look at each length."""
    acls = index(*(acl("t" * n, pattern_type=PREFIXED) for n in range(1, 500)))
    started = time.process_time()
    asked = AclFilter(
        resource_type=TOPIC, pattern_type=PatternType.MATCH, name="t" * 250 + "x" * 30_000
    )
    assert len([*acls.matching(asked)]) == 250
    assert time.process_time() - started < 2
