"""Long works of which one is under way at a time, so that they need the memory of one."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from proxy.steps import Deliberation, Steps, T
from proxy.turns import Turns
from proxy.turnwise import Turnwise

NEVER: Final = 2**30
"""Of younger collections before one of all objects."""


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Have Python's collector look for cycles among young objects alone.

    A long message is hundreds of thousands of objects without a cycle. To look through all of them
    takes up to a tenth of a second, and as they grow in number it is done several times.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        if gc.get_count()[2] > old:  # as long works may follow one another without a break
            gc.collect()


class Lane:
    """Does the works of one event loop, each principal's in its turn."""

    __slots__ = ("_during", "_is_busy", "_turns", "_waiting")

    def __init__(
        self, turns: Turns, during: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`during()` is entered for each work, when its turn has come."""
        self._turns = turns
        self._during = during
        self._waiting = Turnwise[asyncio.Future[None]]()
        self._is_busy = False

    async def run(self, who: str, steps: Steps[T]) -> T:
        """Have it done; None if it was closed meanwhile."""
        if self._is_busy:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.add(who, turn)
            await turn
        self._is_busy = True
        try:
            with self._during():
                return await self._turns.run(steps)
        finally:
            self._next()

    def _next(self) -> None:
        waiting = self._waiting.take()
        if waiting is None:
            self._is_busy = False
        else:
            waiting[1].set_result(None)


class Lanes:
    """A worker's lanes: the longest works have one of their own, and delay no other."""

    __slots__ = ("_lanes",)

    def __init__(self, turns: Turns) -> None:
        self._lanes = Lane(turns), Lane(turns, old_objects_left_alone)

    async def run(self, deliberation: Deliberation) -> object:
        """Have it done; return its result."""
        return await self._lanes[deliberation.is_long].run(deliberation.who, deliberation.steps)
