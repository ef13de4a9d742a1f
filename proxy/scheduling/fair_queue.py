"""Fair queue: first in, first out within a principal, round robin among principals."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Things of several principals: those of one in their order, the principals in turn."""

    def __init__(self) -> None:
        self._things: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._things)

    def add(self, who: str, thing: T) -> None:
        """Put something in, at the end of what is `who`'s."""
        self._things.setdefault(who, deque()).append(thing)

    def take(self, fits: Callable[[str, T], bool] = lambda _, __: True) -> tuple[str, T] | None:
        """Take out what is next of the first principal for whom it `fits`; None: for nobody."""
        for who, things in self._things.items():
            if fits(who, things[0]):
                thing = things.popleft()
                del self._things[who]
                if things:
                    self._things[who] = things  # behind all others
                return who, thing
        return None
