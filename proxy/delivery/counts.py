"""Counts of the deliverer in shared memory: they outlive it, and a scrape does not wait for it. The
parent creates them before it forks; only the deliverer writes, and the HTTP process reads."""

import mmap
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final

from metrics import registry
from metrics.delivery.deliverer import Delivered, Waiting
from metrics.snapshot import Snapshot
from proxy.ops.status.session_facts import Condition
from proxy.ops.status.text import duration, size

BEHIND_SECONDS: Final = 120.0
"""Seconds without a complete delivery after which the status page marks it. One is complete about
once a second, and pauses after failures are up to half a minute long."""


class _Word(IntEnum):
    EVENTS = 0
    BYTES = auto()
    SET_ASIDE = auto()
    FAILURES = auto()
    GONE_FILES = auto()
    WAITING_BYTES = auto()
    WAITING_SINCE_MS = auto()
    """Epoch milliseconds; 0 if nothing waits."""
    SUCCESS_MS = auto()
    """Epoch milliseconds; 0 before the first success."""


_COUNTERS: Final = (
    (registry.DELIVERY_EVENTS, _Word.EVENTS),
    (registry.DELIVERY_BYTES, _Word.BYTES),
    (registry.DELIVERY_SET_ASIDE, _Word.SET_ASIDE),
    (registry.DELIVERY_FAILURES, _Word.FAILURES),
    (registry.DELIVERY_GONE_FILES, _Word.GONE_FILES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryState:
    """State of a delivery, as it was published last."""

    waiting_bytes: int
    waiting_since: float | None
    """Unix time in seconds; None if nothing waits."""
    success_at: float | None
    """Time of the last complete delivery, in Unix time; None before the first."""
    failures: int
    """Number of attempts that failed."""


class DeliveryCounts:
    """Counts and state of the delivery."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 8 * len(_Word))).cast("q")

    def add(self, delivered: Delivered) -> None:
        """Add the deliveries since the last call."""
        self._words[_Word.EVENTS] += delivered.events
        self._words[_Word.BYTES] += delivered.bytes
        self._words[_Word.SET_ASIDE] += delivered.set_aside
        self._words[_Word.GONE_FILES] += delivered.gone_files

    def failed(self) -> None:
        """Count an attempt that failed."""
        self._words[_Word.FAILURES] += 1

    def succeeded(self, wall: float) -> None:
        """Note that everything is delivered; `wall` is Unix time."""
        self._words[_Word.SUCCESS_MS] = round(wall * 1000)

    def set_waiting(self, waiting: Waiting) -> None:
        """Publish the size and age of the waiting events."""
        self._words[_Word.WAITING_BYTES] = waiting.bytes
        since = waiting.since
        self._words[_Word.WAITING_SINCE_MS] = 0 if since is None else max(1, round(since * 1000))

    def state(self) -> DeliveryState:
        """Return the state."""
        since, success = self._words[_Word.WAITING_SINCE_MS], self._words[_Word.SUCCESS_MS]
        return DeliveryState(
            waiting_bytes=self._words[_Word.WAITING_BYTES],
            waiting_since=since / 1000 if since else None,
            success_at=success / 1000 if success else None,
            failures=self._words[_Word.FAILURES],
        )

    def condition(self, to: str, wall: float) -> Condition:
        """Return the state for the status page, of the delivery to `to`; `wall` is Unix time."""
        state = self.state()
        waiting = f"{size(state.waiting_bytes)} wait"
        if state.waiting_since is not None:
            waiting += f", the oldest for {duration(max(0.0, wall - state.waiting_since))}"
        if state.success_at is None:
            done, good = "nothing delivered yet", not state.failures
        else:
            age = max(0.0, wall - state.success_at)
            done, good = f"all delivered {duration(age)} ago", age < BEHIND_SECONDS
        return Condition(
            "delivery", to, f"{done}; {waiting}" if state.waiting_bytes else done, good
        )

    def report(self, snapshot: Snapshot, wall: float) -> None:
        """Add the metrics; `wall` is Unix time."""
        for metric, word in _COUNTERS:
            snapshot.count(metric, self._words[word])
        state = self.state()
        snapshot.gauge(registry.DELIVERY_WAITING_BYTES, state.waiting_bytes)
        age = 0.0 if state.waiting_since is None else max(0.0, wall - state.waiting_since)
        snapshot.gauge(registry.DELIVERY_OLDEST, age)
        if state.success_at is not None:
            snapshot.gauge(registry.DELIVERY_SUCCESS, state.success_at)
