"""Model of Kafka's quota arithmetic in one process, for shared meters and buckets.

`now` is monotonic seconds. As in Kafka, time is counted in whole milliseconds.

Sources, in Kafka: `SampledStat`, `Rate`, `TokenBucket`, `QuotaUtils`,
`ControllerMutationQuotaManager`.
"""

from dataclasses import dataclass

from proxy.quota.shared_memory import MAX_THROTTLE_TIME_MS, WindowConfig, milliseconds


@dataclass(slots=True)
class _Sample:
    start: int
    last_event: int
    value: float = 0.0


class Rate:
    """Rate per second over the window: Kafka's `Rate` of a `WindowedSum`.

    The shared meters use fixed samples instead; see `proxy.quota.meter`.
    """

    __slots__ = ("_config", "_current", "_samples")

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now: float) -> None:
        """Add to the current sample, or begin the next one."""
        time = milliseconds(now)
        sample = self._current_sample(time)
        if time - sample.start >= self._config.size_ms:
            sample = self._advance(time)
        sample.value += value
        sample.last_event = time

    def _current_sample(self, time: int) -> _Sample:
        if not self._samples:
            self._samples.append(_Sample(time, time))
        return self._samples[self._current]

    def _advance(self, time: int) -> _Sample:
        # One more than `num`: a sample may overlap the window's beginning
        self._current = (self._current + 1) % (self._config.num + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(time, time))
        else:
            self._samples[self._current] = _Sample(time, time)
        return self._samples[self._current]

    def measure(self, now: float) -> float:
        """Return the rate per second."""
        window = self.window_ms(now)
        return sum(sample.value for sample in self._samples) / (window / 1_000)

    def window_ms(self, now: float) -> int:
        """Return the length of the window in ms.

        It extends from the oldest sample that counts until now; samples that are missing to a full
        window count as empty, so that a first burst is not mistaken for a rate.
        """
        time = milliseconds(now)
        self._purge(time)
        oldest = min((sample.start for sample in self._samples), default=time)
        elapsed = time - oldest
        missing = self._config.num - 1 - elapsed // self._config.size_ms
        return elapsed + max(0, missing) * self._config.size_ms

    def _purge(self, time: int) -> None:
        age = self._config.num * self._config.size_ms
        for index, sample in enumerate(self._samples):
            if time - sample.last_event >= age:
                self._samples[index] = _Sample(time, time)


def throttle_time_ms(observed: float, limit: float, window_ms: float) -> int:
    """Return the time in ms that a client must be silent for its rate to fall to the limit.

    (observed - limit) / limit * window, rounded as Java does; 0 if the limit is kept.
    """
    if observed <= limit:
        return 0
    exact = (observed - limit) / limit * window_ms
    return min(int(min(exact, MAX_THROTTLE_TIME_MS) + 0.5), MAX_THROTTLE_TIME_MS)


class TokenBucket:
    """Bucket of mutations that fills at the quota's rate (KIP-599).

    It permits overdrafts: without a debt, a request may make as many mutations as it likes, and its
    client then waits until the debt is repaid.
    """

    __slots__ = ("_config", "_tokens", "_updated_ms", "limit")

    def __init__(self, limit: float, config: WindowConfig, now: float) -> None:
        self.limit = limit
        """Limit in mutations per second."""
        self._config = config
        self._updated_ms = milliseconds(now)
        # In Kafka the bucket has been filling since 1970 at its first use: it begins full
        self._tokens = self._burst

    @property
    def _burst(self) -> float:
        return self.limit * self._config.num * self._config.size_seconds

    def tokens(self, now: float) -> float:
        """Return the credit in mutations; below zero it is a debt."""
        time = milliseconds(now)
        # A clock that stands still or steps back fills nothing
        elapsed = max(0, time - self._updated_ms) / 1_000
        self._updated_ms = max(time, self._updated_ms)
        self._tokens = min(self._burst, self._tokens + self.limit * elapsed)
        return self._tokens

    def record(self, mutations: float, now: float) -> int:
        """Take tokens unconditionally; return the throttle time (ms) of a permissive quota."""
        self._tokens = min(self._burst, self.tokens(now) - mutations)
        return self.throttle_time_ms(now)

    def try_record(self, mutations: float, now: float) -> int:
        """Take tokens unless there is a debt; return 0, or the time (ms) to wait.

        A strict quota, with THROTTLING_QUOTA_EXCEEDED: CreateTopics v6 and later, DeleteTopics v5,
        CreatePartitions v3.
        """
        wait = self.throttle_time_ms(now)
        if not wait:
            self._tokens = min(self._burst, self._tokens - mutations)
        return wait

    def throttle_time_ms(self, now: float) -> int:
        """Return the time in ms until there is no debt."""
        tokens = self.tokens(now)
        if tokens >= 0:
            return 0
        return max(1, int(min(-tokens / self.limit * 1_000, MAX_THROTTLE_TIME_MS) + 0.5))
