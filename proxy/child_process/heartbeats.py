"""Heartbeats of the proxy's processes, in shared memory.

Every process counts its heartbeats in a word of its own, from its event loop; one whose count
stands still does nothing for anybody. Rules:

- Whoever watches counts its own looks and compares no clocks: after the whole machine stood still,
  or was suspended, nobody seems to have been silent.
- One process writes a word at a time, and no lock is held, as in `proxy.quota.shared_memory`.
"""

import mmap
from typing import Final

BEAT_EVERY: Final = 0.5
"""Seconds between two heartbeats of a process."""
LOOK_EVERY: Final = 1.0
"""Seconds between two checks of the parent, and of the HTTP process."""
HUNG_LOOKS: Final = 10
"""Number of checks after which a silent process counts as hung: no callback of an event loop takes
a tenth of that time."""
START_LOOKS: Final = 120
"""Number of checks that a process has before its first heartbeat: a worker may have a million ACLs
to read at its start."""

_LIFE: Final = 0
_BEATS: Final = 1


class Heartbeat:
    """The heartbeat of one process; made by the parent, before it forks."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 16)).cast("Q")

    def begin(self) -> None:
        """Begin another life, without a heartbeat so far."""
        self._words[_BEATS] = 0
        self._words[_LIFE] += 1

    def beat(self) -> None:
        """Be alive."""
        self._words[_BEATS] += 1

    @property
    def life(self) -> int:
        """Number of times that the process has begun."""
        return self._words[_LIFE]

    @property
    def beats(self) -> int:
        """Heartbeats of this life; 0: it is starting, or has not been started anew yet."""
        return self._words[_BEATS]


class Watch:
    """Watch of one heartbeat: it counts the checks since the last beat."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.silent = 0
        """Number of checks since the last new heartbeat."""
        self._heartbeat = heartbeat
        self._seen = (heartbeat.life, heartbeat.beats)

    def look(self) -> None:
        """Look whether it goes on."""
        seen = (self._heartbeat.life, self._heartbeat.beats)
        self.silent = self.silent + 1 if seen == self._seen else 0
        self._seen = seen

    @property
    def patience(self) -> int:
        """Looks that it may be silent."""
        return HUNG_LOOKS if self._seen[1] else START_LOOKS

    @property
    def is_hung(self) -> bool:
        """True if it has been silent for too long."""
        return self.silent >= self.patience
