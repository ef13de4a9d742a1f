"""Memory budget: a bound for all requests together, and a turn for each principal."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.scheduling.memory_budget import FairQueue, MemoryBudget


class Waiting:
    """The names of admitted waiters, in order."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.let_in: list[str] = []

    def wait(self, who: str, size: int) -> None:
        self.budget.wait(who, size, lambda: self.let_in.append(who))


def test_as_many_as_fit() -> None:
    budget = MemoryBudget(100)
    assert budget.take("a", 60)
    assert budget.take("b", 40)
    assert not budget.take("c", 1)
    budget.release("b")
    assert budget.take("c", 40)


def test_one_of_a_principal() -> None:
    """Its connections may be thousands, and it may be an attacker."""
    budget = MemoryBudget(100)
    assert budget.take("a", 1)
    assert not budget.take("a", 1)
    budget.release("a")
    assert budget.take("a", 1)


def test_one_that_is_longer_than_all_room_fits_alone() -> None:
    """`socket.request.max.bytes` is the operator's to raise."""
    budget = MemoryBudget(100)
    assert budget.take("a", 500)
    assert not budget.take("b", 1)
    budget.release("a")
    assert budget.take("b", 1)
    assert not budget.take("a", 500)


def test_who_waits_is_let_in_by_who_leaves() -> None:
    budget = MemoryBudget(100)
    waiting = Waiting(budget)
    budget.take("a", 100)
    waiting.wait("b", 50)
    waiting.wait("c", 50)
    waiting.wait("d", 50)
    assert budget.is_wanted
    assert waiting.let_in == []
    budget.release("a")
    assert waiting.let_in == ["b", "c"]
    budget.release("c")
    assert waiting.let_in == ["b", "c", "d"]
    assert not budget.is_wanted


def test_small_ones_pass_by_one_that_does_not_fit() -> None:
    """A hundred megabytes that wait must not make everybody else wait too."""
    waiting = Waiting(MemoryBudget(100))
    waiting.wait("a", 60)
    waiting.wait("b", 100)
    waiting.wait("c", 40)
    assert waiting.let_in == ["a", "c"]


def test_who_waits_with_a_thousand_requests_waits_for_itself() -> None:
    budget = MemoryBudget(100)
    waiting = Waiting(budget)
    budget.take("flood", 100)
    for _ in range(1_000):
        waiting.wait("flood", 100)
    waiting.wait("other", 100)
    budget.release("flood")
    budget.release("flood")
    assert waiting.let_in == ["flood", "other"]


def test_who_leaves_when_let_in_lets_the_next_in() -> None:
    """Its connection was closed while it waited."""
    budget = MemoryBudget(100)
    waiting = Waiting(budget)
    budget.take("a", 100)
    budget.wait("gone", 100, lambda: budget.release("gone"))
    waiting.wait("b", 100)
    budget.release("a")
    assert waiting.let_in == ["b"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30))
def test_each_has_its_turn_and_its_order(things: list[tuple[str, int]]) -> None:
    queue = FairQueue[int]()
    for who, thing in things:
        queue.add(who, thing)
    taken = []
    while (one := queue.take()) is not None:
        taken.append(one)
    for name in "abc":
        assert [one for one in taken if one[0] == name] == [one for one in things if one[0] == name]
    counts = [0, 0, 0]
    left = [sum(who == name for who, _ in things) for name in "abc"]
    for who, _ in taken:
        at = "abc".index(who)
        counts[at] += 1
        assert all(counts[at] <= counts[i] + 1 for i in range(3) if counts[i] < left[i])
