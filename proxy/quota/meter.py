"""Meter of one quota: usage by all workers together, and the throttle time.

Kafka's arithmetic (its `Rate` of a `WindowedSum`) over samples that begin at the same time in all
workers. Usage recorded at the beginning of each sample results in the same rate as in Kafka; a test
compares them.

A deliberate difference: Kafka drops a sample as soon as it leaves the window. A client that is
throttled for a burst may repeat it eleven seconds later, and thus exceed its quota by a third over
half a minute. Here, usage above the limit that leaves the window becomes a *debt*, which decreases
at the rate of the limit. There is no debt until the quota is exceeded, so a client that is
throttled for the first time waits exactly as long as in Kafka; and over any period longer than the
window, the average is within the quota. Formally, for all s < t, used(s, t) <= limit * max(window,
t - s), excluding the last request: of each connection for Produce, which counts on arrival, and of
each worker for Fetch, whose responses are left out while the limit is exceeded
(`Throttle.fetched`).

Like the samples, debts are stored as usage, not as time. If a limit that was too low is raised,
clients wait no longer than under the new limit.
"""

from typing import Final

from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import (
    DEBT,
    KEEP_UNTIL,
    MAX_THROTTLE_TIME_MS,
    NUMBER_MASK,
    SAMPLES,
    VALUE_BITS,
    VALUE_MASK,
    SharedQuota,
    UsageTable,
    max_in_window,
    milliseconds,
    pack,
    unpack,
)

_LOOKS_PER_SAMPLE: Final = 10
"""Minimum number of reads of the other workers' usage per sample while a quota is in use."""
_ROUNDING_MS: Final = 2
"""Time in ms by which a client may be early although it waited for its throttle time."""
MAX_AT_ONCE: Final = 0x7FFF_FFFF
"""Maximum of a Fetch's max_bytes, which is an INT32."""


class Meter(SharedQuota):
    """Meter of one quota in one worker; connections with the same tags share the object."""

    __slots__ = (
        "__weakref__",
        "_allowance",
        "_keeps_debts",
        "_limit",
        "_look_at",
        "_look_every",
        "_settled_sample",
        "left",
        "max_at_once",
        "max_throttle_ms",
        "pending",
        "priority_until",
        "returning_until",
    )

    def __init__(
        self,
        table: UsageTable,
        worker: int,
        *,
        kind: str,
        tags: Tags,
        limit: float,
        max_throttle_ms: int = MAX_THROTTLE_TIME_MS,
        keeps_debts: bool = True,
    ) -> None:
        """Record usage for `worker`, numbered from 0.

        `max_throttle_ms` is the maximum throttle time in ms. `keeps_debts` is False in audit mode,
        where clients are not held and debts would grow without bound.
        """
        super().__init__(table, worker, kind=kind, tags=tags)
        self.max_throttle_ms = max_throttle_ms
        self._keeps_debts = keeps_debts
        self.limit = limit
        self.pending = 0
        """Usage that is recorded but not yet published to the other workers."""
        self.left = 0.0
        """Usage that this worker's share of the quota allowed at the last read of the other
        workers' rows."""
        self._allowance = -1
        """Maximum of `pending` before the rows of the other workers are read again. Negative if the
        limit is exceeded."""
        self._look_at = 0.0
        self._look_every = table.config.size_seconds / _LOOKS_PER_SAMPLE
        self._settled_sample = 0
        self.returning_until = 0.0
        """Time in monotonic seconds until which clients that were throttled until the same time may
        return."""
        self.priority_until = 0.0
        """Time in monotonic seconds until which one of these clients has priority. `Throttle` sets
        both attributes."""

    @property
    def limit(self) -> float:
        """Limit per second, in the unit of the usage. It may be changed at any time."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        self._allowance = -1
        in_window = max_in_window(limit, self._table.config)
        self.max_at_once = max(1, int(min(in_window, MAX_AT_ONCE)))
        """Usage that an empty window allows at once; at least 1."""

    def exceeded(self, now: float) -> int:
        """Return the time in ms until the limit is no longer exceeded, or 0 if it is not exceeded.
        The rows of the other workers may have been read up to a tenth of a sample ago."""
        if self._allowance >= 0 and now < self._look_at:
            return 0
        over_ms = self._settle(0, now)
        return over_ms if over_ms > _ROUNDING_MS else 0

    def is_calm(self, now: float) -> bool:
        """Return whether the limit is not exceeded and throttled clients are not returning."""
        return now >= self.returning_until and now >= self.priority_until and not self.exceeded(now)

    def room(self, now: float) -> int:
        """Return the usage that may be recorded with `use`; 0 or less if `record` must be
        called."""
        return self._allowance - self.pending if now < self._look_at else 0

    def use(self, amount: int) -> None:
        """Record usage without a check: the caller has checked that the limit allows it."""
        self.pending += amount

    def record(self, amount: int, now: float) -> int:
        """Record usage; return the time in ms for which the connection must be held, or 0.

        Far from the limit, this takes an addition and two comparisons; the rows of the other
        workers are read ten times per sample.
        """
        if self.pending + amount <= self._allowance and now < self._look_at:
            self.pending += amount
            return 0
        return self._settle(amount, now)

    def try_record(self, amount: int, now: float) -> int:
        """Record usage and return 0. If it would exceed the limit, record nothing and return the
        time in ms until it would not."""
        wait = self._settle(0, now, ahead=amount)
        if not wait:
            self._settle(amount, now)
        return wait

    def settle(self, now: float) -> None:
        """Publish pending usage. Called when a connection closes, because the meter is freed with
        its last connection."""
        if self.pending:
            self._settle(0, now)

    def rate(self, now: float) -> float:
        """Return the rate per second of all workers together."""
        self._settle(0, now)
        sample = self._sample(now)
        used, _ = self._used(sample)
        return used * 1_000 / self._window_ms(sample, now)

    def _settle(self, amount: int, now: float, ahead: int = 0) -> int:
        """Publish this worker's usage, read that of the others, and return the throttle time in ms.

        `ahead` is added to the usage for this decision, but is not recorded.
        """
        sample = self._sample(now)
        row = self._own_row(sample)
        if self.pending:  # all of it was recorded shortly after the last publication
            self._write(row, max(self._settled_sample, sample - self._table.config.num + 1))
        self.pending = amount
        self._settled_sample = sample
        used, debt = self._used(sample)
        if amount and not used and not debt and self._keeps_debts:
            used = self._begin(row, sample, now)
        used += amount
        if amount:
            self._write(row, sample)
        window_ms = self._window_ms(sample, now)
        weight_ms = (used + debt) * 1_000 / self._limit
        self._publish(row, sample, debt, weight_ms)
        self._allow(weight_ms, window_ms, now)
        over_ms = weight_ms + ahead * 1_000 / self._limit - window_ms
        if over_ms <= 0:
            return 0
        return max(1, min(round(over_ms), self.max_throttle_ms))

    def _window_ms(self, sample: int, now: float) -> int:
        """Return the length of the window in ms: whole samples, and the elapsed part of the current
        one."""
        config = self._table.config
        elapsed_ms = max(0, milliseconds(now) - sample * config.size_ms)
        return (config.num - 1) * config.size_ms + elapsed_ms

    def _begin(self, row: int, sample: int, now: float) -> int:
        """Count the elapsed part of the first sample as fully used.

        In Kafka the first sample begins with the first usage. Here it may have begun up to one
        sample's length earlier, which would allow more than Kafka does.
        """
        passed_ms = max(0, milliseconds(now) - sample * self._table.config.size_ms)
        passed = int(self._limit * passed_ms / 1_000)
        self._add(row, sample, passed)
        return passed

    def _write(self, row: int, sample: int) -> None:
        """Publish the pending usage in one sample of this worker's row."""
        self._add(row, sample, self.pending)
        self.count.used += self.pending
        self.pending = 0

    def _add(self, row: int, sample: int, amount: int) -> None:
        at = row + SAMPLES + sample % self._table.ring
        number, value = unpack(self._table.words[at], sample)
        if number != sample:
            value = 0
        self._table.words[at] = pack(sample, value + amount)

    def _used(self, sample: int) -> tuple[int, int]:
        """Return the usage of all workers in the window, and the debt from before it."""
        num, end = self._table.config.num, SAMPLES + self._table.ring
        here = sample & NUMBER_MASK
        columns = self._columns()
        used = 0
        for words in columns:
            for word in words[SAMPLES:end]:
                age = here - (word >> VALUE_BITS) & NUMBER_MASK
                # Another worker's sample may be one ahead: cached clocks lag by milliseconds
                if age < num or age == NUMBER_MASK:
                    used += word & VALUE_MASK
        return used, self._debt(columns, sample) if self._keeps_debts else 0

    def _debt(self, columns: list[list[int]], sample: int) -> int:
        """Carry the last known debt forward to `sample`: add each sample that left the window, and
        subtract the usage that the limit allows per sample."""
        config, ring = self._table.config, self._table.ring
        published = [unpack(words[DEBT], sample) for words in columns if words[DEBT]]
        last, debt = max((one for one in published if one[0] <= sample + 1), default=(sample, 0))
        # After the last written sample has left the window, the debt only decreases
        for number in range(last + 1, min(sample, last + config.num) + 1):
            leaving = number - config.num
            cells = (unpack(words[SAMPLES + leaving % ring], sample) for words in columns)
            left = sum(value for of_sample, value in cells if of_sample == leaving)
            debt = max(0, debt + left - self._passes(number - 1, number))
        return max(0, debt - self._passes(min(sample, last + config.num), sample))

    def _passes(self, after: int, until: int) -> int:
        """Return the usage that the limit allows in the samples after `after`, up to `until`: whole
        numbers whose average is the limit."""
        in_one = self._limit * self._table.config.size_ms / 1_000
        return int(in_one * until) - int(in_one * after)

    def _publish(self, row: int, sample: int, debt: int, weight_ms: float) -> None:
        """Publish the debt for all workers, and reserve the row until the debt is paid."""
        words, config = self._table.words, self._table.config
        # At least 1, because a word of 0 means that there is no debt
        words[row + DEBT] = pack(sample, debt) or 1
        until = sample + config.num + int(weight_ms) // config.size_ms + 1
        words[row + KEEP_UNTIL] = max(words[row + KEEP_UNTIL], min(until, 1 << 62))

    def _allow(self, weight_ms: float, window_ms: int, now: float) -> None:
        """Set the usage that is allowed before the rows of the other workers are read again.

        All workers together may use half of the remaining usage, and each of them at most as much
        as the limit allows in a tenth of a sample. This bounds the usage that the other workers do
        not see.
        """
        left = (window_ms - weight_ms) * self._limit / 1_000
        fair = self.left = left / (2 * self._table.workers)
        self._allowance = int(min(fair, self._limit * self._look_every)) if left > 0 else -1
        self._look_at = now + self._look_every
