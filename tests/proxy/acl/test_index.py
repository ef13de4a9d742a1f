"""The index: every rule of `StandardAuthorizer` by itself."""

import pytest

from proxy.acl.model import Acl, Operation
from tests.support import acl_index
from tests.support.acl_index import (
    ADDRESS,
    ALICE,
    ALL,
    DENY,
    DESCRIBE,
    GROUP,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    acl,
    index,
    may,
)


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
    assert acl_index.decide(acls, [ALICE], ADDRESS, READ, TOPIC, "orders") is allowed


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
        ("10.0.0.0/8", "10.37.0.1", True),  # 37 is the code of %
        ("10.37.0.0/16", "10.37.0.1", True),
        ("2001:db8::/32", "2001:db8::25", True),
        ("fe80::%eth0/10", "fe80::1%eth0", False),
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
        ("fe80::1", "fe80::1%eth0", True),
        ("fe80::1%eth1", "fe80::1%eth0", False),
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
    """A host that is neither an address nor a block is kept and never applies."""
    assert may(index(acl(host=of_acl)), host=of_client) is applies
    denying = index(acl(), acl(host=of_acl, permission=DENY))
    assert may(denying, host=of_client) is not applies


def test_super_users_are_above_denials() -> None:
    acls = index(acl("*", ALL, DENY, principal="User:*"), super_users=[ALICE])
    decision = acls.decide((ALICE,), ADDRESS, READ, TOPIC, "orders")
    assert (decision.allowed, decision.super_user, decision.rule) == (True, True, None)
    assert acls.decide_any((ALICE,), ADDRESS, READ, TOPIC).allowed
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
            [acl("ord", pattern_type=PREFIXED), acl("o", permission=DENY, pattern_type=PREFIXED)],
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


def test_super_users_may_do_it_to_every_resource() -> None:
    made = index(acl("*", ALL, DENY), super_users=[ALICE])
    assert made.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "").super_user


def test_why_not_every_resource() -> None:
    rule = acl("orders-secret", DESCRIBE, DENY)
    made = index(acl("*"), rule)
    assert made.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "orders-").rule == rule
    other = acl("orders-new", DESCRIBE, DENY)
    changed = made.with_changes(created=[other], deleted=[rule], version=2)
    assert changed.decide_every((ALICE,), ADDRESS, DESCRIBE, TOPIC, "orders-").rule == other
