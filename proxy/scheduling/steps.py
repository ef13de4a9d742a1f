"""Steps of a long computation, and its task on behalf of a connection.

Steps are a generator that yields after each, and returns the result. `in_steps` of
`proxy.scheduling.stepped_thread` makes them of a plain function, and
`proxy.worker.work_queues` runs them between iterations of the event loop.
"""

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from time import perf_counter_ns
from typing import Any, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def timed(
    steps: Steps[T], took: Callable[[int], object], clock: Callable[[], int] = perf_counter_ns
) -> Steps[T]:
    """Run `steps`, and call `took` after each with its duration in units of `clock`."""
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
    """Long computation on behalf of a connection, with a callback for its result."""

    __slots__ = ("_then", "principal", "size", "steps")

    def __init__(
        self, principal: str, steps: Steps[Any], then: Callable[[Any, float], None], *, size: int
    ) -> None:
        """Call `then(result, now)` at the end. `size` is the length in bytes of the request or
        response."""
        self.principal = principal
        self.steps = steps
        self.size = size
        self._then: Callable[[Any, float], None] | None = then

    def done(self, result: Any, now: float) -> None:
        """Pass the result to the callback, unless the task was dropped."""
        then, self._then = self._then, None
        if then is not None:
            then(result, now)

    def drop(self) -> None:
        """Stop the computation, and release everything that it refers to."""
        self._then = None
        # Like `close`; but in Python 3.12 and 3.13 a generator that never started keeps its
        # arguments when it is closed
        with suppress(GeneratorExit, StopIteration):
            self.steps.throw(GeneratorExit)
