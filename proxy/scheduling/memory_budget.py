"""Memory budget of long requests for all connections of a worker; pure.

Laws: a principal has at most one long request in memory at a time; all principals together have as
many as fit, and always at least one, however long it is. Requests that wait are admitted as soon as
there is memory, the principals in turn.
"""

from collections.abc import Callable
from typing import Final

from proxy.scheduling.fair_queue import FairQueue

LONG_BYTES: Final = 1_048_576
"""Size in bytes from which a request must reserve memory. Everyday requests are shorter."""
MAX_BYTES: Final = 134_217_728
"""Bound in bytes of all long requests together: one of the longest that Kafka accepts
(`socket.request.max.bytes`), and a reserve."""
LONG_BYTES_UNAUTHENTICATED: Final = 16_384
"""`LONG_BYTES` for unauthenticated clients, in bytes. Most logins need a tenth of it."""
MAX_BYTES_UNAUTHENTICATED: Final = 67_108_864
"""`MAX_BYTES` for the unauthenticated clients of one listener, in bytes. Without it, a thousand of
them with 512 KiB each would exhaust the memory."""
WAIT_SECONDS: Final = 30.0
"""Time in seconds that a client may take to send a long request, and to read the responses before
it, while others wait for memory. Kafka's own clients wait no longer (`request.timeout.ms`)."""


class MemoryBudget:
    """Memory that the long requests of one worker may use together."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = most_bytes
        self._taken: dict[str, int] = {}
        """Bytes that are reserved, by principal."""
        self._waiting = FairQueue[tuple[int, Callable[[], None]]]()

    @property
    def is_wanted(self) -> bool:
        """True while a request waits for memory."""
        return bool(self._waiting)

    def take(self, who: str, size: int) -> bool:
        """Reserve `size` bytes for a request of `who`; return False if they are not available."""
        if not self._fits(who, size):
            return False
        self._taken[who] = size
        return True

    def wait(self, who: str, size: int, found: Callable[[], None]) -> None:
        """Reserve `size` bytes as soon as they are available, then call `found`, perhaps at
        once."""
        self._waiting.add(who, (size, found))
        self._let_in()

    def give_back(self, who: str) -> None:
        """Release the reservation of `who`."""
        del self._taken[who]
        self._let_in()

    def _fits(self, who: str, size: int) -> bool:
        taken = self._taken
        return not taken or (who not in taken and sum(taken.values()) + size <= self._max_bytes)

    def _let_in(self) -> None:
        while (
            next_one := self._waiting.take(lambda who, one: self._fits(who, one[0]))
        ) is not None:
            who, (size, found) = next_one
            self._taken[who] = size
            found()
