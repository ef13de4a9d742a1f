"""Long work that is pure: a generator that yields after each small step, and returns the result.

Whoever runs it decides what happens between the steps: nothing (`finish`), or a turn of the event
loop (`proxy.turns`). A step takes some tens of microseconds, whatever is asked for.
"""

from collections.abc import Generator
from typing import Final, TypeVar

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
