"""Limits on the connections to one broker that relayed logins need.

Rules:

- At most `limit` are open at once; others wait. The waiting take turns by address or principal,
  each in their order.
- Nobody has more than half of them, so that one address, or one principal, that leaves its logins
  unfinished does not keep others from theirs.
"""

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class LoginSlots(Generic[K]):
    """Slots for logins, each taken by a key: a client."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._owners: dict[K, str] = {}
        """The address or principal of each key that has a slot, or waits for one."""
        self._holders = set[K]()
        """The keys that have a slot."""
        self._taken = Counter[str]()
        self._waiting: dict[str, dict[K, Callable[[], None]]] = {}
        """What goes on with a slot, by key, by address or principal, in their turns."""

    @property
    def taken(self) -> int:
        """Number of slots that are taken."""
        return len(self._holders)

    def acquire(self, key: K, owner: str, go: Callable[[], None]) -> None:
        """Call `go` when `key` has a slot, which may be at once."""
        self._owners[key] = owner
        self._waiting.setdefault(owner, {})[key] = go
        self._hand_out()

    def release(self, key: K) -> None:
        """Give a slot back, or wait for none any more; again has no effect."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        if key not in self._holders:
            del self._waiting[owner][key]
            if not self._waiting[owner]:
                del self._waiting[owner]
            return
        self._holders.remove(key)
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        self._hand_out()

    def _hand_out(self) -> None:
        while len(self._holders) < self.limit and (owner := self._next()) is not None:
            waiting = self._waiting.pop(owner)
            key = next(iter(waiting))
            go = waiting.pop(key)
            if waiting:
                self._waiting[owner] = waiting  # now the last in turn
            self._holders.add(key)
            self._taken[owner] += 1
            go()

    def _next(self) -> str | None:
        """Return who is next in turn; None: nobody waits who has not enough already."""
        most = max(1, self.limit // 2)
        return next((owner for owner in self._waiting if self._taken[owner] < most), None)
