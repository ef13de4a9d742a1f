"""Token bucket of mutations under one quota, shared by all workers (KIP-599).

Kafka's arithmetic (see `window.TokenBucket`, which a test compares it with), told in time: a bucket
of N tokens that fills at N per window *lags* behind by the time that it takes to fill it up. A
mutation adds its share of the window to the lag, time takes it away; with a lag beyond the window
there is a debt of tokens, and as much as the lag is too long is the throttle time.

Laws:

- Each worker's row holds the lag at the beginning of a sample, by its number, and what the worker
  added to it since. The lag of now is that of the latest sample that any worker knows, and what
  all of them added to it. Nobody writes into another's row, and there are no locks.
- What two workers record within the same microseconds may not see each other: both pass, and both
  count.
- The lag is kept as time, so that a change of the limit changes what it weighs.
"""

from typing import Final

from proxy.quota.meter import Count
from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import (
    DEBT,
    KEEP_UNTIL,
    SAMPLES,
    VALUE_MASK,
    SharedQuota,
    UsageTable,
    pack,
    unpack,
)
from proxy.quota.window import MAX_THROTTLE_TIME_MS, milliseconds

_LAG: Final = DEBT
"""The word of a row that holds the lag at the beginning of a sample, in microseconds."""
_ADDED: Final = SAMPLES
"""The word that holds what the worker added to it since, in microseconds above `_ZERO`."""
_ZERO: Final = (VALUE_MASK + 1) // 2
"""What is given back may be more than what was taken since."""
_MOST: Final = _ZERO // 4
"""Of one record: 25 days."""
_MICROSECONDS: Final = 1_000
"""In a millisecond."""


class Bucket(SharedQuota):
    """One worker's view of one bucket; its connections with the same tags share the object."""

    __slots__ = ("__weakref__", "count", "entry", "kind", "limit", "tags")

    def __init__(
        self,
        table: UsageTable,
        worker: int,
        *,
        kind: str,
        tags: Tags,
        limit: float,
    ) -> None:
        """Count for `worker`, from 0."""
        super().__init__(table, worker, kind=kind, tags=tags)
        self.count, self.entry = Count(), ""
        """What metrics are told of, and the entry that the limit comes from."""
        self.kind = kind
        self.tags = tags
        self.limit = limit
        """Mutations per second. May be set at any time."""

    def record(self, mutations: int, now: float) -> int:
        """Record whatever there is; return the throttle time (ms) of a permissive quota."""
        self._add(mutations, now)
        return self.throttle_time_ms(now)

    def try_record(self, mutations: int, now: float) -> int:
        """Record unless there is a debt; 0: recorded, else how long to wait (ms): a strict quota.

        Whoever finds no debt may make as many mutations as it likes.
        """
        wait = self.throttle_time_ms(now)
        if not wait:
            self._add(mutations, now)
        return wait

    def correct(self, mutations: int, now: float) -> None:
        """Record so many more than were recorded before, or below 0 fewer."""
        self._add(mutations, now)

    def throttle_time_ms(self, now: float) -> int:
        """Return how long it takes until there is no debt."""
        over_us = self._lag(now) - self._window_us
        if over_us <= 0:
            return 0
        return max(1, min(round(over_us / _MICROSECONDS), MAX_THROTTLE_TIME_MS))

    def tokens(self, now: float) -> float:
        """Return the credit; below zero it is a debt."""
        return (self._window_us - max(0, self._lag(now))) * self.limit / 1e6

    @property
    def _window_us(self) -> int:
        config = self._table.config
        return config.num * config.size_ms * _MICROSECONDS

    def _lag(self, now: float) -> int:
        """Return the lag (µs); below 0 the bucket has been full for so long."""
        number, lag, added = self._known(self._sample(now))
        return lag + added - self._passed_us(number, now)

    def _sample(self, now: float) -> int:
        return milliseconds(now) // self._table.config.size_ms

    def _passed_us(self, number: int, now: float) -> int:
        """Return what has passed of a sample; nothing if a worker is ahead of us."""
        size_ms = self._table.config.size_ms
        return max(0, milliseconds(now) - number * size_ms) * _MICROSECONDS

    def _known(self, sample: int) -> tuple[int, int, int]:
        """Return the number of the latest sample, not before `sample`, the lag at its beginning,
        and what was added to it since."""
        latest, lag, added = sample, 0, 0
        columns = [words for words in self._columns() if words[KEEP_UNTIL] >= sample]
        known = [unpack(words[_LAG], sample) for words in columns if words[_LAG]]
        if known:
            latest, lag = max(known)
            cells = (unpack(words[_ADDED], sample) for words in columns if words[_ADDED])
            added = sum(value - _ZERO for number, value in cells if number == latest)
        if latest < sample:
            step = self._table.config.size_ms * _MICROSECONDS
            return sample, max(0, lag + added - (sample - latest) * step), 0
        return latest, lag, added

    def _add(self, mutations: int, now: float) -> None:
        """Add to the lag, in our own row; what would make it negative is added too."""
        sample = self._sample(now)
        row, words = self._own_row(sample), self._table.words
        number, lag, added = self._known(sample)
        idle = max(0, self._passed_us(number, now) - lag - added)
        share = round(max(-_MOST, min(mutations * 1e6 / self.limit, _MOST))) + idle
        mine, word = _ZERO + share, words[row + _ADDED]
        if word and words[row + KEEP_UNTIL] >= sample:
            its_number, before = unpack(word, number)
            mine += before - _ZERO if its_number == number else 0
        # the lag first: what was added before is in it, and nobody shall see less
        words[row + _LAG] = pack(number, lag) or 1
        words[row + _ADDED] = pack(number, max(1, mine))
        config = self._table.config
        left = max(0, lag + added + share) // (config.size_ms * _MICROSECONDS)
        until = number + config.num + left + 1
        words[row + KEEP_UNTIL] = max(words[row + KEEP_UNTIL], until)
