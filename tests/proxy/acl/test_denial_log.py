"""What is told of denials: enough for people, little enough for a disk."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.authorizer import Denial, DenialNotice, Denials
from proxy.acl.model import Operation, ResourceType

DENIAL = Denial(
    principal="User:alice",
    host="10.0.0.1",
    operation=Operation.READ,
    resource_type=ResourceType.TOPIC,
    name="orders",
    rule=None,
    would_be=False,
)


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
        replace(DENIAL, principal="User:bob"),
        replace(DENIAL, operation=Operation.WRITE),
        replace(DENIAL, resource_type=ResourceType.GROUP),
        replace(DENIAL, name="other"),
        replace(DENIAL, would_be=True),
    ]
    assert all(denials.note(one, 0.0) for one in kinds)
    assert denials.note(replace(DENIAL, host="10.0.0.2"), 0.0) is None


def test_invented_names_are_told_as_others() -> None:
    """A client that asks for ever other names fills neither memory nor log; others are heard."""
    denials = Denials(interval=60, max_kinds_of_principal=50)
    reported = [
        notice
        for number in range(10_000)
        if (notice := denials.note(replace(DENIAL, name=f"n{number}"), number / 10_000))
    ]
    assert len(reported) == 51
    assert [one.others for one in reported] == [False] * 50 + [True]
    assert len(denials) == 51
    assert denials.note(replace(DENIAL, principal="User:bob"), 1.0) is not None
    assert sum(one.count for one in [*reported, *denials.rest(2.0)]) == 10_000


def test_many_principals_are_bounded_too() -> None:
    denials = Denials(max_kinds=100)
    for number in range(1000):
        denials.note(replace(DENIAL, principal=f"User:{number}"), 0.0)
    assert len(denials) <= 101


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 40), st.booleans()),
        max_size=80,
    )
)
def test_no_denial_is_lost_from_the_numbers(steps: list[tuple[int, int, int, bool]]) -> None:
    """Whatever the bounds: notices add up, and one kind is told once per interval."""
    denials = Denials(interval=60, max_kinds_of_principal=3, max_kinds=6)
    now, reported, last = 0.0, 0, dict[tuple[str, str, bool], float]()
    for name, principal, pause, sweeps in steps:
        now += pause
        notices = denials.sweep(now) if sweeps else []
        noted = denials.note(replace(DENIAL, name=str(name), principal=str(principal)), now)
        for notice in [*notices, *([noted] if noted else [])]:
            reported += notice.count
            if not notice.others:
                kind = (notice.denial.principal, notice.denial.name, notice.others)
                assert now - last.get(kind, -60.0) >= 60
                last[kind] = now
    assert reported + sum(one.count for one in denials.rest(now)) == len(steps)
    assert len(denials) <= 6 + 2
