"""Plain functions run in steps, with the result of a single run."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from proxy.scheduling.steps import (
    MASK,
    Steps,
    TooManyValuesError,
    at_most,
    free_in_steps,
    in_steps,
    pause,
    pausing,
)
from tests.support.processes import finish


def started(function: Callable[[], object], *, max_values: int = 100) -> Steps[object]:
    """Steps that end at every pause."""
    return in_steps(function, max_values=max_values, seconds=0)


def test_the_result_and_all_between_are_in_order() -> None:
    seen: list[object] = []

    def work() -> str:
        for number in range(3):
            seen.append(number)
            pause()
        return "done"

    steps = started(work)
    for _ in steps:
        seen.append("between")
    assert seen == [0, "between", 1, "between", 2, "between"]
    assert finish(started(work)) == "done"


def test_a_step_ends_when_its_time_is_over() -> None:
    """Not at each pause: a change of threads costs as much as some ten items."""

    def work() -> None:
        for _ in range(1_000):
            pause()

    assert list(in_steps(work, max_values=0, seconds=60)) == []


def test_the_two_never_run_at_once() -> None:
    """Neither sees the other in the middle of something."""
    busy: list[str] = []

    def enter(name: str) -> None:
        assert not busy
        busy.append(name)
        sum(range(1_000))  # time enough to be interrupted, if anybody could
        assert busy == [name]
        busy.clear()

    def work() -> None:
        for _ in range(200):
            enter("work")
            pause()

    for _ in started(work):
        enter("who takes the steps")


@pytest.mark.parametrize("pauses", [0, 1, 2])
def test_what_it_raises_is_raised(pauses: int) -> None:
    def work() -> None:
        for _ in range(pauses):
            pause()
        raise ValueError("the third act")

    with pytest.raises(ValueError, match="the third act"):
        finish(started(work))


def test_closed_it_ends_at_its_next_pause_and_keeps_nothing() -> None:
    """A client that is gone has its 100 MB freed, not when its request would have been judged."""

    class Body:
        pass

    body = Body()
    alive, ended = weakref.ref(body), threading.Event()

    def work(_: Body = body) -> Iterator[None]:
        try:
            pause()
            pytest.fail("it went on")
        finally:
            ended.set()

    steps = started(work)
    del work, body
    next(steps)
    steps.close()
    assert ended.wait(60)
    for thread in threading.enumerate():
        if thread.name == "in-steps":
            thread.join(60)
    gc.collect()
    assert alive() is None


def test_closed_before_it_began_it_never_runs() -> None:
    steps = started(lambda: pytest.fail("it ran"))
    steps.close()
    with pytest.raises(StopIteration):
        next(steps)


def test_values_are_counted_whatever_the_time() -> None:
    def work() -> None:
        for _ in range(10):
            pause(10)

    finish(started(work, max_values=100))
    with pytest.raises(TooManyValuesError):
        finish(started(work, max_values=99))
    with pytest.raises(TooManyValuesError):
        finish(in_steps(work, max_values=99, seconds=60))


def test_elsewhere_a_pause_is_nothing() -> None:
    """The same code reads what is short at once, with no bound but its size."""
    pause(10**9)
    assert list(pausing(range(100))) == list(range(100))


def test_at_once_values_are_counted_too() -> None:
    made: list[int] = []
    with at_most(5):
        made.extend(pausing(range(5)))
        pause(5)
        with pytest.raises(TooManyValuesError):
            pause(1)
    pause(1_000)
    assert made == list(range(5))


def test_works_do_not_disturb_each_other() -> None:
    def work(name: str) -> Callable[[], list[str]]:
        return lambda: [name for _ in pausing(range(100))]

    one, other = started(work("one")), started(work("other"))
    results = []
    for steps in (one, other, one, other):
        try:
            next(steps)
        except StopIteration as over:
            results.append(over.value)
    results += [finish(one), finish(other)]
    assert results == [["one"] * 100, ["other"] * 100]


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 64, 100])
def test_items_are_all_gone_through_in_their_order(length: int) -> None:
    steps = started(lambda: list(pausing(iter(range(length)))))
    assert finish(steps) == list(range(length))
    taken = started(lambda: list(pausing(range(length))))
    assert len(list(taken)) == (length + 31) // 32, "a pause in 32 items"


class Item:
    """Records when it is freed."""

    def __init__(self, freed: list[str]) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append("freed")


def make(freed: list[str], count: int) -> tuple[Item, ...]:
    """As the reader of an array does it."""
    items: list[Item] = []
    free_in_steps(items)
    for _ in pausing(range(count)):
        items.append(Item(freed))
    return tuple(items)


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_made_is_freed_in_steps(fails: bool) -> None:
    """Hundreds of thousands of objects, freed at once, would be one long step: also those that
    were made for nothing."""
    freed: list[str] = []

    def work() -> None:
        make(freed, 1_000)
        if fails:
            pause(1_000_000)

    def all_of_it() -> str:
        try:
            work()
        except TooManyValuesError:
            return "too many"
        return "done"

    seen = [0]
    steps = started(all_of_it)
    result = None
    while result is None:
        try:
            next(steps)
        except StopIteration as done:
            result = done.value
        seen.append(len(freed))
    assert result == ("too many" if fails else "done")
    assert seen[-1] == 1_000
    assert max(later - sooner for sooner, later in pairwise(seen)) <= MASK + 1


def test_what_the_result_holds_is_not_freed() -> None:
    freed: list[str] = []
    kept = finish(started(lambda: make(freed, 100)))
    assert isinstance(kept, tuple)
    assert (len(kept), freed) == (100, [])


def test_what_was_made_is_freed_if_nobody_waits_any_more() -> None:
    freed: list[str] = []
    steps = started(lambda: make(freed, 1_000))
    for _ in range(10):
        next(steps)
    steps.close()
    for thread in threading.enumerate():
        if thread.name == "in-steps":
            thread.join(60)
    assert freed
    assert len(freed) % (MASK + 1) == 0


def test_elsewhere_nothing_is_kept() -> None:
    freed: list[str] = []
    make(freed, 5)
    assert len(freed) == 5
