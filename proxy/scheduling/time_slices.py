"""Fair scheduling of long work on the event loop, one time slice per iteration.

A slice delays an iteration once. If there are several tasks, each iteration has a slice of one of
them, so iterations do not become longer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from proxy.scheduling.fair_queue import FairQueue
from proxy.scheduling.steps import Steps, T

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
