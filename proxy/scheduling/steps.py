"""Stepped computation: a generator that yields after each small step, and returns the result.

Whoever runs it decides what happens between the steps: nothing (`finish`), or a turn of the event
loop (`proxy.scheduling.time_slices`). A step takes some tens of microseconds, whatever is asked
for.
"""

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from time import perf_counter_ns
from typing import Any, Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

MASK: Final = 31
"""Work of about a microsecond each is left after 32 of them: when the number, and this, is 0."""


def finish(steps: Steps[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def timed(
    steps: Steps[T], took: Callable[[int], object], clock: Callable[[], int] = perf_counter_ns
) -> Steps[T]:
    """Take the steps; `took` is told the time, in units of `clock`, that each took."""
    with closing(steps):
        while True:
            began = clock()
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                took(clock() - began)
            yield


class LongTask:
    """Long work on behalf of a connection, and what follows from its result."""

    __slots__ = ("_then", "size", "steps", "who")

    def __init__(
        self, who: str, steps: Steps[Any], then: Callable[[Any, float], None], *, size: int
    ) -> None:
        """`then(result, now)` is told; `size`: bytes of what it is about."""
        self.who = who
        self.steps = steps
        self.size = size
        self._then: Callable[[Any, float], None] | None = then

    def done(self, result: Any, now: float) -> None:
        """The work was done."""
        then, self._then = self._then, None
        if then is not None:
            then(result, now)

    def drop(self) -> None:
        """Nobody is interested any more: end it, and keep nothing of what it was about."""
        self._then = None
        # As `close` does; but in Python 3.12 and 3.13, steps of which none was taken keep what
        # they were given when they are closed
        with suppress(GeneratorExit, StopIteration):
            self.steps.throw(GeneratorExit)
