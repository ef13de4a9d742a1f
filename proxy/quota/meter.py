"""Meter of one quota: usage by all workers together, and the throttle time.

Kafka's arithmetic (see `window.Rate`) over samples that begin at the same moments everywhere. What
is recorded at the beginning of each sample gives the same rate as in Kafka; a test compares them.

One thing is done better. Kafka forgets a sample as soon as it leaves the window: a client that is
throttled for a burst may repeat it eleven seconds later, so that what passes over half a minute
is off by a third. Here what leaves the window becomes a *debt* that is paid off at the quota's
rate. It is nothing while the quota is kept, so a client that is throttled for the first time waits
exactly as long as in Kafka; and over any time longer than the window, the average is the quota.
Formally: for all s < t, used(s, t) <= limit * max(window, t - s), but for the last request: that of
each connection where it is counted when it has come (a Produce), that of each worker where what
exceeds the limit already is left out (a Fetch; see `Throttle.fetched`).

Debts are kept as what was used, like the samples, so that a change of the limit changes how long
they last: whose limit was too low for a while does not wait any longer when it is raised.
"""

from dataclasses import dataclass
from typing import Final

from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import (
    DEBT,
    KEEP_UNTIL,
    NUMBER_MASK,
    SAMPLES,
    VALUE_BITS,
    VALUE_MASK,
    SharedQuota,
    UsageTable,
    pack,
    unpack,
)
from proxy.quota.window import MAX_THROTTLE_TIME_MS, milliseconds, most_in_window

_LOOKS_PER_SAMPLE: Final = 10
"""How often the other workers' use is looked at, at least, while a quota is in use."""
_ROUNDING_MS: Final = 2
"""By how much who waits for as long as told may come too early."""
MAX_AT_ONCE: Final = 0x7FFF_FFFF
"""What max_bytes, an INT32, can say."""


@dataclass(slots=True)
class Count:
    """What one worker's clients used under one entry, and what followed; it only grows."""

    used: int = 0
    """Bytes, nanoseconds or connections; what is not settled yet is not in it."""
    throttles: int = 0
    throttle_time_ms: int = 0

    def note(self, throttle_time_ms: int) -> None:
        """Somebody was throttled, or would have been in audit."""
        self.throttles += 1
        self.throttle_time_ms += throttle_time_ms


class Meter(SharedQuota):
    """One worker's view of one quota; its connections with the same tags share the object."""

    __slots__ = (
        "__weakref__",
        "_allowance",
        "_keeps_debts",
        "_limit",
        "_look_at",
        "_look_every",
        "_settled_sample",
        "claimed_until",
        "count",
        "crowded_until",
        "entry",
        "kind",
        "left",
        "longest_ms",
        "most_at_once",
        "pending",
        "tags",
    )

    def __init__(
        self,
        table: UsageTable,
        worker: int,
        *,
        kind: str,
        tags: Tags,
        limit: float,
        longest_ms: int = MAX_THROTTLE_TIME_MS,
        keeps_debts: bool = True,
    ) -> None:
        """Count for `worker`, from 0.

        `longest_ms` is the longest throttle time to be told. Where nobody is throttled, in audit,
        no debts are kept: they would grow beyond measure.
        """
        super().__init__(table, worker, kind=kind, tags=tags)
        self.count, self.entry = Count(), ""
        """What metrics are told of, and the entry that the limit comes from."""
        self.kind = kind
        self.tags = tags
        self.longest_ms = longest_ms
        self._keeps_debts = keeps_debts
        self.limit = limit
        self.pending = 0
        """Recorded, but not yet told to the others."""
        self.left = 0.0
        """What this worker's share of the quota let pass when the others were looked at last."""
        self._allowance = -1
        """What may be pending without a look at the others; below 0: nothing."""
        self._look_at = 0.0
        self._look_every = table.config.size_seconds / _LOOKS_PER_SAMPLE
        self._settled_sample = 0
        self.crowded_until = 0.0
        """Until when those who were told to wait come back, all together."""
        self.claimed_until = 0.0
        """Until when one of them is first. Both are `Throttle`'s."""

    @property
    def limit(self) -> float:
        """Per second. May be set at any time."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        self._allowance = -1
        most = most_in_window(limit, self._table.config)
        self.most_at_once = max(1, int(min(most, MAX_AT_ONCE)))
        """What passes at once after a silence; at least 1."""

    def exceeded(self, now: float) -> int:
        """Return for how long (ms) the limit stays exceeded; 0: it is not, or was a moment ago."""
        if self._allowance >= 0 and now < self._look_at:
            return 0
        over_ms = self._settle(0, now)
        return over_ms if over_ms > _ROUNDING_MS else 0

    def is_calm(self, now: float) -> bool:
        """Whether the limit is not exceeded, and nobody comes back who was told to wait."""
        return now >= self.crowded_until and now >= self.claimed_until and not self.exceeded(now)

    def room(self, now: float) -> int:
        """Return what may be used before the others must be looked at; 0 or less: nothing."""
        return self._allowance - self.pending if now < self._look_at else 0

    def use(self, amount: int) -> None:
        """Record a use for which there was `room`."""
        self.pending += amount

    def record(self, amount: int, now: float) -> int:
        """Record a use; return for how long (ms) its connection is to be held, 0: not at all.

        Far from the limit this is an addition and two comparisons; the others' use is looked at
        ten times a second.
        """
        if self.pending + amount <= self._allowance and now < self._look_at:
            self.pending += amount
            return 0
        return self._settle(amount, now)

    def try_record(self, amount: int, now: float) -> int:
        """Record a use unless it exceeds the limit; 0: recorded, else how long to wait (ms)."""
        wait = self._settle(0, now, ahead=amount)
        if not wait:
            self._settle(amount, now)
        return wait

    def settle(self, now: float) -> None:
        """Write down what is pending: the meter goes with the last connection that uses it."""
        if self.pending:
            self._settle(0, now)

    def rate(self, now: float) -> float:
        """Return what all workers use per second."""
        self._settle(0, now)
        sample = self._sample(now)
        used, _ = self._used(sample)
        return used * 1_000 / self._window_ms(sample, now)

    def _settle(self, amount: int, now: float, ahead: int = 0) -> int:
        """Tell the others what was used here, look at what they used, and judge.

        `ahead` counts in the judgement, but is not recorded.
        """
        sample = self._sample(now)
        row = self._own_row(sample)
        if self.pending:  # all of it is from around the last look
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
        return max(1, min(round(over_ms), self.longest_ms))

    def _sample(self, now: float) -> int:
        return milliseconds(now) // self._table.config.size_ms

    def _window_ms(self, sample: int, now: float) -> int:
        """The window: whole samples, and what has passed of the present one."""
        config = self._table.config
        begun = max(0, milliseconds(now) - sample * config.size_ms)
        return (config.num - 1) * config.size_ms + begun

    def _begin(self, row: int, sample: int, now: float) -> int:
        """Take as used what would have fitted into the part of the first sample that had passed.

        In Kafka the first sample begins with the first use. Here it may have begun almost a
        sample's length earlier, which would be granted over and above.
        """
        passed_ms = max(0, milliseconds(now) - sample * self._table.config.size_ms)
        passed = int(self._limit * passed_ms / 1_000)
        self._add(row, sample, passed)
        return passed

    def _write(self, row: int, sample: int) -> None:
        """Tell the others what is pending, in one sample of our own row."""
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
        """Return what all workers used in the window, and the debt from before it."""
        num, end = self._table.config.num, SAMPLES + self._table.ring
        here = sample & NUMBER_MASK
        columns = self._columns()
        used = 0
        for words in columns:
            for word in words[SAMPLES:end]:
                age = here - (word >> VALUE_BITS) & NUMBER_MASK
                # a sample ahead of us: a cached clock lags by some milliseconds
                if age < num or age == NUMBER_MASK:
                    used += word & VALUE_MASK
        return used, self._debt(columns, sample) if self._keeps_debts else 0

    def _debt(self, columns: list[list[int]], sample: int) -> int:
        """Bring the last debt that is known up to `sample`: each sample that left the window is
        added to it, and what the limit lets pass in one sample is paid off."""
        config, ring = self._table.config, self._table.ring
        published = [unpack(words[DEBT], sample) for words in columns if words[DEBT]]
        last, debt = max((one for one in published if one[0] <= sample + 1), default=(sample, 0))
        # once the last sample that was written has left, it is only paid off
        for number in range(last + 1, min(sample, last + config.num) + 1):
            leaving = number - config.num
            cells = (unpack(words[SAMPLES + leaving % ring], sample) for words in columns)
            left = sum(value for of_sample, value in cells if of_sample == leaving)
            debt = max(0, debt + left - self._passes(number - 1, number))
        return max(0, debt - self._passes(min(sample, last + config.num), sample))

    def _passes(self, after: int, until: int) -> int:
        """Return what the limit lets pass in the samples behind `after`: a whole number, but on
        the average the limit itself."""
        in_one = self._limit * self._table.config.size_ms / 1_000
        return int(in_one * until) - int(in_one * after)

    def _publish(self, row: int, sample: int, debt: int, weight_ms: float) -> None:
        """Let others, and ourselves later, go on from this debt; keep the row until it is paid."""
        words, config = self._table.words, self._table.config
        # a debt of 1: a word of 0 is none at all
        words[row + DEBT] = pack(sample, debt) or 1
        until = sample + config.num + int(weight_ms) // config.size_ms + 1
        words[row + KEEP_UNTIL] = max(words[row + KEEP_UNTIL], min(until, 1 << 62))

    def _allow(self, weight_ms: float, window_ms: int, now: float) -> None:
        """Decide how much may pass before the next look.

        All workers together may use up half of what is left, and no more than a tenth of a
        sample's worth each: that is how wrong the others' view of us can be.
        """
        left = (window_ms - weight_ms) * self._limit / 1_000
        fair = self.left = left / (2 * self._table.workers)
        self._allowance = int(min(fair, self._limit * self._look_every)) if left > 0 else -1
        self._look_at = now + self._look_every
