"""Slots that clients share in turns: for relayed logins, TLS handshakes, and waits for a broker.

Rules:

- At most `limit` are open at once. Other clients wait for a slot; owners (addresses or principals)
  take turns, and each owner's clients keep their order.
- While a login waits, a slot is taken from a client that has been silent in its login for
  `SILENCE_SECONDS`: of the owner with most slots, the client that has been silent longest. An owner
  never loses a slot to one that has more.
- Clients are examined at most once in `LOOK_SECONDS`, however many logins arrive, and only after
  the data that they have sent was read: a client must not look silent because the proxy was busy.
- While a broker is down, held clients do not dial; one probe does, with back-off, until it connects
  or no client is held. At most `MAX_HELD` clients are held, `MAX_HELD_PER_ADDRESS` of them from one
  address (IPv6: /64). When the broker is back they resume, `RESUMED_AT_ONCE` at a time: a broker
  that has just started must not meet all of its clients at once."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from proxy.quota.model import address_group

SILENCE_SECONDS: Final = 1.0
"""A client that is silent for less is left alone: it may be far away, or busy with its proof."""
LOOK_SECONDS: Final = 0.25
"""Interval between two examinations of the clients that have slots."""
READ_SECONDS: Final = 0.001
"""Delay of an examination in seconds: in libuv, a timer that is set now runs when the sockets that
are readable now have been read."""

K = TypeVar("K")


class Slots(Generic[K]):
    """Slots that owners share in turns, each taken by a key (a client) until it is released."""

    def __init__(self, limit: int) -> None:
        """Create `limit` free slots."""
        self.limit = limit
        self._owners: dict[K, str] = {}
        """The owner of each key that has a slot, or waits for one."""
        self._holders = set[K]()
        """The keys that have a slot."""
        self._taken = Counter[str]()
        """Number of slots of each owner that has any."""
        self._waiting: dict[str, dict[K, Callable[[], None]]] = {}
        """The function that continues each waiting client, by key, by owner, in their turns."""

    @property
    def taken(self) -> int:
        """Number of slots that are taken."""
        return len(self._holders)

    @property
    def is_idle(self) -> bool:
        """True if no slot is taken or awaited."""
        return not self._owners

    def acquire(self, key: K, owner: str, go: Callable[[], None]) -> None:
        """Call `go` when `key` has a slot, which may be at once."""
        self._owners[key] = owner
        self._waiting.setdefault(owner, {})[key] = go
        self._hand_out()

    def release(self, key: K) -> None:
        """Free the slot of `key`, or stop waiting for one; again has no effect."""
        if key in self._holders:
            self._free(key)
            self._hand_out()
        elif (owner := self._owners.pop(key, None)) is not None:
            del self._waiting[owner][key]
            if not self._waiting[owner]:
                del self._waiting[owner]

    def _free(self, key: K) -> None:
        owner = self._owners.pop(key)
        self._holders.remove(key)
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]

    def _hand_out(self) -> None:
        while self._waiting and len(self._holders) < self.limit:
            self._serve(next(iter(self._waiting)))

    def _serve(self, owner: str) -> None:
        waiting = self._waiting.pop(owner)
        key = next(iter(waiting))
        go = waiting.pop(key)
        if waiting:
            self._waiting[owner] = waiting  # now the last in turn
        self._holders.add(key)
        self._taken[owner] += 1
        go()


class LoginSlots(Slots[K]):
    """Slots for logins, which are taken from silent clients while others wait."""

    def __init__(
        self,
        limit: int,
        *,
        silence: Callable[[K], float],
        displace: Callable[[K], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Create `limit` free slots.

        `silence` returns for how many seconds a client that has a slot has kept its login waiting;
        0 while the login waits for anything else. `displace` is called with a client that has lost
        its slot. `call_later` calls a function after a delay in seconds.
        """
        super().__init__(limit)
        self._silence = silence
        self._displace = displace
        self._call_later = call_later
        self._is_resting = False
        """True if the clients were examined less than `LOOK_SECONDS` ago."""

    def acquire(self, key: K, owner: str, go: Callable[[], None]) -> None:
        """Call `go` when `key` has a slot, which may be at once."""
        super().acquire(key, owner, go)
        self._look()

    def _look(self) -> None:
        """Examine the clients soon if a login waits, but only once in `LOOK_SECONDS`."""
        if self._waiting and not self._is_resting:
            self._is_resting = True
            self._call_later(READ_SECONDS, self._reclaim)
            self._call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._is_resting = False
        self._look()

    def _reclaim(self) -> None:
        turns = deque(self._waiting)
        for has, _, key in self._silent():
            loser = self._owners[key]
            while turns and turns[0] != loser and self._taken[turns[0]] > has:
                turns.popleft()
            if not turns:
                return
            owner = turns.popleft()
            self._free(key)
            self._serve(owner)
            if owner in self._waiting:
                turns.append(owner)
            self._displace(key)

    def _silent(self) -> list[tuple[int, float, K]]:
        """Return the silent clients in the order in which they lose their slots: each with the
        number of slots that its owner has by then, and the seconds of its silence."""
        silent: dict[str, list[tuple[float, K]]] = {}
        for key in self._holders:
            if (seconds := self._silence(key)) >= SILENCE_SECONDS:
                silent.setdefault(self._owners[key], []).append((seconds, key))
        found = []
        for owner, clients in silent.items():
            clients.sort(key=lambda client: client[0], reverse=True)
            has = self._taken[owner]
            found += [(has - lost, *client) for lost, client in enumerate(clients)]
        found.sort(key=lambda client: client[:2], reverse=True)
        return found


class Pace(Slots[object]):
    """Turns to connect to one broker, evenly spaced; owners take turns.

    A broker that counts per second would also count the end of one burst and the next one, since
    connections do not take equally long to arrive.
    """

    def __init__(self, rate: int, workers: int, call_later: Callable[..., object]) -> None:
        """Grant this worker's share of `rate` turns per second."""
        super().__init__(1)
        self._seconds = workers / rate
        self._call_later = call_later

    def acquire(self, key: object, owner: str, go: Callable[[], None]) -> None:
        """Call `go` when it is the turn of `key`, which may be at once."""
        super().acquire(key, owner, lambda: self._begin(key, go))

    def _begin(self, key: object, go: Callable[[], None]) -> None:
        """Hand the slot of `key` to its turn, which only time ends."""
        turn = object()
        self._owners[turn] = self._owners.pop(key)
        self._holders.remove(key)
        self._holders.add(turn)
        self._call_later(self._seconds, self.release, turn)
        go()


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
    """Places of the clients of one broker; no place is handed out until the broker is back."""

    def __init__(self) -> None:
        # A resuming client never loses its place: a dial has a time limit of its own
        super().__init__(0)
        self.is_over = True
        """True if the broker could be reached, or no client waits for it."""

    def begin(self) -> None:
        """Mark the broker as unreachable."""
        self.is_over, self.limit = False, 0

    def end(self) -> None:
        """Resume held clients: the broker can be reached, or no client waits for it."""
        self.is_over, self.limit = True, RESUMED_AT_ONCE
        self._hand_out()

    @property
    def is_awaited(self) -> bool:
        """True if clients are held."""
        return bool(self._waiting)

    def resumes(self, key: K) -> bool:
        """Return whether a client is resuming after a hold."""
        return key in self._holders

    def hold(self, key: K, address: str, go: Callable[[], None]) -> bool:
        """Call `go` when the client may resume; return False if too many are held already."""
        self.release(key)
        owner = address_group(address)
        held = len(self._waiting.get(owner, ()))
        if len(self._owners) >= MAX_HELD or held >= MAX_HELD_PER_ADDRESS:
            return False
        self.acquire(key, owner, go)
        return True
