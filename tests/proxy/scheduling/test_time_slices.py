"""Long work between the turns of the event loop."""

import asyncio
from functools import partial

import pytest

from proxy.scheduling.steps import Steps, timed
from proxy.scheduling.time_slices import TimeSlices
from tests.support.processes import finish, slow


def counting(to: int, seen: list[str], name: str = "") -> Steps[int]:
    for number in range(to):
        seen.append(f"{name}{number}")
        yield
    return to


def failing() -> Steps[int]:
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


def test_the_result_comes() -> None:
    async def main() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        assert await turns.run(counting(1_000, [])) == 1_000
        assert await turns.run(counting(0, [])) == 0, "and again, after all was done"

    asyncio.run(main())


def test_others_have_their_turns_meanwhile() -> None:
    async def main() -> int:
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
        return others

    assert asyncio.run(main()) >= 20


def test_works_take_turns() -> None:
    """A short one does not wait for a long one."""

    async def main() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        long, short = turns.run(slow(50)), turns.run(slow(2))
        await short
        assert not long.done()
        assert await long == 50

    asyncio.run(main())


def test_one_that_fails_spoils_no_other() -> None:
    async def main() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        bad, good = turns.run(failing()), turns.run(slow(3))
        with pytest.raises(ValueError, match="the third act"):
            await bad
        assert await good == 3

    asyncio.run(main())


def test_one_that_nobody_awaits_any_more_is_given_up() -> None:
    async def main() -> None:
        seen: list[str] = []
        turns = TimeSlices(asyncio.get_running_loop())
        given_up, other = turns.run(counting(10, seen)), turns.run(slow(1))
        given_up.cancel()
        await other
        assert seen == []

    asyncio.run(main())


def test_of_those_who_wait_one_goes_on_in_a_turn_each_principal_in_its() -> None:
    async def main() -> list[str]:
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
        return seen

    assert asyncio.run(main()) == ["a1", "b1", "c1", "a2", "a3"]


def test_who_waits_again_comes_behind_the_others() -> None:
    """And alone goes on in the next turn, not in the same one."""

    async def main() -> list[str]:
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
        return seen

    assert asyncio.run(main()) == ["a3", "b1", "a2", "b0", "a1", "a0"]
