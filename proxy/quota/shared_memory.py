"""Shared memory of quota usage, in samples of Kafka's window: one slot per worker, no locks.

Rules:

- One writer per word: a worker writes only to its own column, and reads all columns.
- A word has 8 bytes and is aligned. One store writes it (an item of a memoryview in the native
  format is copied as a whole) and one load reads it; both are atomic on 64-bit processors, which a
  stress test checks. Values that must be consistent share a word: the number of a sample (20 bits)
  and the usage in it (44 bits).
- The only assumption about the order of two words is that a row is cleared before it gets a new
  owner; a reader checks the owner after reading the row.
- The number of rows is fixed. A row is assigned to another quota only when its content is out of
  date, so that usage is never lost and a client cannot reset its quota by reconnecting. If no row
  is free, only the worker itself counts the usage of a new quota.

The row of a quota is found with a keyed digest of its name, in one of eight places of each column.
The key is random, so that a client cannot choose names that share the same places. The probability
that two of 10,000 quotas have the same digest of 64 bits is 3e-12.

All workers have the same samples, because all processes share CLOCK_MONOTONIC.
"""

import mmap
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from proxy.quota.precedence import Tags

NANOSECONDS_PER_PERCENT: Final = 10_000_000
"""Number of nanoseconds per second that are one percent of a thread's time."""
MAX_THROTTLE_TIME_MS: Final = 0x7FFF_FFFF
"""Maximum of throttle_time_ms, which is an INT32."""


class WindowConfig(NamedTuple):
    """Configuration of the window over which rates are measured."""

    num: int = 11
    """Number of samples, including the current one (`quota.window.num`)."""
    size_seconds: int = 1
    """Length of one sample in seconds (`quota.window.size.seconds`)."""

    @property
    def size_ms(self) -> int:
        """Length of one sample in ms."""
        return self.size_seconds * 1_000


def milliseconds(now: float) -> int:
    """Return monotonic seconds as whole milliseconds."""
    return round(now * 1_000)


def max_in_window(limit: float, config: WindowConfig) -> float:
    """Return the usage that may be recorded at once in an empty window, Kafka's bound for the bytes
    of one Fetch (`getMaxValueInQuotaWindow`)."""
    return limit * (config.num - 1) * config.size_seconds


WORD: Final = 8
"""Size of a word in bytes."""
WAYS: Final = 8
"""Number of places where a quota's row can be."""
DEFAULT_ROWS: Final = 8_192
"""Default number of rows per worker. Each has 128 bytes, which the kernel allocates at first
use."""
_CACHE_LINE: Final = 64
"""Size of a cache line in bytes: rows of two workers never share one."""

VALUE_BITS: Final = 44
VALUE_MASK: Final = (1 << VALUE_BITS) - 1
"""Maximum value of a sample: 17 TB, or five hours in nanoseconds."""
NUMBER_MASK: Final = (1 << 64 - VALUE_BITS) - 1

DEBT: Final = 0
"""Index of the word with the debt from before the window; see `meter`."""
KEEP_UNTIL: Final = 1
"""Index of the word with the sample until which the row must be kept."""
SAMPLES: Final = 2
"""Index of a row's first sample."""


def pack(number: int, value: int) -> int:
    """Return the word of a numbered value. Values above the maximum become the maximum."""
    return (number & NUMBER_MASK) << VALUE_BITS | max(0, min(value, VALUE_MASK))


def unpack(word: int, near: int) -> tuple[int, int]:
    """Return the number and value of a word. The number is the possible one that is nearest to
    `near`."""
    half = (NUMBER_MASK + 1) // 2
    distance = ((word >> VALUE_BITS) - near + half & NUMBER_MASK) - half
    return near + distance, word & VALUE_MASK


class UsageTable:
    """Memory that the workers share. The parent creates it before it forks."""

    def __init__(self, workers: int, config: WindowConfig, rows: int = DEFAULT_ROWS) -> None:
        """Allocate `rows` quotas (rounded up to a multiple of eight) in each worker's column."""
        self.workers = workers
        self.config = config
        self.ring = config.num + 1
        """Number of samples in a row: the window, and the sample that is leaving it."""
        line = _CACHE_LINE // WORD
        self.stride = -(-(SAMPLES + self.ring) // line) * line
        """Number of words in a row."""
        self._sets = max(1, -(-rows // WAYS))
        self.rows = self._sets * WAYS
        column = self.rows * (1 + self.stride)
        # Anonymous and shared: children inherit it, and the kernel frees it when the last one exits
        self.words = memoryview(mmap.mmap(-1, workers * column * WORD)).cast("Q")
        self._directories = [worker * column for worker in range(workers)]
        self._first_rows = [start + self.rows for start in self._directories]
        self._key = secrets.token_bytes(32)

    def digest(self, kind: str, tags: Mapping[str, str]) -> int:
        """Return the key with which a quota is found. It is never 0, which marks a free row."""
        hashed = blake2b(digest_size=WORD, key=self._key)
        for text in (kind, *(part for item in sorted(tags.items()) for part in item)):
            encoded = text.encode(errors="surrogatepass")
            hashed.update(len(encoded).to_bytes(WORD, "big") + encoded)
        return int.from_bytes(hashed.digest(), "big") or 1

    def find(self, worker: int, digest: int) -> int | None:
        """Return the position of a worker's row for a quota; None if the worker has no row for
        it."""
        start = digest % self._sets * WAYS
        at = self._directories[worker] + start
        owners = self.words[at : at + WAYS].tolist()
        if digest not in owners:
            return None
        return self._first_rows[worker] + (start + owners.index(digest)) * self.stride

    def read(self, worker: int, digest: int, row: int) -> list[int] | None:
        """Return the words of a row; None if it now belongs to another quota."""
        words = self.words[row : row + self.stride].tolist()
        return words if self.is_owner(worker, digest, row) else None

    def is_owner(self, worker: int, digest: int, row: int) -> bool:
        """Return whether a row still belongs to this quota."""
        place = (row - self._first_rows[worker]) // self.stride
        return self.words[self._directories[worker] + place] == digest

    def claim(self, worker: int, digest: int, sample: int) -> int | None:
        """Return the position of the worker's own row for a quota, assigning a row if needed.

        `sample` is the number of the current sample. Returns None if all eight places are in use.
        """
        row = self.find(worker, digest)
        if row is not None:
            return row
        start = digest % self._sets * WAYS
        for place in range(start, start + WAYS):
            row = self._first_rows[worker] + place * self.stride
            owner = self._directories[worker] + place
            if not self.words[owner] or self.words[row + KEEP_UNTIL] < sample:
                self.words[owner] = 0
                for word in range(row, row + self.stride):
                    self.words[word] = 0
                self.words[row + KEEP_UNTIL] = sample + self.config.num
                self.words[owner] = digest
                return row
        return None


@dataclass(slots=True)
class Count:
    """Counters of one worker for all clients under one entry; they never decrease."""

    used: int = 0
    """Usage in bytes, nanoseconds or connections, without pending usage."""
    throttles: int = 0
    """Number of throttled requests; in audit mode, of requests that would have been throttled."""
    throttle_time_ms: int = 0
    """Sum of their throttle times, in ms."""

    def note(self, throttle_time_ms: int) -> None:
        """Count a throttled request."""
        self.throttles += 1
        self.throttle_time_ms += throttle_time_ms


class SharedQuota:
    """One worker's access to the rows of one quota: its own row, and those of the other workers."""

    __slots__ = ("_digest", "_rows", "_table", "_worker", "alone", "count", "entry", "kind", "tags")

    def __init__(self, table: UsageTable, worker: int, *, kind: str, tags: Tags) -> None:
        """Record usage for `worker`, numbered from 0."""
        self.alone = False
        """True if no row was free, so that the other workers do not see this worker's usage."""
        self.count, self.entry = Count(), ""
        """Counter for metrics, and the name of the entry that sets the limit."""
        self.kind = kind
        self.tags = tags
        self._table = table
        self._worker = worker
        self._digest = table.digest(kind, tags)
        self._rows: list[int | None] = [None] * table.workers

    def _sample(self, now: float) -> int:
        return milliseconds(now) // self._table.config.size_ms

    def _own_row(self, sample: int) -> int:
        row = self._rows[self._worker]
        if row is None or not self._table.is_owner(self._worker, self._digest, row):
            row = self._rows[self._worker] = self._claim(sample)
        return row

    def _claim(self, sample: int) -> int:
        row = self._table.claim(self._worker, self._digest, sample)
        if row is None:  # all places are in use: count in this worker only
            self.alone = True
            self._table, self._worker = UsageTable(1, self._table.config, rows=1), 0
            self._rows = [None]
            row = self._table.claim(0, self._digest, sample)
        assert row is not None
        return row

    def _columns(self) -> list[list[int]]:
        """Return the words of each worker that has a row for this quota."""
        return [words for worker in range(self._table.workers) if (words := self._read(worker))]

    def _read(self, worker: int) -> list[int] | None:
        row = self._rows[worker]
        if row is None:
            row = self._rows[worker] = self._table.find(worker, self._digest)
            if row is None:
                return None
        words = self._table.read(worker, self._digest, row)
        if words is None:
            self._rows[worker] = None
        return words
