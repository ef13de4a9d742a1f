"""Steps of a long computation, and its task on behalf of a connection.

Steps are a generator that yields after each, and returns the result. `proxy.worker.work_queues`
runs them between iterations of the event loop.

`in_steps` makes them of a plain function: a thread runs it, only while the event loop waits for it.
The two threads never run at the same time, so they share data without locks, and the interpreter
lock is handed over twice per step, not at each socket that the event loop reads. Long functions
call `pause` regularly; on other threads it has no effect.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from time import perf_counter, perf_counter_ns
from typing import Any, Final, TypeVar

from proxy.errors import ProxyError

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


MASK: Final = 31
"""Mask of a loop counter: loops whose rounds take about a microsecond pause whenever `counter &
MASK` is 0, so once in 32 rounds."""
STEP_SECONDS: Final = 0.000_25
"""Length of a step in seconds. The two thread switches take about a thirtieth of it."""


class TooManyValuesError(ProxyError):
    """A message has more values than its reader may create."""


class _GivenUp(BaseException):
    """Raised in the thread to end work whose result is no longer needed."""


class _Here(threading.local):
    work: "_Work | _Count | None" = None


_here: Final = _Here()


def pause(values: int = 0) -> None:
    """Return to the event loop if this runs in steps and the current step is over.

    `values` is the number of values that were created, or are about to be; it counts towards the
    work's bound. Raises TooManyValuesError.
    """
    work = _here.work
    if work is not None:
        work.pause(values)


@contextmanager
def at_most(values: int) -> Iterator[None]:
    """Bound the number of values that the body may create; not to be used within steps.

    Raises TooManyValuesError.
    """
    _here.work = _Count(values)
    try:
        yield
    finally:
        _here.work = None


def pausing(items: Iterable[T]) -> Iterator[T]:
    """Iterate over `items`, each of which takes about a microsecond, with pauses."""
    return iter(items) if _here.work is None else _pausing(items)


def free_in_steps(items: list[Any]) -> None:
    """Register a list whose items are to be freed in steps when the work is over.

    Freeing some hundred thousand objects at once takes tens of milliseconds. Does nothing if the
    work does not run in steps.
    """
    work = _here.work
    if work is not None:
        work.made.append(items)


def _pausing(items: Iterable[T]) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number & MASK:
            pause()
        yield item


def in_steps(
    function: Callable[[], T], *, max_values: int, seconds: float = STEP_SECONDS
) -> Steps[T]:
    """Run `function` in steps of about `seconds` each; it may create `max_values` values.

    Raises what the function raises. If the generator is closed early, the function ends at its next
    pause.
    """
    work = _Work(max_values, seconds)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work.begin()
            results.append(function())
        except _GivenUp:
            pass
        except BaseException as error:
            errors.append(error)
        work.free()
        work.end()

    threading.Thread(target=run, name="in-steps", daemon=True).start()
    try:
        while True:
            work.step()
            if work.is_over:
                break
            yield
    finally:
        work.give_up()
    if errors:
        raise errors.pop()
    return results.pop()


class _Count:
    """Bound on the values that are created by work that does not pause."""

    def __init__(self, max_values: int) -> None:
        self.made: list[list[Any]] = []
        self._values_left = max_values

    def pause(self, values: int) -> None:
        """Count the values. Raises TooManyValuesError."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooManyValuesError("a message of too many values")


class _Work:
    """Work in steps: the hand-over between two threads, exactly one of which runs at any time."""

    def __init__(self, max_values: int, seconds: float) -> None:
        self._seconds = seconds
        self.is_over = False
        self.made: list[list[Any]] = []
        """Lists that are freed in steps; nested lists come after the ones that contain them."""
        self._values_left = max_values
        self._given_up = False
        self._until = 0.0
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()

    # Called by the thread that waits for the steps

    def step(self) -> None:
        """Run the work until it pauses or is over."""
        self._until = perf_counter() + self._seconds
        self._go.release()
        self._back.acquire()

    def give_up(self) -> None:
        """Make the work end at its next pause, without waiting for it."""
        if not self.is_over and not self._given_up:
            self._given_up = True
            self._go.release()

    # Called by the thread that does the work

    def begin(self) -> None:
        """Wait for the first step."""
        _here.work = self
        self._wait()

    def pause(self, values: int) -> None:
        """Wait for the next step if the current one is over. Raises TooManyValuesError."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooManyValuesError("a message of too many values")
        self._pause_if_due()

    def free(self) -> None:
        """Empty the registered lists in steps."""
        for items in self.made:
            while items:
                del items[-MASK - 1 :]
                if not self._given_up:
                    with suppress(_GivenUp):
                        self._pause_if_due()

    def end(self) -> None:
        """Mark the work as over, and wake the thread that waits for the steps."""
        self.is_over = True
        self._back.release()

    def _pause_if_due(self) -> None:
        if perf_counter() >= self._until:
            self._back.release()
            self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        if self._given_up:
            raise _GivenUp
