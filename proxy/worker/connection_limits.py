"""Connection limits, over all workers together: in total, and by address.

`max.connections` holds for a listener, `max.connections.per.ip` for all of them together, as in
Kafka, and both for the proxy, not for a worker. IPv6 addresses count per /64 (`address_group`), a
single one that has an override by itself. Rules:

- Each word of the shared memory is written by one worker, and read by all. There are no locks: a
  connection is counted before the limit is checked, so of two simultaneous connections for the
  last place, in two workers, both may be refused, but never are both accepted.
- When a listener is full, a new connection evicts the one that has been unauthenticated for
  longest, in any worker; authenticated connections are never evicted. A worker that is asked to
  evict one does so within an iteration of its loop; the place counts as free at once.
- Addresses are counted in a count-min sketch (Cormode and Muthukrishnan, 2005): each has `_HASHES`
  counters, found by a keyed hash, and the smallest of them is its count. So the memory does not
  depend on the number of addresses, no count is ever too low, and clients cannot choose addresses
  that share another's counters. A count is too high if all counters of an address are shared: by
  one connection, with a probability of 0.003 when `max.connections` are open from as many
  addresses.

Time is an argument (`now`, monotonic seconds), and the module has no sockets.
"""

import mmap
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Final, Generic, Protocol, Self, TypeVar

from proxy.connection.commands import CloseReason
from proxy.quota.model import address_group

_HASHES: Final = 4
"""Number of hashes of an address, and of its counters."""
_HASH_BYTES: Final = 4
_CELLS_PER_CONNECTION: Final = 4
"""Number of cells of each hash for each connection that `max.connections` allows."""
_MAX_CELLS: Final = 1 << 20
"""Largest number of cells of each hash: 16 MiB in each worker, of which only pages in use take
memory."""

_ADDRESSES_KNOWN: Final = 1_024
"""Number of addresses whose counters are remembered: clients come again."""

_OPEN, _UNAUTHENTICATED, _SINCE, _EVICTED, _STARTED, _ASKED = range(6)
"""Indexes of a worker's words for each listener: the number of open connections; of unauthenticated
ones; since when the oldest of these is unauthenticated (ms; 0 without any); how many it has
evicted for other workers; whether it was started before; and from `_ASKED` on, how many it has
asked each worker to evict."""


class Shared:
    """Counts that workers share; made by their parent, before it forks."""

    def __init__(self, workers: int, max_connections: list[int]) -> None:
        """`max_connections` is the limit of each listener."""
        self.workers = workers
        self.max_connections = max_connections
        self._stride = _ASKED + workers
        self._words = memoryview(
            mmap.mmap(-1, workers * len(max_connections) * self._stride * 8)
        ).cast("Q")
        wanted = min(sum(max_connections) * _CELLS_PER_CONNECTION, _MAX_CELLS)
        self.cells = 1 << (wanted - 1).bit_length()
        """The number of cells of each hash, a power of two."""
        self.addresses = memoryview(
            mmap.mmap(-1, workers * _HASHES * self.cells * _HASH_BYTES)
        ).cast("I")
        self.key = secrets.token_bytes(16)
        self.wakes: list[int] = []
        """An eventfd for each worker, readable when it must call `OpenConnections.to_evict`; empty:
        workers are not woken."""

    @classmethod
    def of_processes(cls, workers: int, max_connections: list[int]) -> Self:
        """Make the counts for workers that wake each other."""
        shared = cls(workers, max_connections)
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        shared.wakes = [os.eventfd(0, flags) for _ in range(workers)]
        return shared

    def begin(self, worker: int) -> None:
        """Clear the counts that an earlier process of this worker has left."""
        if self.read(worker, 0, _STARTED):
            column = _HASHES * self.cells
            at = worker * column
            self.addresses[at : at + column] = memoryview(bytes(column * _HASH_BYTES)).cast("I")
        for listener in range(len(self.max_connections)):
            for word in (_OPEN, _UNAUTHENTICATED, _SINCE):
                self.write(worker, listener, word, 0)
            self.write(worker, listener, _EVICTED, self.asked(worker, listener))
            self.write(worker, listener, _STARTED, 1)

    def read(self, worker: int, listener: int, word: int) -> int:
        """Return a word of any worker."""
        return self._words[self._at(worker, listener) + word]

    def write(self, worker: int, listener: int, word: int, value: int) -> None:
        """Write a word of the calling worker."""
        self._words[self._at(worker, listener) + word] = value

    def asked(self, worker: int, listener: int) -> int:
        """Return how many connections a worker was ever asked to evict."""
        return sum(self.read(other, listener, _ASKED + worker) for other in range(self.workers))

    def outstanding(self, worker: int, listener: int) -> int:
        """Return how many of them it has not evicted yet."""
        return max(0, self.asked(worker, listener) - self.read(worker, listener, _EVICTED))

    def _at(self, worker: int, listener: int) -> int:
        return (worker * len(self.max_connections) + listener) * self._stride


class ConnectionLimits:
    """Connection limits of one worker: counts by address, for all listeners."""

    def __init__(self, shared: Shared, worker: int) -> None:
        self.shared = shared
        self.worker = worker
        self._max_per_address = 0
        self._overrides: Mapping[str, int] = {}
        shared.begin(worker)

    def apply(self, max_per_address: int, overrides: Mapping[str, int]) -> None:
        """Limit later connections of each address; `overrides` has limits of single addresses."""
        self._max_per_address = max_per_address
        self._overrides = overrides

    def counted_as(self, address: str) -> str:
        """Return the key that an address is counted under: itself if it has an override."""
        return address if address in self._overrides else address_group(address)

    def add(self, key: str) -> bool:
        """Count a connection under a key of `counted_as`; False if it would exceed the limit."""
        shared = self.shared
        cells = _cells(key, shared.key, shared.cells)
        self._change(cells, 1)
        column = _HASHES * shared.cells
        columns = range(0, shared.workers * column, column)
        count = min(sum(shared.addresses[at + cell] for at in columns) for cell in cells)
        if count <= self._overrides.get(key, self._max_per_address):
            return True
        self._change(cells, -1)
        return False

    def remove(self, key: str) -> None:
        """Stop counting a connection that `add` has counted under `key`."""
        self._change(_cells(key, self.shared.key, self.shared.cells), -1)

    def _change(self, cells: tuple[int, ...], by: int) -> None:
        at = self.worker * _HASHES * self.shared.cells
        for cell in cells:
            self.shared.addresses[at + cell] += by


@lru_cache(maxsize=_ADDRESSES_KNOWN)
def _cells(counted: str, key: bytes, size: int) -> tuple[int, ...]:
    """Return the places of a key's counters, one of `size` for each hash."""
    hashed = blake2b(
        counted.encode(errors="surrogatepass"), digest_size=_HASHES * _HASH_BYTES, key=key
    ).digest()
    return tuple(
        number * size
        + int.from_bytes(hashed[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]) % size
        for number in range(_HASHES)
    )


class Evictable(Protocol):
    """Interface to an open connection, which is compared by identity."""

    def evict(self) -> None:
        """Close the connection now, in favour of another."""


C = TypeVar("C", bound=Evictable)


@dataclass(frozen=True, slots=True)
class Decision(Generic[C]):
    """Decision on a new connection."""

    refused: CloseReason | None = None
    """The reason of a refusal; None if it is accepted."""
    evicts: C | None = None
    """The connection to be evicted; None if no eviction is needed, or another worker evicts one."""


class OpenConnections(Generic[C]):
    """Open connections of one listener of one worker."""

    def __init__(self, limits: ConnectionLimits, listener: int) -> None:
        self._limits = limits
        self._shared = limits.shared
        self._listener = listener
        self.max_connections = limits.shared.max_connections[listener]
        """The listener's `max.connections`, of all workers together."""
        self._keys: dict[C, str] = {}
        """The key that each connection's address is counted under."""
        self._unauthenticated: OrderedDict[C, int] = OrderedDict()
        """The time in milliseconds since when each connection is unauthenticated, oldest first."""

    @property
    def workers(self) -> int:
        """Number of workers that share the limit."""
        return self._shared.workers

    @property
    def is_full(self) -> bool:
        """True if the limit is reached, in all workers together."""
        return self._exceeds(self.max_connections - 1)

    def open(self, connection: C, address: str, now: float) -> Decision[C]:
        """Count a new connection; the caller evicts the one that the decision names."""
        key = self._limits.counted_as(address)
        if not self._limits.add(key):
            return Decision(refused=CloseReason.TOO_MANY_FROM_ADDRESS)
        self._keys[connection] = key
        self._unauthenticated[connection] = max(1, int(now * 1_000))
        self._publish()
        return self._make_room(connection) if self._exceeds(self.max_connections) else Decision()

    def authenticated(self, connection: C) -> None:
        """Record an authentication: the connection cannot be evicted any more."""
        if self._unauthenticated.pop(connection, None) is not None:
            self._publish()

    def closed(self, connection: C) -> None:
        """Record the end of a connection; again has no effect."""
        key = self._keys.pop(connection, None)
        if key is not None:
            self._unauthenticated.pop(connection, None)
            self._limits.remove(key)
            self._publish()

    def to_evict(self) -> list[C]:
        """Return the connections that the caller is to evict for new ones in other workers."""
        shared, me, listener = self._shared, self._limits.worker, self._listener
        asked = shared.asked(me, listener)
        count = asked - shared.read(me, listener, _EVICTED)
        evicted = list(islice(self._unauthenticated, count))
        for connection in evicted:
            self.closed(connection)
        shared.write(me, listener, _EVICTED, asked)
        return evicted

    def _make_room(self, newcomer: C) -> Decision[C]:
        me, worker = self._limits.worker, self._worker_of_longest()
        if worker is not None and worker != me:
            word = _ASKED + worker
            asked = self._shared.read(me, self._listener, word)
            self._shared.write(me, self._listener, word, asked + 1)
            if self._shared.wakes:
                os.eventfd_write(self._shared.wakes[worker], 1)
            return Decision()
        longest = newcomer if worker is None else next(iter(self._unauthenticated))
        self.closed(longest)
        if longest is newcomer:
            return Decision(refused=CloseReason.TOO_MANY_CONNECTIONS)
        return Decision(evicts=longest)

    def _worker_of_longest(self) -> int | None:
        """Return the worker with the oldest unauthenticated connection; None if none is."""
        shared, listener = self._shared, self._listener
        found = [
            (since, worker == self._limits.worker, worker)
            for worker in range(shared.workers)
            if (since := shared.read(worker, listener, _SINCE))
            and shared.read(worker, listener, _UNAUTHENTICATED)
            > shared.outstanding(worker, listener)
        ]
        return min(found)[2] if found else None

    def _exceeds(self, limit: int) -> bool:
        """Return whether more are open than `limit`, without those that are being evicted."""
        shared, listener = self._shared, self._listener
        opened = [shared.read(worker, listener, _OPEN) for worker in range(shared.workers)]
        if sum(opened) <= limit:
            return False
        left = (max(0, n - shared.outstanding(one, listener)) for one, n in enumerate(opened))
        return sum(left) > limit

    def _publish(self) -> None:
        shared, me, listener = self._shared, self._limits.worker, self._listener
        first = next(iter(self._unauthenticated.values()), 0)
        shared.write(me, listener, _OPEN, len(self._keys))
        shared.write(me, listener, _UNAUTHENTICATED, len(self._unauthenticated))
        shared.write(me, listener, _SINCE, first)
