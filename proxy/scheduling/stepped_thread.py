"""Stepped thread: a function that runs in a thread, only while the event loop waits for it.

The two threads never run at the same time, so they share data without locks, and the interpreter
lock is handed over twice per step, not at each socket that the event loop reads (see
`proxy.worker.work_queues`). Long functions call `pause` regularly; on other threads it has no
effect.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, Final, TypeVar

from proxy.errors import ProxyError
from proxy.scheduling.steps import Steps

T = TypeVar("T")

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


def pausing(items: Iterable[T], *, values: int = 0) -> Iterator[T]:
    """Iterate over `items`, each of which takes about a microsecond, with pauses.

    `values` is the number of values that are created per item. Raises TooManyValuesError.
    """
    if _here.work is None:
        return iter(items)
    return _pausing(items, (MASK + 1) * values)


def free_in_steps(items: list[Any]) -> None:
    """Register a list whose items are to be freed in steps when the work is over.

    Freeing some hundred thousand objects at once takes tens of milliseconds. Does nothing if the
    work does not run in steps.
    """
    work = _here.work
    if work is not None:
        work.made.append(items)


def _pausing(items: Iterable[T], values: int) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number & MASK:
            pause(values)
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
