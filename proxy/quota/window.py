"""Units and window of Kafka's rates (`ClientQuotaManager`, `ClientRequestQuotaManager`).

As in Kafka, time is counted in whole milliseconds.
"""

from dataclasses import dataclass
from typing import Final

NANOSECONDS_PER_PERCENT: Final = 10_000_000
"""Nanoseconds of one thread's time per second in one percent."""
MAX_THROTTLE_TIME_MS: Final = 0x7FFF_FFFF
"""Maximum of throttle_time_ms, an INT32, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
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
    """Return the usage that may be recorded at once in an empty window: Kafka's bound for the bytes
    of one Fetch (`getMaxValueInQuotaWindow`)."""
    return limit * (config.num - 1) * config.size_seconds
