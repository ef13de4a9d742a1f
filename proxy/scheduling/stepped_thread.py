"""Stepped thread: a plain function run in a thread, only while the event loop waits for it.

The thread runs only while whoever takes the steps waits for it, so the two never run at once: they
may share what they like, and Python's lock changes hands twice in a step, not with each socket
that the event loop reads (see `proxy.scheduling.time_slices`). What takes long calls `pause` now
and then; on any other thread that does nothing.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, Final, TypeVar

from proxy.errors import ProxyError
from proxy.scheduling.steps import MASK, Steps

T = TypeVar("T")

STEP_SECONDS: Final = 0.000_25
"""Of which changing threads and back takes about a thirtieth."""


class TooManyValuesError(ProxyError):
    """A message has more values than its reader was given leave to make."""


class _GivenUp(BaseException):
    """Nobody waits for the result any more: ends the thread."""


class _Here(threading.local):
    work: "_Work | _Count | None" = None


_here: Final = _Here()


def pause(values: int = 0) -> None:
    """Let others go on, if this is done in steps and a step is over.

    `values` that were, or are about to be, made in memory count towards the work's bound.
    Raises TooManyValuesError.
    """
    work = _here.work
    if work is not None:
        work.pause(values)


@contextmanager
def at_most(values: int) -> Iterator[None]:
    """Let what is done at once make so many values; not to be used within steps.

    Raises TooManyValuesError.
    """
    _here.work = _Count(values)
    try:
        yield
    finally:
        _here.work = None


def pausing(items: Iterable[T], *, values: int = 0) -> Iterator[T]:
    """Go through `items`, of which each takes about a microsecond, with pauses.

    Of each, so many `values` are made. Raises TooManyValuesError.
    """
    if _here.work is None:
        return iter(items)
    return _pausing(items, (MASK + 1) * values)


def free_in_steps(items: list[Any]) -> None:
    """Have what will be in the list freed at the end, if this is done in steps, in steps too.

    To free some hundred thousand objects at once takes tens of milliseconds.
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
    """Do `function` in steps of about so many seconds; it may make `max_values` values.

    Raises what it raises. Closed before the end, it ends at its next pause.
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
    """Of values that are made, without any pause."""

    def __init__(self, max_values: int) -> None:
        self.made: list[list[Any]] = []
        self._values_left = max_values

    def pause(self, values: int) -> None:
        """Count them."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooManyValuesError("a message of too many values")


class _Work:
    """Whose turn it is: one of two threads waits for the other at any time."""

    def __init__(self, max_values: int, seconds: float) -> None:
        self._seconds = seconds
        self.is_over = False
        self.made: list[list[Any]] = []
        """Lists of what is freed in steps; those within others come behind them."""
        self._values_left = max_values
        self._given_up = False
        self._until = 0.0
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()

    # For whoever takes the steps

    def step(self) -> None:
        """Have the work go on until it pauses, or is over."""
        self._until = perf_counter() + self._seconds
        self._go.release()
        self._back.acquire()

    def give_up(self) -> None:
        """Have the work end at its next pause; it is not waited for."""
        if not self.is_over and not self._given_up:
            self._given_up = True
            self._go.release()

    # For the work

    def begin(self) -> None:
        """Wait for the first step."""
        _here.work = self
        self._wait()

    def pause(self, values: int) -> None:
        """Wait for the next step if this one is over."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooManyValuesError("a message of too many values")
        self._pause_if_due()

    def free(self) -> None:
        """Empty the lists of what was made."""
        for items in self.made:
            while items:
                del items[-MASK - 1 :]
                if not self._given_up:
                    with suppress(_GivenUp):
                        self._pause_if_due()

    def end(self) -> None:
        """Say that the work is over."""
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
