"""Heartbeats of the proxy's processes, in shared memory.

Every process counts its heartbeats in a word of its own, from its event loop; a process whose count
no longer changes has stopped working. Rules:

- A watching process counts its own checks and compares no clocks: after the whole machine was
  suspended, no process seems to have been silent.
- Only one process writes a word, and no lock is held, as in `proxy.quota.shared_memory`.
"""

import mmap
from typing import Final

BEAT_EVERY: Final = 0.5
"""Seconds between two heartbeats of a process."""
CHECK_EVERY: Final = 1.0
"""Seconds between two checks of the parent, and of the HTTP process."""
HUNG_CHECKS: Final = 10
"""Number of checks after which a silent process counts as hung: no callback of an event loop takes
a tenth of their time."""
START_CHECKS: Final = 120
"""Number of checks after which a process without any heartbeat counts as hung: a worker may have a
million ACLs to read at its start."""

_LIFE, _BEATS, _SERVES, _DROPPED = range(4)


class Heartbeat:
    """The heartbeat of one process; made by the parent, before it forks."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 32)).cast("Q")

    def begin(self) -> None:
        """Count another start of the process, which has no heartbeat so far."""
        self._words[_BEATS] = self._words[_SERVES] = 0
        self._words[_LIFE] += 1

    def beat(self) -> None:
        """Count a heartbeat."""
        self._words[_BEATS] += 1

    def serve(self) -> None:
        """Record that the process has begun to serve."""
        self._words[_SERVES] = 1

    def drop_lines(self, count: int) -> None:
        """Count lines that the process could not write."""
        self._words[_DROPPED] += count

    @property
    def dropped_lines(self) -> int:
        """Number of lines that the process could not write to its log, in all of its lives."""
        return self._words[_DROPPED]

    @property
    def serves(self) -> bool:
        """True if the process has begun to serve since its last start."""
        return self._words[_SERVES] == 1

    @property
    def life(self) -> int:
        """Number of times that the process was started."""
        return self._words[_LIFE]

    @property
    def beats(self) -> int:
        """Number of heartbeats since its last start; 0 if it is starting, or was never started."""
        return self._words[_BEATS]


class Watch:
    """Watch of one heartbeat: it counts the checks since the last beat."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.silent_checks = 0
        """Number of checks since the last new heartbeat."""
        self._heartbeat = heartbeat
        self._seen = (heartbeat.life, heartbeat.beats)

    def check(self) -> None:
        """Check whether there was a heartbeat since the last check."""
        seen = (self._heartbeat.life, self._heartbeat.beats)
        self.silent_checks = self.silent_checks + 1 if seen == self._seen else 0
        self._seen = seen

    @property
    def max_silent_checks(self) -> int:
        """Number of checks without a new heartbeat after which the process counts as hung."""
        return HUNG_CHECKS if self._seen[1] else START_CHECKS

    @property
    def is_hung(self) -> bool:
        """True if the process has been silent for too long."""
        return self.silent_checks >= self.max_silent_checks
