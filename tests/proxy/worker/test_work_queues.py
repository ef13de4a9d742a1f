"""Long works of an event loop: one at a time, and nobody waits forever."""

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from proxy.connection.long_work import MAX_AT_ONCE
from proxy.scheduling.memory_budget import LONG_BYTES
from proxy.scheduling.steps import LongTask, Steps, timed
from proxy.worker.work_queues import (
    NEVER,
    TimeSlices,
    WorkQueue,
    WorkQueues,
    old_objects_left_alone,
)
from tests.support.processes import finish, slow


def counting(to: int, seen: list[str], name: str = "") -> Steps[int]:
    for number in range(to):
        seen.append(f"{name}{number}")
        yield
    return to


def failing() -> Steps[Any]:
    yield
    raise ValueError("the third act")


def test_the_time_between_the_steps_is_nobodys() -> None:
    clock = 0

    def working() -> Steps[str]:
        nonlocal clock
        for _ in range(3):
            clock += 5
            yield
        clock += 2
        return "done"

    times: list[int] = []

    def interrupted() -> Steps[str]:
        nonlocal clock
        steps = timed(working(), times.append, lambda: clock)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            clock += 1_000
            yield

    assert finish(interrupted()) == "done"
    assert times == [5, 5, 5, 2]


async def test_others_have_their_turns_meanwhile() -> None:
    turns, loop = TimeSlices(asyncio.get_running_loop()), asyncio.get_running_loop()
    others = 0

    def other() -> None:
        nonlocal others
        others += 1
        if not work.done():
            loop.call_soon(other)

    work = turns.run(slow(20))
    loop.call_soon(other)
    await work
    assert others >= 20


async def test_works_take_turns() -> None:
    """A short one does not wait for a long one."""
    turns = TimeSlices(asyncio.get_running_loop())
    long, short = turns.run(slow(50)), turns.run(slow(2))
    await short
    assert not long.done()
    assert await long == 50


async def test_one_that_nobody_awaits_any_more_is_given_up() -> None:
    seen: list[str] = []
    turns = TimeSlices(asyncio.get_running_loop())
    given_up, other = turns.run(counting(10, seen)), turns.run(slow(1))
    given_up.cancel()
    await other
    assert seen == []


async def test_of_those_who_wait_one_goes_on_in_a_turn_each_principal_in_its() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    turns = TimeSlices(loop)

    def noting(name: str) -> None:
        seen.append(name)

    for who, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        turns.wait(who, partial(noting, name))
    assert seen == []
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert len(seen) == turn
    assert seen == ["a1", "b1", "c1", "a2", "a3"]


async def test_who_waits_again_comes_behind_the_others() -> None:
    """A single work continues in the next turn, not in the same one."""
    turns, seen = TimeSlices(asyncio.get_running_loop()), list[str]()

    def again(name: str, times: int) -> None:
        seen.append(f"{name}{times}")
        if times:
            turns.wait(name, partial(again, name, times - 1))

    turns.wait("a", partial(again, "a", 3))
    turns.wait("b", partial(again, "b", 1))
    for turn in range(1, 7):
        await asyncio.sleep(0)
        assert len(seen) == turn
    assert seen == ["a3", "b1", "a2", "b0", "a1", "a0"]


def noting(name: str, seen: list[str], steps: int = 3) -> Steps[str]:
    for _ in range(steps):
        seen.append(name)
        yield
    return name


async def test_one_after_the_other_each_principal_in_turn() -> None:
    queue, seen = WorkQueue(TimeSlices(asyncio.get_running_loop())), list[str]()
    works = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]
    done = await asyncio.gather(*(queue.run(who, noting(name, seen)) for who, name in works))
    assert list(done) == [name for _, name in works]
    assert [seen[at : at + 3] for at in range(0, len(seen), 3)] == [
        [name] * 3 for name in seen[::3]
    ], "never two at once"
    assert seen[::3] == ["a1", "a2", "b1", "c1", "a3"]


async def test_one_that_fails_does_not_stop_the_next() -> None:
    queue, seen = WorkQueue(TimeSlices(asyncio.get_running_loop())), list[str]()
    first = asyncio.ensure_future(queue.run("a", failing()))
    second = asyncio.ensure_future(queue.run("a", noting("next", seen)))
    with pytest.raises(ValueError, match="the third act"):
        await first
    assert await second == "next"
    assert await queue.run("b", noting("last", seen)) == "last", "and it is idle again"


async def test_one_that_was_closed_is_passed_over() -> None:
    queue, seen = WorkQueue(TimeSlices(asyncio.get_running_loop())), list[str]()
    closed = noting("closed", seen)
    first = asyncio.ensure_future(queue.run("a", noting("first", seen)))
    second = asyncio.ensure_future(queue.run("b", closed))
    third = asyncio.ensure_future(queue.run("c", noting("third", seen)))
    closed.close()
    assert [await first, await second, await third] == ["first", None, "third"]
    assert "closed" not in seen


async def test_while_much_is_made_the_collector_looks_at_what_is_young() -> None:
    """To look at all of it would be a turn of the loop of a tenth of a second, several times."""
    usual = gc.get_threshold()

    def work() -> Steps[tuple[int, int, int]]:
        yield
        return gc.get_threshold()

    queue = WorkQueue(TimeSlices(asyncio.get_running_loop()), old_objects_left_alone)
    works = [queue.run("a", work()), queue.run("b", failing()), queue.run("c", work())]
    first, failed, last = await asyncio.gather(*works, return_exceptions=True)
    assert first == last == (*usual[:2], NEVER)
    assert isinstance(failed, ValueError)
    assert gc.get_threshold() == usual


def test_no_row_of_long_works_keeps_cycles_for_ever() -> None:
    """Of closed connections, say: they are looked for when a work is over."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    old = gc.get_threshold()[2]
    with old_objects_left_alone():
        cycle = Cycle()
        seen = weakref.ref(cycle)
        for _ in range(old + 1):
            gc.collect(1)  # which makes it an old one
        del cycle
        assert seen() is not None
    assert seen() is None


async def test_what_is_short_waits_neither_for_what_is_long_nor_for_other_principals() -> None:
    work_queues, seen = WorkQueues(TimeSlices(asyncio.get_running_loop())), list[str]()

    def work(who: str, name: str, size: int, steps: int) -> LongTask:
        return LongTask(who, noting(name, seen, steps), lambda *_: None, size=size)

    works = [
        work("a", "longest", LONG_BYTES, 100_000),
        work("a", "long", MAX_AT_ONCE + 1, 100_000),
        work("a", "a1", MAX_AT_ONCE, 1_000),
        work("a", "a2", 1, 1_000),
        work("b", "b1", 1, 1_000),
    ]
    done: list[str] = []

    async def run(one: LongTask) -> None:
        done.append(str(await work_queues.run(one)))

    await asyncio.gather(*map(run, works))
    assert seen.index("a2") > max(at for at, name in enumerate(seen) if name == "a1")
    assert set(done[:3]) == {"a1", "a2", "b1"}


async def test_a_wide_lane_has_one_work_of_each_principal_and_no_more_than_its_width() -> None:
    queue = WorkQueue(TimeSlices(asyncio.get_running_loop()), width=3)
    under_way: list[str] = []
    most = 0

    def work(who: str) -> Steps[str]:
        nonlocal most
        assert who not in under_way
        under_way.append(who)
        most = max(most, len(under_way))
        yield from slow(3)
        under_way.remove(who)
        return who

    whose = [who for who in "abcdefg" for _ in range(4)]
    done = await asyncio.gather(*(queue.run(who, work(who)) for who in whose))
    assert done == whose
    assert most == 3
