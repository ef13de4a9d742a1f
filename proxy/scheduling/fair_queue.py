"""Fair queue: first in, first out within a principal, round robin among principals."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Queue of items of several principals: each principal's in their order, the principals in
    turn."""

    def __init__(self) -> None:
        self._things: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._things)

    def add(self, who: str, thing: T) -> None:
        """Append an item to those of the principal `who`."""
        self._things.setdefault(who, deque()).append(thing)

    def take(self, fits: Callable[[str, T], bool] = lambda _, __: True) -> tuple[str, T] | None:
        """Remove and return the first item of the first principal for which `fits`; None if none
        does."""
        for who, things in self._things.items():
            if fits(who, things[0]):
                thing = things.popleft()
                del self._things[who]
                if things:
                    self._things[who] = things  # now the last principal in turn
                return who, thing
        return None
