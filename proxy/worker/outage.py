"""Outage of one broker: which clients are held meanwhile, and how they go on.

Rules:

- Held clients do not dial; one probe does, with back-off, until it connects or no client is held.
- At most `MAX_HELD` clients are held, `MAX_HELD_PER_ADDRESS` of them from one address (IPv6: /64).
- When the broker is back they go on, the addresses in turn, at most `RESUMED_AT_ONCE` of them at a
  time: a broker that has just started is not met by all of its clients at once.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from proxy.quota.model import address_group
from proxy.worker.login_slots import Slots

K = TypeVar("K")

MAX_HELD: Final = 1_024
"""Maximum number of clients of one broker that a worker holds; it closes others at once."""
MAX_HELD_PER_ADDRESS: Final = 512
"""Maximum number of them from one address, which may be that of a load balancer."""
RESUMED_AT_ONCE: Final = 16
"""Maximum number of clients that connect to the broker at once after an outage."""
SUSPECT_SECONDS: Final = 2.0
"""Seconds after which a broker that has not accepted a connection counts as down. A lost SYN
is sent again after one second (RFC 6298 section 2.1)."""


class Outage(Slots[K]):
    """Places of the clients of one broker, none of which is taken until the broker is back."""

    def __init__(self) -> None:
        # No client that goes on loses its place: a dial has a time limit of its own
        super().__init__(0)
        self.is_over = True
        """True if the broker could be reached, or no client waits for it."""

    def begin(self) -> None:
        """The broker cannot be reached."""
        self.is_over, self.limit = False, 0

    def end(self) -> None:
        """The broker can be reached, or no client waits for it: held clients go on."""
        self.is_over, self.limit = True, RESUMED_AT_ONCE
        self._hand_out()

    @property
    def is_awaited(self) -> bool:
        """True if clients are held."""
        return bool(self._waiting)

    @property
    def is_forgotten(self) -> bool:
        """True if no client is held, or goes on after it was."""
        return not self._owners

    def resumes(self, key: K) -> bool:
        """Return whether a client goes on after it was held."""
        return key in self._holders

    def hold(self, key: K, address: str, go: Callable[[], None]) -> bool:
        """Call `go` when the client may go on; return False if too many are held already."""
        self.release(key)
        owner = address_group(address)
        held = len(self._waiting.get(owner, ()))
        if len(self._owners) >= MAX_HELD or held >= MAX_HELD_PER_ADDRESS:
            return False
        self.acquire(key, owner, go)
        return True
