"""Queues of long work: one job of a kind at a time, to bound memory.

Shorter jobs, which need little memory, do not wait for jobs that take seconds.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from proxy.connection.long_work import MAX_AT_ONCE
from proxy.scheduling.fair_queue import FairQueue
from proxy.scheduling.memory_budget import LONG_BYTES
from proxy.scheduling.steps import LongTask, Steps, T
from proxy.scheduling.time_slices import TimeSlices

NEVER: Final = 2**30
"""Number of collections of young objects before one of all objects: practically never."""
MAX_SHORT: Final = 8
"""Largest number of short jobs that run at a time, each in a thread."""


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Have Python's cycle collector examine young objects only.

    A decoded long message is hundreds of thousands of objects without a cycle. To examine all of
    them takes up to a tenth of a second, and happens several times while their number grows.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        if gc.get_count()[2] > old:  # or one long job after the other would prevent it for ever
            gc.collect()


class WorkQueue:
    """Queue of long jobs of one event loop, in rotation by principal."""

    __slots__ = ("_during", "_time_slices", "_under_way", "_waiting", "_width")

    def __init__(
        self,
        turns: TimeSlices,
        during: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        width: int = 1,
    ) -> None:
        """Run jobs in `time_slices`.

        `during()` is entered when a job begins. `width` is the largest number of jobs that run at
        a time, at most one of each principal.
        """
        self._time_slices = turns
        self._during = during
        self._width = width
        self._waiting = FairQueue[asyncio.Future[None]]()
        self._under_way: set[str] = set()

    async def run(self, principal: str, steps: Steps[T]) -> T:
        """Run the steps when it is the principal's turn; return their result."""
        if principal in self._under_way or len(self._under_way) == self._width:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.add(principal, turn)
            await turn
        self._under_way.add(principal)
        try:
            with self._during():
                return await self._time_slices.run(steps)
        finally:
            self._next(principal)

    def _next(self, done: str) -> None:
        self._under_way.discard(done)
        waiting = self._waiting.take(lambda principal, _: principal not in self._under_way)
        if waiting is not None:
            principal, turn = waiting
            self._under_way.add(principal)
            turn.set_result(None)


class WorkQueues:
    """Queues of a worker: the longest jobs have a queue of their own, and delay no others."""

    __slots__ = ("_long", "_longest", "_short", "time_slices")

    def __init__(self, turns: TimeSlices) -> None:
        self.time_slices = turns
        self._short = WorkQueue(turns, width=MAX_SHORT)
        self._long = WorkQueue(turns)
        self._longest = WorkQueue(turns, old_objects_left_alone)

    async def run(self, long_task: LongTask) -> object:
        """Run a job; return its result."""
        size = long_task.size
        queue = self._short if size <= MAX_AT_ONCE else self._long
        if size >= LONG_BYTES:
            queue = self._longest
        return await queue.run(long_task.principal, long_task.steps)
