"""Memory budget of long requests for all connections of a worker; pure.

Rules: a principal has at most one long request in memory at a time; all principals together have as
many as fit, and always at least one, however long it is. Requests that wait are admitted as soon as
there is memory, the principals in turn.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

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


LONG_BYTES: Final = 1_048_576
"""Size in bytes from which a request must reserve memory. Usual requests are shorter."""
MAX_BYTES: Final = 134_217_728
"""Maximum size in bytes of all long requests together: one of the longest that Kafka accepts
(`socket.request.max.bytes`), and a reserve."""
LONG_BYTES_UNAUTHENTICATED: Final = 8_192
"""`LONG_BYTES` for unauthenticated clients, in bytes. Most logins need a fifth of it."""
MAX_BYTES_UNAUTHENTICATED: Final = 67_108_864
"""`MAX_BYTES` for the unauthenticated clients of one listener, in bytes. Without it, a thousand of
them with 512 KiB each would exhaust the memory."""
WAIT_SECONDS: Final = 30.0
"""Time in seconds that a client may take to send a long request, and to read the responses before
it, while others wait for memory. Kafka's own clients wait no longer (`request.timeout.ms`)."""


class MemoryBudget:
    """Memory that the long requests of one worker may use together."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._taken: dict[str, int] = {}
        """Bytes that are reserved, by principal."""
        self._waiting = FairQueue[tuple[int, Callable[[], None]]]()

    @property
    def is_wanted(self) -> bool:
        """True while a request waits for memory."""
        return bool(self._waiting)

    def take(self, principal: str, size: int) -> bool:
        """Reserve `size` bytes for a request; return False if they are not available."""
        if not self._fits(principal, size):
            return False
        self._taken[principal] = size
        return True

    def wait(self, principal: str, size: int, reserved: Callable[[], None]) -> None:
        """Reserve `size` bytes as soon as they are available, possibly at once, then call
        `reserved`."""
        self._waiting.add(principal, (size, reserved))
        self._admit()

    def release(self, principal: str) -> None:
        """Release the reservation of a principal."""
        del self._taken[principal]
        self._admit()

    def _fits(self, principal: str, size: int) -> bool:
        taken = self._taken
        return not taken or (
            principal not in taken and sum(taken.values()) + size <= self._max_bytes
        )

    def _admit(self) -> None:
        while (
            waiting := self._waiting.take(lambda principal, one: self._fits(principal, one[0]))
        ) is not None:
            principal, (size, reserved) = waiting
            self._taken[principal] = size
            reserved()
