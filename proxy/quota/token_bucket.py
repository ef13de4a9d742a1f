"""Token bucket of mutations under one quota, shared by all workers (KIP-599).

Kafka's arithmetic (`TokenBucket`; a test compares them) in units of time: a bucket of N tokens that
fills at N per window has a *lag*, the time until it is full. A mutation adds its share of the
window to the lag, and the lag decreases with time. If it exceeds the window, the credit is negative
(a debt), and the throttle time is the excess.

Rules:

- Each worker's row has the lag at the beginning of a sample, the number of that sample, and the lag
  that the worker has added since. The current lag is that of the latest sample in any row, plus the
  lag that all workers have added to it. A worker writes only to its own row, and there are no
  locks.
- Two workers may record mutations within the same microseconds without seeing each other's: both
  pass, and both count.
- The lag is stored as time, so that it is worth more tokens after the limit is raised.
"""

from typing import Final

from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import (
    DEBT,
    KEEP_UNTIL,
    MAX_THROTTLE_TIME_MS,
    SAMPLES,
    VALUE_MASK,
    SharedQuota,
    UsageTable,
    milliseconds,
    pack,
    unpack,
)

_LAG: Final = DEBT
"""Index of the word with the lag at the beginning of a sample, in microseconds."""
_ADDED: Final = SAMPLES
"""Index of the word with the lag that the worker has added since, in microseconds above `_ZERO`."""
_ZERO: Final = (VALUE_MASK + 1) // 2
"""Encoding of 0, in the middle of the range: corrections may subtract more than was added since."""
_MAX_SHARE: Final = _ZERO // 4
"""Maximum lag that one record adds, in microseconds: 25 days."""
_MICROSECONDS: Final = 1_000
"""Number of microseconds in a millisecond."""


class Bucket(SharedQuota):
    """Bucket of one quota in one worker; connections with the same tags share the object."""

    __slots__ = ("__weakref__", "limit")

    def __init__(
        self, table: UsageTable, worker: int, *, kind: str, tags: Tags, limit: float
    ) -> None:
        """Record mutations for `worker`, numbered from 0."""
        super().__init__(table, worker, kind=kind, tags=tags)
        self.limit = limit
        """Limit in mutations per second. It may be set at any time."""

    def record(self, mutations: int, now: float) -> int:
        """Record mutations unconditionally, as a permissive quota; return the throttle time in
        ms."""
        self.correct(mutations, now)
        return self.throttle_time_ms(now)

    def try_record(self, mutations: int, now: float) -> int:
        """Record mutations unless there is a debt, as a strict quota; return 0, or the time to wait
        in ms.

        Without a debt, a request may make any number of mutations.
        """
        wait = self.throttle_time_ms(now)
        if not wait:
            self.correct(mutations, now)
        return wait

    def throttle_time_ms(self, now: float) -> int:
        """Return the time in ms until there is no debt."""
        over_us = self._lag(now) - self._window_us
        if over_us <= 0:
            return 0
        return max(1, min(round(over_us / _MICROSECONDS), MAX_THROTTLE_TIME_MS))

    def tokens(self, now: float) -> float:
        """Return the credit in mutations; a negative credit is a debt."""
        return (self._window_us - max(0, self._lag(now))) * self.limit / 1e6

    @property
    def _window_us(self) -> int:
        config = self._table.config
        return config.num * config.size_ms * _MICROSECONDS

    def _lag(self, now: float) -> int:
        """Return the lag in µs; if negative, the bucket has been full for that long."""
        number, lag, added = self._known(self._sample(now))
        return lag + added - self._passed_us(number, now)

    def _passed_us(self, number: int, now: float) -> int:
        """Return the elapsed time of a sample in µs; 0 if another worker's sample is ahead of the
        clock."""
        size_ms = self._table.config.size_ms
        return max(0, milliseconds(now) - number * size_ms) * _MICROSECONDS

    def _known(self, sample: int) -> tuple[int, int, int]:
        """Return the number of the latest sample, at least `sample`, the lag at its beginning, and
        the lag that was added since."""
        latest, lag, added = sample, 0, 0
        columns = list(self._columns())
        known = [
            unpack(words[_LAG], sample)
            for words in columns
            if words[_LAG] and words[KEEP_UNTIL] >= sample
        ]
        if known:
            latest, lag = max(known)
            # Includes rows that are no longer reserved: a later debt may outlive them
            cells = (
                unpack(words[_ADDED], sample)
                for words in columns
                if words[_ADDED] and words[KEEP_UNTIL] >= latest
            )
            added = sum(value - _ZERO for number, value in cells if number == latest)
        if latest < sample:
            step = self._table.config.size_ms * _MICROSECONDS
            return sample, max(0, lag + added - (sample - latest) * step), 0
        return latest, lag, added

    def correct(self, mutations: int, now: float) -> None:
        """Add to the recorded mutations, or subtract from them if negative: to the lag in this
        worker's row, even if it becomes negative."""
        sample = self._sample(now)
        row, words = self._own_row(sample), self._table.words
        number, lag, added = self._known(sample)
        idle = max(0, self._passed_us(number, now) - lag - added)
        share = round(max(-_MAX_SHARE, min(mutations * 1e6 / self.limit, _MAX_SHARE))) + idle
        mine, word = _ZERO + share, words[row + _ADDED]
        if word and words[row + KEEP_UNTIL] >= sample:
            its_number, before = unpack(word, number)
            mine += before - _ZERO if its_number == number else 0
        # The lag is written first: it includes the earlier additions, which must not be lost
        words[row + _LAG] = pack(number, lag) or 1
        words[row + _ADDED] = pack(number, max(1, mine))
        config = self._table.config
        left = max(0, lag + added + share) // (config.size_ms * _MICROSECONDS)
        until = number + config.num + left + 1
        words[row + KEEP_UNTIL] = max(words[row + KEEP_UNTIL], until)
