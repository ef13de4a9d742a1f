"""Long works of an event loop: one at a time, and nobody waits for ever."""

import asyncio

import pytest

from proxy.lanes import Lane
from proxy.steps import Steps
from proxy.turns import Turns


def noting(name: str, seen: list[str], steps: int = 3) -> Steps[str]:
    for _ in range(steps):
        seen.append(name)
        yield
    return name


def failing() -> Steps[str]:
    yield
    raise ValueError("the third act")


def test_one_after_the_other_each_principal_in_turn() -> None:
    async def main() -> list[str]:
        lane, seen = Lane(Turns(asyncio.get_running_loop())), list[str]()
        works = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]
        done = await asyncio.gather(*(lane.run(who, noting(name, seen)) for who, name in works))
        assert list(done) == [name for _, name in works]
        assert [seen[at : at + 3] for at in range(0, len(seen), 3)] == [
            [name] * 3 for name in seen[::3]
        ], "never two at once"
        return seen[::3]

    assert asyncio.run(main()) == ["a1", "a2", "b1", "c1", "a3"]


def test_one_that_fails_does_not_stop_the_next() -> None:
    async def main() -> None:
        lane, seen = Lane(Turns(asyncio.get_running_loop())), list[str]()
        first = asyncio.ensure_future(lane.run("a", failing()))
        second = asyncio.ensure_future(lane.run("a", noting("next", seen)))
        with pytest.raises(ValueError, match="the third act"):
            await first
        assert await second == "next"
        assert await lane.run("b", noting("last", seen)) == "last", "and it is idle again"

    asyncio.run(main())


def test_one_that_was_closed_is_passed_over() -> None:
    async def main() -> None:
        lane, seen = Lane(Turns(asyncio.get_running_loop())), list[str]()
        closed = noting("closed", seen)
        first = asyncio.ensure_future(lane.run("a", noting("first", seen)))
        second = asyncio.ensure_future(lane.run("b", closed))
        third = asyncio.ensure_future(lane.run("c", noting("third", seen)))
        closed.close()
        assert [await first, await second, await third] == ["first", None, "third"]
        assert "closed" not in seen

    asyncio.run(main())
