"""Fair scheduling of long work on the event loop, one time slice per turn.

Threads would not do: the loop releases the interpreter lock at each socket that it reads, and would
wait to get it back, up to the switch interval, many times per turn. A slice delays a turn once. If
there are several tasks, one of them has a slice in each turn, so turns do not become longer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from proxy.scheduling.fair_queue import FairQueue
from proxy.scheduling.steps import Steps, T

SLICE_SECONDS: Final = 0.000_1
"""Time in seconds that long work adds to each turn of the event loop."""


class TimeSlices:
    """Long tasks of one event loop, and callbacks that wait for a turn of it."""

    __slots__ = ("_loop", "_waiting", "_works")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._works = deque[tuple[Steps[Any], asyncio.Future[Any]]]()
        self._waiting = FairQueue[Callable[[], None]]()

    def wait(self, who: str, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn of the loop: one callback per turn, the principals in
        turn."""
        if not self._waiting:
            self._loop.call_soon(self._next_goes_on)
        self._waiting.add(who, go_on)

    def _next_goes_on(self) -> None:
        next_one = self._waiting.take()
        if self._waiting:
            self._loop.call_soon(self._next_goes_on)
        if next_one is not None:
            next_one[1]()

    def run(self, steps: Steps[T]) -> "asyncio.Future[T]":
        """Schedule the task, and return the future of its result; cancelling it drops the task."""
        result: asyncio.Future[T] = self._loop.create_future()
        self._works.append((steps, result))
        if len(self._works) == 1:
            self._loop.call_soon(self._turn)
        return result

    def _turn(self) -> None:
        steps, result = self._works[0]
        over = result.cancelled() or _is_done(steps, result)
        self._works.popleft()
        if not over:
            self._works.append((steps, result))
        if self._works:
            self._loop.call_soon(self._turn)


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
