"""Fair scheduling of long work on the event loop, one time slice per turn.

Not in a thread: the loop gives Python's lock away with each socket that it reads, and would wait
for it, up to the switch interval, many times in a turn. A slice is waited for once. If there are
several works, one of them has its slice in a turn, so that the turn is no longer for all of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from proxy.scheduling.fair_queue import FairQueue
from proxy.scheduling.steps import Steps, T

SLICE_SECONDS: Final = 0.000_1
"""By which a turn of the loop is longer while there is work."""


class TimeSlices:
    """The works of one event loop, and who waits for a turn of it."""

    __slots__ = ("_loop", "_waiting", "_works")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._works = deque[tuple[Steps[Any], asyncio.Future[Any]]]()
        self._waiting = FairQueue[Callable[[], None]]()

    def wait(self, who: str, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a turn to come: one of all in each, the principals in turn."""
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
        """Have it done; a work whose result nobody awaits any more is given up."""
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
    """Do a slice of it."""
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
