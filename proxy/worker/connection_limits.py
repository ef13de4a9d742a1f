"""Connection limits, over all workers together: in total, and by address.

`max.connections` holds for a listener, `max.connections.per.ip` for all of them together, as in
Kafka, and both for the proxy, not for a worker. Rules:

- Each word of the shared memory has one writer, a worker, and everybody reads all. No locks: a
  connection is counted first, and judged then; of two that come at once for the last place in two
  workers, both may be turned away, but never are both let in.
- When a listener is full, the connection that has gone unauthenticated for longest, in whichever
  worker, makes room for the one that comes; an authenticated one never does. A worker that is
  requested to close one does so within an iteration of its loop; the place counts as free already.
- Addresses are counted in a count-min sketch (Cormode and Muthukrishnan, 2005): `_HASHES` counters
  each, found by a keyed hash, of which the smallest is believed. So the memory is the same whatever
  the number of addresses, none is ever counted too low, and nobody can choose addresses that share
  another's counters. One is counted too high if all of its counters are shared: by one connection,
  with a probability of 0.003 when `max.connections` are open from as many addresses.

No clock: `now` is monotonic seconds. No sockets.
"""

import mmap
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final, Generic, Protocol, Self, TypeVar

from proxy.connection.commands import CloseReason
from proxy.quota.model import canonical_ip

_HASHES: Final = 4
_HASH_BYTES: Final = 4
_CELLS_PER_CONNECTION: Final = 4
_MAX_CELLS: Final = 1 << 20
"""Largest number of cells of each hash: 16 MiB in each worker, of which the kernel provides what is
used."""

_OPEN, _UNAUTHENTICATED, _SINCE, _EVICTED, _BEGUN, _ASKED = range(6)
"""Indexes of a worker's words for each listener: connections that are open; of these the
unauthenticated, and since when the first of them (ms, 0: there is none); how many it was requested
to close for other workers, and has; whether it has begun before; and from `_ASKED` on, how many it
has requested each worker to close."""


class Shared:
    """Memory in which workers count. Made by their parent, before it forks."""

    def __init__(self, workers: int, max_connections: list[int]) -> None:
        """`max_connections`: of each listener."""
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
        """An eventfd for each worker, which is readable when `OpenConnections.asked_for` is to be
        called; empty where nobody waits for that."""

    @classmethod
    def of_processes(cls, workers: int, max_connections: list[int]) -> Self:
        """Make it for workers that wake each other."""
        shared = cls(workers, max_connections)
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        shared.wakes = [os.eventfd(0, flags) for _ in range(workers)]
        return shared

    def begin(self, worker: int) -> None:
        """Forget what a process that was this worker before has left."""
        if self.read(worker, 0, _BEGUN):
            column = _HASHES * self.cells
            at = worker * column
            self.addresses[at : at + column] = memoryview(bytes(column * _HASH_BYTES)).cast("I")
        for listener in range(len(self.max_connections)):
            for word in (_OPEN, _UNAUTHENTICATED, _SINCE):
                self.write(worker, listener, word, 0)
            self.write(worker, listener, _EVICTED, self.asked(worker, listener))
            self.write(worker, listener, _BEGUN, 1)

    def read(self, worker: int, listener: int, word: int) -> int:
        """Return a word of a worker."""
        return self._words[self._at(worker, listener) + word]

    def write(self, worker: int, listener: int, word: int, value: int) -> None:
        """Write a word; the worker's own alone."""
        self._words[self._at(worker, listener) + word] = value

    def asked(self, worker: int, listener: int) -> int:
        """Return how many connections a worker was ever requested to close."""
        return sum(self.read(other, listener, _ASKED + worker) for other in range(self.workers))

    def outstanding(self, worker: int, listener: int) -> int:
        """Return how many of them it has not closed yet."""
        return max(0, self.asked(worker, listener) - self.read(worker, listener, _EVICTED))

    def _at(self, worker: int, listener: int) -> int:
        return (worker * len(self.max_connections) + listener) * self._stride


class ConnectionLimits:
    """Counts of one worker, for all of its listeners."""

    def __init__(self, shared: Shared, worker: int) -> None:
        self.shared = shared
        self.worker = worker
        self._most = 0
        self._overrides: Mapping[str, int] = {}
        shared.begin(worker)

    def apply(self, most_per_address: int, overrides: Mapping[str, int]) -> None:
        """Limit connections that come from now on; `overrides` by address."""
        self._most = most_per_address
        self._overrides = {canonical(address): most for address, most in overrides.items()}

    def add(self, address: str) -> bool:
        """Count a connection of a canonical address, unless it would be one too many."""
        shared, cells = self.shared, self._cells(address)
        self._change(cells, 1)
        column = _HASHES * shared.cells
        ends = range(0, shared.workers * column, column)
        here = min(sum(shared.addresses[at + cell] for at in ends) for cell in cells)
        if here <= self._overrides.get(address, self._most):
            return True
        self._change(cells, -1)
        return False

    def remove(self, address: str) -> None:
        """Count one less."""
        self._change(self._cells(address), -1)

    def _cells(self, address: str) -> list[int]:
        size = self.shared.cells
        hashed = blake2b(
            address.encode(errors="surrogatepass"),
            digest_size=_HASHES * _HASH_BYTES,
            key=self.shared.key,
        ).digest()
        return [
            number * size
            + int.from_bytes(hashed[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]) % size
            for number in range(_HASHES)
        ]

    def _change(self, cells: list[int], by: int) -> None:
        at = self.worker * _HASHES * self.shared.cells
        for cell in cells:
            self.shared.addresses[at + cell] += by


class Evictable(Protocol):
    """Open connection; equal to itself alone."""

    def evict(self) -> None:
        """Close it now: another takes its place."""
        ...


C = TypeVar("C", bound=Evictable)


@dataclass(frozen=True, slots=True)
class Decision(Generic[C]):
    """Decision on a new connection."""

    refused: CloseReason | None = None
    """The reason of a refusal; None: it is accepted."""
    evicts: C | None = None
    """The connection to be closed in its favour; None: there is none, or it is another worker's."""


class OpenConnections(Generic[C]):
    """Open connections of one listener of one worker."""

    def __init__(self, limits: ConnectionLimits, listener: int) -> None:
        self._limits = limits
        self._shared = limits.shared
        self._listener = listener
        self.most = limits.shared.max_connections[listener]
        """The listener's `max.connections`, of all workers together."""
        self._addresses: dict[C, str] = {}
        self._unauthenticated: OrderedDict[C, int] = OrderedDict()
        """The time in milliseconds since when each connection is unauthenticated, the longest
        first."""

    @property
    def workers(self) -> int:
        """Number of workers that share the limit."""
        return self._shared.workers

    @property
    def is_full(self) -> bool:
        """Return whether the limit is reached, in all workers together."""
        return self._exceeds(self.most - 1)

    def open(self, connection: C, address: str, now: float) -> Decision[C]:
        """Count a client that connected; the caller closes the connection that is evicted."""
        address = canonical(address)
        if not self._limits.add(address):
            return Decision(refused=CloseReason.TOO_MANY_FROM_ADDRESS)
        self._addresses[connection] = address
        self._unauthenticated[connection] = max(1, int(now * 1_000))
        self._publish()
        return self._make_room(connection) if self._exceeds(self.most) else Decision()

    def authenticated(self, connection: C) -> None:
        """Record an authentication: the connection is evicted for no other any more."""
        if self._unauthenticated.pop(connection, None) is not None:
            self._publish()

    def closed(self, connection: C) -> None:
        """Record the end of a connection; also after it was evicted, and more than once."""
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._unauthenticated.pop(connection, None)
            self._limits.remove(address)
            self._publish()

    def asked_for(self) -> list[C]:
        """Return whom the caller is to close for other workers' newcomers."""
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
        """Return who has the connection that has gone unauthenticated for longest."""
        shared, listener = self._shared, self._listener
        found = [
            (since, worker == self._limits.worker, worker)
            for worker in range(shared.workers)
            if (since := shared.read(worker, listener, _SINCE))
            and shared.read(worker, listener, _UNAUTHENTICATED)
            > shared.outstanding(worker, listener)
        ]
        return min(found)[2] if found else None

    def _exceeds(self, most: int) -> bool:
        """Return whether more are open than allowed, without those that are requested to close."""
        shared, listener = self._shared, self._listener
        opened = [shared.read(worker, listener, _OPEN) for worker in range(shared.workers)]
        if sum(opened) <= most:
            return False
        left = (max(0, n - shared.outstanding(one, listener)) for one, n in enumerate(opened))
        return sum(left) > most

    def _publish(self) -> None:
        shared, me, listener = self._shared, self._limits.worker, self._listener
        first = next(iter(self._unauthenticated.values()), 0)
        shared.write(me, listener, _OPEN, len(self._addresses))
        shared.write(me, listener, _UNAUTHENTICATED, len(self._unauthenticated))
        shared.write(me, listener, _SINCE, first)


def canonical(address: str) -> str:
    """Return an address as it is counted: in one spelling, an IPv4-mapped one as IPv4."""
    return canonical_ip(address) or address
