"""What one summary row gathers between the row before and the row to come."""

import math
from collections import Counter
from typing import NamedTuple

from metrics.events import MAX_INTERVALS, AuthInterval, LatencyBucket

LATENCY_GAMMA = 1.02
"""Growth of the latency buckets: a bucket's middle is within 1 % of all its values (DDSketch,
Masson et al. 2019, section 2.1: relative accuracy (gamma - 1) / (gamma + 1))."""

MINUTE_MS = 60_000
LAST_MINUTE_BIT = 62
"""The highest bit of a signed 64-bit integer that is not its sign."""


class Usage(NamedTuple):
    """What the relay counted since the connection began, without the requests of SASL."""

    requests: int
    request_bytes: int
    response_bytes: int
    last_request: float | None
    """Monotonic seconds; None: none came."""


NO_USAGE = Usage(0, 0, 0, None)


def latency_bucket(latency_us: int) -> int:
    """Number of the bucket: the least n with gamma^n at or above the latency."""
    return math.ceil(math.log(max(latency_us, 1), LATENCY_GAMMA))


class Period:
    """What the next summary row will say."""

    __slots__ = (
        "active_from_ms",
        "active_minutes",
        "ended",
        "latencies",
        "omitted",
        "omitted_used_ms",
        "start_ms",
        "usage",
        "would_be_kills",
    )

    def __init__(self, start_ms: int, usage: Usage) -> None:
        self.start_ms = start_ms
        self.usage = usage
        self.active_from_ms = start_ms - start_ms % MINUTE_MS
        self.active_minutes = 0
        self.ended: list[AuthInterval] = []
        self.omitted = 0
        self.omitted_used_ms: int | None = None
        self.latencies: Counter[int] | None = None
        self.would_be_kills = 0

    def mark(self, last_request_ms: int) -> None:
        """Set the bit of the minute in which a request came."""
        minute = (last_request_ms - self.active_from_ms) // MINUTE_MS
        self.active_minutes |= 1 << max(0, min(LAST_MINUTE_BIT, minute))

    def end_interval(self, interval: AuthInterval) -> None:
        """Keep an interval; of too many the least used is left out."""
        self.ended.append(interval)
        # one place is for the interval that goes on
        if len(self.ended) < MAX_INTERVALS:
            return
        least = min(self.ended, key=lambda held: held.last_request_since_auth_ms or -1)
        self.ended.remove(least)
        self.omitted += 1
        used = least.last_request_since_auth_ms
        if used is not None:
            self.omitted_used_ms = max(used, self.omitted_used_ms or 0)

    def add_latency(self, latency_us: int) -> None:
        """Count the latency of a re-authentication."""
        if self.latencies is None:
            self.latencies = Counter()
        self.latencies[latency_bucket(latency_us)] += 1

    def latency_buckets(self) -> tuple[LatencyBucket, ...]:
        """Give the histogram of the period, in ascending order."""
        counted = sorted((self.latencies or {}).items())
        return tuple(LatencyBucket(bucket=bucket, count=count) for bucket, count in counted)
