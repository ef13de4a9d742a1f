"""Long works of which one is under way at a time, so that they need the memory of one."""

import asyncio

from proxy.steps import Deliberation, Steps, T
from proxy.turns import Turns
from proxy.turnwise import Turnwise


class Lane:
    """Does the works of one event loop, each principal's in its turn."""

    __slots__ = ("_is_busy", "_turns", "_waiting")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
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
        self._lanes = Lane(turns), Lane(turns)

    async def run(self, deliberation: Deliberation) -> object:
        """Have it done; return its result."""
        return await self._lanes[deliberation.is_long].run(deliberation.who, deliberation.steps)
