"""Fair queue: first in, first out within a principal, round robin among principals."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Queue of items of several principals: each principal's in their order, the principals in
    turn."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, principal: str, item: T) -> None:
        """Append an item to those of the principal."""
        self._items.setdefault(principal, deque()).append(item)

    def take(self, fits: Callable[[str, T], bool] = lambda _, __: True) -> tuple[str, T] | None:
        """Remove and return the first item of the first principal for which `fits`; None if none
        does."""
        for principal, items in self._items.items():
            if fits(principal, items[0]):
                item = items.popleft()
                del self._items[principal]
                if items:
                    self._items[principal] = items  # now the last principal in turn
                return principal, item
        return None
