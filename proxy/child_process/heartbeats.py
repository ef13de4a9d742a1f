"""Heartbeats of the proxy's processes, in shared memory.

Every process counts its heartbeats in a word of its own, from its event loop; one whose count
stands still does nothing for anybody. Laws:

- Whoever watches counts its own looks and compares no clocks: after the whole machine stood still,
  or was suspended, nobody seems to have been silent.
- One process writes a word at a time, and no lock is held, as in `proxy.quota.shared_memory`.
"""

import mmap
from typing import Final

BEAT_EVERY: Final = 0.5
"""Seconds between two heartbeats of a process."""
LOOK_EVERY: Final = 1.0
"""Seconds between two looks of the parent, and of the HTTP process."""
HUNG_LOOKS: Final = 10
"""Looks after which who is silent counts as hung: no turn of an event loop takes a tenth of it."""
START_LOOKS: Final = 120
"""The same before the first heartbeat: a worker that starts may have a million ACLs to read."""

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
        """How often it has begun."""
        return self._words[_LIFE]

    @property
    def beats(self) -> int:
        """Heartbeats of this life; 0: it is starting, or has not been started anew yet."""
        return self._words[_BEATS]


class Watch:
    """One look after the other at a heartbeat: for how many it has been silent."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.silent = 0
        """Looks since something was new."""
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
        """Whether it has been silent for too long."""
        return self.silent >= self.patience
