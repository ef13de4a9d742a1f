"""Caching, counting and reporting of the authorizer."""

import gc
import tracemalloc
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.authorizer import Authorizer, Denial, DenialNotice, Denials, IndexAuthority
from proxy.acl.index import AclIndex
from proxy.acl.model import CLUSTER_NAME, Acl, AuthorizerMode, Operation, ResourceType
from tests.support.acl_index import (
    ADDRESS,
    ALICE,
    DENY,
    DESCRIBE,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    acl,
)


class Desk:
    """An authorizer, and what it told."""

    def __init__(self, *acls: Acl, mode: AuthorizerMode = AuthorizerMode.ENFORCE) -> None:
        self.reported: list[Denial] = []
        self.authorizer = Authorizer(
            AclIndex(acls, version=1), mode=mode, report=self.reported.append
        )
        self.alice: IndexAuthority = self.authorizer.authority((ALICE,), ADDRESS)

    def change(self, *acls: Acl) -> None:
        self.authorizer.index = AclIndex(acls, version=self.authorizer.index.version + 1)


DENIAL = Denial(
    principal=ALICE,
    host=ADDRESS,
    operation=READ,
    resource_type=TOPIC,
    name="orders",
    rule=None,
    would_be=False,
)


def test_a_denial_is_told_with_what_denied_it() -> None:
    rule = acl("secret", permission=DENY)
    desk = Desk(rule)
    assert not desk.alice.may(READ, TOPIC, "secret")
    assert desk.reported == [DENIAL._replace(name="secret", rule=rule)]


def test_what_is_merely_cut_from_a_list_is_neither_told_nor_counted() -> None:
    desk = Desk()
    assert not desk.alice.may(DESCRIBE, TOPIC, "orders", report=False)
    assert desk.alice.operations(TOPIC, "orders") == 0
    assert desk.reported == []
    assert sum(desk.authorizer.counts.denied) == 0


def test_answers_are_counted_by_result_and_operation() -> None:
    desk = Desk(acl())
    for name in ("orders", "orders", "x"):
        desk.alice.may(READ, TOPIC, name)
    desk.alice.may_any(WRITE, TOPIC)
    counts = desk.authorizer.counts
    assert (counts.allowed[READ], counts.denied[READ], counts.denied[WRITE]) == (2, 1, 1)
    assert counts.cache_hits == 1
    assert sum(counts.would_be_denied) == 0


def test_an_open_connection_feels_a_change_at_once() -> None:
    """Both ways: decisions that were kept are dropped with the version."""
    desk = Desk(acl())
    assert desk.alice.may(READ, TOPIC, "orders")
    desk.change()
    assert not desk.alice.may(READ, TOPIC, "orders")
    assert desk.alice.version == 2
    desk.change(acl())
    assert desk.alice.may(READ, TOPIC, "orders")
    assert desk.alice.version == 3


def test_audit_lets_everything_through_and_tells_what_it_would_deny() -> None:
    desk = Desk(acl(), mode=AuthorizerMode.AUDIT)
    assert desk.alice.may(READ, TOPIC, "orders")
    assert desk.alice.may(WRITE, TOPIC, "orders")
    assert desk.alice.may(WRITE, TOPIC, "hidden", report=False)
    assert desk.alice.may_any(WRITE, TOPIC)
    assert desk.alice.may_every(WRITE, TOPIC, "o")
    reported = [(one.name, one.would_be) for one in desk.reported]
    assert reported == [("orders", True), ("*", True), ("o*", True)]
    assert desk.alice.permits(READ, TOPIC, "orders")
    assert not desk.alice.permits(WRITE, TOPIC, "orders")  # the permission in its place is checked
    assert desk.authorizer.counts.would_be_denied[WRITE] == 3
    assert sum(desk.authorizer.counts.denied) == 0


def test_audit_lets_nobody_change_rights() -> None:
    """A client that could change ACLs would have every permission once they are enforced."""
    desk = Desk(acl("x", Operation.ALL), mode=AuthorizerMode.AUDIT)
    assert not desk.alice.may_administer(Operation.ALTER)
    assert [(one.name, one.would_be) for one in desk.reported] == [(CLUSTER_NAME, False)]
    counts = desk.authorizer.counts
    assert (counts.denied[Operation.ALTER], sum(counts.would_be_denied)) == (1, 0)
    desk.change(acl(CLUSTER_NAME, Operation.ALTER, resource_type=ResourceType.CLUSTER))
    assert desk.alice.may_administer(Operation.ALTER)
    assert not desk.alice.may_administer(Operation.ALTER_CONFIGS)


def test_off_asks_nothing() -> None:
    desk = Desk(acl("*", Operation.ALL, DENY), mode=AuthorizerMode.OFF)
    assert desk.alice.may(READ, TOPIC, "orders")
    assert desk.alice.may_any(READ, TOPIC)
    assert desk.alice.may_every(READ, TOPIC, "")
    assert desk.alice.permits(READ, TOPIC, "orders")
    assert desk.reported == []


def test_a_right_to_every_name_that_begins_so() -> None:
    desk = Desk(acl("ord", pattern_type=PREFIXED))
    assert desk.alice.may_every(READ, TOPIC, "orders-")
    assert not desk.alice.may_every(READ, TOPIC, "o")
    assert not desk.alice.may_every(READ, TOPIC, "", report=False)
    assert [one.name for one in desk.reported] == ["o*"]
    desk.change(acl("*"))
    assert desk.alice.may_every(READ, TOPIC, "")
    desk.change(acl("*"), acl("orders-secret", permission=DENY))
    assert not desk.alice.may_every(READ, TOPIC, "orders-")
    counts = desk.authorizer.counts
    assert (counts.allowed[READ], counts.denied[READ]) == (2, 2)


def test_authorized_operations_are_those_that_kafka_tells_of() -> None:
    """Kafka 4.1's `AclEntry.supportedOperations`, as bits."""
    everything = {
        ResourceType.TOPIC: {3, 4, 5, 6, 7, 8, 10, 11},
        ResourceType.GROUP: {3, 6, 8, 10, 11},
        ResourceType.CLUSTER: {5, 7, 8, 9, 10, 11, 12},
        ResourceType.TRANSACTIONAL_ID: {4, 8, 15},
        ResourceType.DELEGATION_TOKEN: {8},
        ResourceType.USER: {13, 14},
    }
    for resource_type, codes in everything.items():
        desk = Desk(acl("x", Operation.ALL, resource_type=resource_type))
        assert desk.alice.operations(resource_type, "x") == sum(1 << code for code in codes)
        assert desk.alice.operations(resource_type, "y") == 0
    only_read = Desk(acl())
    assert only_read.alice.operations(TOPIC, "orders") == 1 << READ | 1 << DESCRIBE


def test_connections_of_one_principal_and_address_share_what_was_decided() -> None:
    desk = Desk(acl())
    desk.alice.may(READ, TOPIC, "orders")
    assert desk.authorizer.authority((ALICE,), ADDRESS) is desk.alice
    assert desk.authorizer.authority((ALICE,), "10.0.0.2") is not desk.alice
    desk.authorizer.authority((ALICE,), ADDRESS).may(READ, TOPIC, "orders")
    assert desk.authorizer.counts.cache_hits == 1


def test_nothing_is_kept_of_principals_that_left() -> None:
    desk = Desk()
    for number in range(100):
        desk.authorizer.authority((f"User:{number}",), ADDRESS).may(READ, TOPIC, "x")
    gc.collect()
    assert len(desk.authorizer._authorities) == 1


def test_invented_names_do_not_fill_the_memory() -> None:
    desk = Desk()
    for number in range(10_000):
        desk.alice.may(READ, TOPIC, f"invented-{number}", report=False)
    assert len(desk.alice._decisions) <= 4096
    desk.alice.may(READ, ResourceType.GROUP, "x" * 32_000, report=False)
    assert max(len(name) for _, name in desk.alice._decisions) <= 256


OTHER_ADDRESS = "192.0.2.77"
BOB = "User:bob"
KEY = (3, 12)


@pytest.mark.parametrize("mode", AuthorizerMode)
@pytest.mark.parametrize("everyone", [False, True])
def test_many_names_are_judged_as_each_is(mode: AuthorizerMode, everyone: bool) -> None:
    rules = [
        acl("a", pattern_type=PREFIXED, operation=READ),
        acl("a-secret", permission=DENY, operation=DESCRIBE),
        acl("b", operation=WRITE),
        acl("c", operation=READ, principal=BOB),
    ]
    index = AclIndex(rules, version=1, allow_everyone_if_no_acl_found=everyone)
    desk = Desk(mode=mode)
    desk.authorizer.index = index
    names = ["a", "a-1", "a-secret", "b", "c", "nothing", ""]
    one_by_one = [desk.alice.may(DESCRIBE, TOPIC, name, report=False) for name in names]
    assert desk.alice.may_each(DESCRIBE, TOPIC, names) == one_by_one
    rights = [desk.alice.operations(TOPIC, name) for name in names]
    assert desk.alice.operations_each(TOPIC, names) == rights
    assert len(set(one_by_one)) == (2 if mode is AuthorizerMode.ENFORCE else 1)
    assert desk.reported == []


class Cuts:
    """Names that were cut, and how often."""

    def __init__(self) -> None:
        self.made = 0

    def cut(self, authority: IndexAuthority, content: bytes, key: object = KEY) -> bytes:
        def make() -> bytes:
            self.made += 1
            return content[::-1]

        assert isinstance(key, Hashable)
        return authority.reused(key, content, make)


def test_an_equal_response_is_cut_once_for_the_same_rights() -> None:
    """Also from another address, if no ACL names addresses: a thousand pods restart together."""
    desk, cuts = Desk(acl("a")), Cuts()
    elsewhere = desk.authorizer.authority((ALICE,), OTHER_ADDRESS)
    for authority in (desk.alice, desk.alice, elsewhere):
        assert cuts.cut(authority, b"abc") == b"cba"
    assert cuts.made == 1
    assert cuts.cut(desk.alice, b"abd") == b"dba", "another response"
    assert cuts.cut(desk.alice, b"abd", (3, 9)) == b"dba", "another version"
    assert cuts.made == 3


def test_other_rights_have_a_cut_of_their_own() -> None:
    desk, cuts = Desk(acl("a"), acl("b", host=OTHER_ADDRESS)), Cuts()
    bob = desk.authorizer.authority((BOB,), ADDRESS)
    elsewhere = desk.authorizer.authority((ALICE,), OTHER_ADDRESS)
    for authority in (desk.alice, bob, elsewhere):
        cuts.cut(authority, b"abc")
    assert cuts.made == 3
    desk.change(acl("a"))
    cuts.cut(desk.alice, b"abc")
    assert cuts.made == 4
    desk.authorizer.index = desk.authorizer.index.with_super_users(frozenset({ALICE}))
    cuts.cut(desk.alice, b"abc")
    assert cuts.made == 5, "the version of the ACLs is the same"


@pytest.mark.parametrize("mode", [AuthorizerMode.AUDIT, AuthorizerMode.OFF])
def test_nothing_is_reused_where_nothing_is_enforced(mode: AuthorizerMode) -> None:
    desk, cuts = Desk(mode=mode), Cuts()
    for _ in range(2):
        cuts.cut(desk.alice, b"abc")
    assert cuts.made == 2


def test_what_is_kept_of_cut_responses_is_bounded() -> None:
    desk, cuts = Desk(acl("a")), Cuts()
    one = 1 << 20
    tracemalloc.start()
    try:
        for number in range(40):
            cuts.cut(desk.alice, bytes(one) + bytes([number]), (3, number))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 12 * one < kept < 18 * one
    cuts.cut(desk.alice, bytes(one) + bytes([39]), (3, 39))
    assert cuts.made == 40, "the last used is kept"
    cuts.cut(desk.alice, bytes(one) + bytes([0]), (3, 0))
    assert cuts.made == 41, "the first is not"
    for _ in range(2):
        cuts.cut(desk.alice, bytes(5 * one))
    assert cuts.made == 43, "one that is as long as several others is not kept"


def test_the_first_is_told_at_once_and_then_one_per_interval() -> None:
    denials = Denials(interval=60)
    assert denials.note(DENIAL, 100.0) == DenialNotice(denial=DENIAL, count=1)
    for number in range(10_000):
        assert denials.note(DENIAL, 100.0 + number / 1000) is None
    assert denials.note(DENIAL, 160.0) == DenialNotice(denial=DENIAL, count=10_001)
    assert len(denials) == 1


def test_the_last_ones_are_told_although_none_follows() -> None:
    denials = Denials(interval=60)
    denials.note(DENIAL, 0.0)
    denials.note(DENIAL, 1.0)
    assert denials.sweep(59.9) == []
    assert denials.sweep(60.0) == [DenialNotice(denial=DENIAL, count=1)]
    assert denials.sweep(119.9) == []
    assert denials.sweep(120.0) == []
    assert len(denials) == 0


def test_kinds_are_told_apart() -> None:
    """Not by address: a fleet of clients is one notice, with an address as example."""
    denials = Denials()
    kinds = [
        DENIAL,
        DENIAL._replace(principal="User:bob"),
        DENIAL._replace(operation=Operation.WRITE),
        DENIAL._replace(resource_type=ResourceType.GROUP),
        DENIAL._replace(name="other"),
        DENIAL._replace(would_be=True),
    ]
    assert all(denials.note(one, 0.0) for one in kinds)
    assert denials.note(DENIAL._replace(host="10.0.0.2"), 0.0) is None


def test_invented_names_are_told_as_others() -> None:
    """Endless new names fill neither memory nor log; others are still logged."""
    denials = Denials(interval=60, max_kinds_of_principal=50)
    reported = [
        notice
        for number in range(10_000)
        if (notice := denials.note(DENIAL._replace(name=f"n{number}"), number / 10_000))
    ]
    assert len(reported) == 51
    assert [one.others for one in reported] == [False] * 50 + [True]
    assert len(denials) == 51
    assert denials.note(DENIAL._replace(principal="User:bob"), 1.0) is not None
    assert sum(one.count for one in [*reported, *denials.rest(2.0)]) == 10_000


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 40), st.booleans()),
        max_size=80,
    )
)
def test_no_denial_is_lost_from_the_numbers(steps: list[tuple[int, int, int, bool]]) -> None:
    """For any bounds: notices add up, and one kind is logged once per interval."""
    denials = Denials(interval=60, max_kinds_of_principal=3, max_kinds=6)
    now, reported, last = 0.0, 0, dict[tuple[str, str, bool], float]()
    for name, principal, pause, sweeps in steps:
        now += pause
        notices = denials.sweep(now) if sweeps else []
        noted = denials.note(DENIAL._replace(name=str(name), principal=str(principal)), now)
        for notice in [*notices, *([noted] if noted else [])]:
            reported += notice.count
            if not notice.others:
                kind = (notice.denial.principal, notice.denial.name, notice.others)
                assert now - last.get(kind, -60.0) >= 60
                last[kind] = now
    assert reported + sum(one.count for one in denials.rest(now)) == len(steps)
    assert len(denials) <= 6 + 2
