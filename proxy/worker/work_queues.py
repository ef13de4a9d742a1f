"""Queues of long work: one job of a kind at a time, to bound memory.

Shorter jobs, which need little memory, do not wait for jobs that take seconds.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Final

from proxy.connection.long_work import MAX_AT_ONCE
from proxy.scheduling.memory_budget import LONG_BYTES, FairQueue
from proxy.scheduling.steps import LongTask, Steps, T

SLICE_SECONDS: Final = 0.000_1
"""Time in seconds that long work adds to each iteration of the event loop."""


class TimeSlices:
    """Long tasks of one event loop, and callbacks that wait for their turn."""

    __slots__ = ("_loop", "_tasks", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks = deque[tuple[Steps[Any], asyncio.Future[Any]]]()
        self._waiting = FairQueue[Callable[[], None]]()

    def wait(self, principal: str, callback: Callable[[], None]) -> None:
        """Call `callback` in a later iteration of the loop: one callback per iteration, the
        principals in turn."""
        if not self._waiting:
            self._loop.call_soon(self._call_next)
        self._waiting.add(principal, callback)

    def _call_next(self) -> None:
        waiting = self._waiting.take()
        if self._waiting:
            self._loop.call_soon(self._call_next)
        if waiting is not None:
            _, callback = waiting
            callback()

    def run(self, steps: Steps[T]) -> "asyncio.Future[T]":
        """Schedule the task, and return the future of its result; cancelling it drops the task."""
        result: asyncio.Future[T] = self._loop.create_future()
        self._tasks.append((steps, result))
        if len(self._tasks) == 1:
            self._loop.call_soon(self._run_slice)
        return result

    def _run_slice(self) -> None:
        steps, result = self._tasks[0]
        over = result.cancelled() or _is_done(steps, result)
        self._tasks.popleft()
        if not over:
            self._tasks.append((steps, result))
        if self._tasks:
            self._loop.call_soon(self._run_slice)


def _is_done(steps: Steps[T], result: "asyncio.Future[T]") -> bool:
    """Run one slice; return True if the task is done and `result` is set."""
    until = perf_counter() + SLICE_SECONDS
    try:
        while perf_counter() < until:
            next(steps)
    except StopIteration as done:
        result.set_result(done.value)
    except Exception as error:
        result.set_exception(error)
    else:
        return False
    return True


NEVER: Final = 2**30
"""Number of collections of young objects before one of all objects: practically never."""
MAX_SHORT: Final = 8
"""Largest number of short jobs that run at a time, each in a thread."""


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Limit Python's cycle collector to young objects.

    A decoded long message is hundreds of thousands of objects without a cycle. Examining all of
    them costs up to a tenth of a second, and happens several times while their number grows.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        if gc.get_count()[2] > old:  # or one long job after the other would prevent it forever
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
