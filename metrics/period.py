"""Accumulator of one summary row: everything since the previous row."""

import math
from collections import Counter
from typing import Final, NamedTuple

from metrics.events import MAX_INTERVALS

LATENCY_GAMMA: Final = 1.02
"""Growth of the latency buckets: the middle of a bucket is within 1 % of all its values (DDSketch,
Masson et al. 2019, section 2.1: relative accuracy (gamma - 1) / (gamma + 1))."""

MINUTE_MS: Final = 60_000
LAST_MINUTE_BIT: Final = 62
"""Highest bit of a signed 64-bit integer, apart from the sign."""


class Usage(NamedTuple):
    """Totals of a connection since it began, without the requests of SASL."""

    requests: int
    request_bytes: int
    response_bytes: int
    last_request: float | None
    """Time of the last request in monotonic seconds; None before the first request."""


NO_USAGE: Final = Usage(0, 0, 0, None)


def latency_bucket(latency_us: int) -> int:
    """Return the number of the bucket: the least n for which gamma^n is not below the latency."""
    return math.ceil(math.log(max(latency_us, 1), LATENCY_GAMMA))


class Period:
    """Contents of the next summary row."""

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
        self.ended: list[tuple[int | None, str]] = []
        """The intervals that have ended, as JSON, each after its last use."""
        self.omitted = 0
        self.omitted_used_ms: int | None = None
        self.latencies: Counter[int] | None = None
        self.would_be_kills = 0

    def mark(self, last_request_ms: int) -> None:
        """Set the bit of the minute in which a request arrived."""
        minute = (last_request_ms - self.active_from_ms) // MINUTE_MS
        self.active_minutes |= 1 << max(0, min(LAST_MINUTE_BIT, minute))

    def end_interval(self, used_ms: int | None, row: str) -> None:
        """Add an interval; if there are too many, leave out the least used one.

        `used_ms`: age of its session at its last use; None if it was not used.
        """
        self.ended.append((used_ms, row))
        # One place is reserved for the present interval
        if len(self.ended) < MAX_INTERVALS:
            return
        least = min(self.ended, key=lambda held: held[0] or -1)
        self.ended.remove(least)
        self.omitted += 1
        if least[0] is not None:
            self.omitted_used_ms = max(least[0], self.omitted_used_ms or 0)

    def add_latency(self, latency_us: int) -> None:
        """Count the latency of a re-authentication."""
        if self.latencies is None:
            self.latencies = Counter()
        self.latencies[latency_bucket(latency_us)] += 1

    def latency_rows(self) -> list[str]:
        """Return the buckets of the period in ascending order, as JSON."""
        counted = sorted((self.latencies or {}).items())
        return [f'{{"bucket":{bucket},"count":{count}}}' for bucket, count in counted]
