"""Memory budget of long requests for all connections of a worker; pure.

Laws: of one principal there is one at a time; of all of them there are as many as fit, and always
one, however long. Who waits is let in as soon as there is room, each principal in its turn.
"""

from collections.abc import Callable
from typing import Final

from proxy.scheduling.fair_queue import FairQueue

LONG_BYTES: Final = 1_048_576
"""Bytes from which on a request needs room: all that clients send in their daily work is below."""
MAX_BYTES: Final = 134_217_728
"""Of all of them: one of the longest that Kafka takes (`socket.request.max.bytes`), and some."""
LONG_BYTES_UNAUTHENTICATED: Final = 16_384
"""The same for clients that are not known yet: most of them send a tenth of it to log in."""
MAX_BYTES_UNAUTHENTICATED: Final = 67_108_864
"""Of all of theirs, on one listener: with 512 KiB each, a thousand would have it killed."""
WAIT_SECONDS: Final = 30.0
"""Seconds that a client may take to send such a request, and to take the answers before it, while
others wait for room: Kafka's own clients wait no longer (`request.timeout.ms`)."""


class MemoryBudget:
    """The room of one worker."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = most_bytes
        self._taken: dict[str, int] = {}
        """Bytes, by principal."""
        self._waiting = FairQueue[tuple[int, Callable[[], None]]]()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def take(self, who: str, size: int) -> bool:
        """Take room for a request of `size` bytes, if there is."""
        if not self._fits(who, size):
            return False
        self._taken[who] = size
        return True

    def wait(self, who: str, size: int, found: Callable[[], None]) -> None:
        """Take room when there is; `found` is told, perhaps at once."""
        self._waiting.add(who, (size, found))
        self._let_in()

    def give_back(self, who: str) -> None:
        """Take no room any more."""
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
