"""When a file of the event log is begun, rotated and closed, and what happens if the disk refuses.

No thread and no clock here: `now` is monotonic seconds, `wall` Unix time, both arguments.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from metrics.event_files import EventFile, enforce_retention, file_stem, recover_orphans

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""After a refusal events are dropped unseen for so long, rather than hammering a full disk."""

WARNING_SECONDS = 60.0
"""At most one line of log in this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogSettings:
    """Where events go, and how a file ends."""

    directory: Path
    proxy_id: str
    worker: int
    rotate_bytes: int = 64 * 1024 * 1024
    """A file is closed once it is this large; it may be larger by one write."""
    rotate_seconds: float = 300.0
    """A file is closed at this age at the latest: the age of what a reader of closed files sees."""
    retention_bytes: int | None = None
    """The oldest closed files in the directory go when all of them exceed this; None: never."""


class EventLog:
    """The growing end of the log. It never raises for what the disk does."""

    def __init__(self, settings: EventLogSettings) -> None:
        self._settings = settings
        self._file: EventFile | None = None
        self._file_begun = 0.0
        self._file_events = 0
        """Events written to the file that is open."""
        self._retry_at: float | None = None
        self._warn_at: float | None = None
        self.written = 0
        """Events written, those of files that were then removed included."""
        self.written_bytes = 0
        self.dropped = 0
        """Events lost because the disk refused."""
        self.removed = 0
        """Events lost with files that were removed, or moved away, before they were closed."""

    def recover(self) -> None:
        """Close what a run before left open."""
        for path in recover_orphans(self._settings.directory):
            logger.info("recovered the event file %s of an earlier run", path.name)

    def append(self, lines: list[str], now: float, wall: float) -> None:
        """Write lines, in a file that is begun if there is none."""
        if self._retry_at is not None and now < self._retry_at:
            self.dropped += len(lines)
            return
        data = "".join(f"{line}\n" for line in lines).encode("ascii")
        self._abandon_if_removed(now)
        try:
            if self._file is None:
                self._begin(now, wall)
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            self.dropped += len(lines)
            self._give_up(error, now)
            return
        self._retry_at = None
        self._file_events += len(lines)
        self.written += len(lines)
        self.written_bytes += len(data)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Close the file if it is large or old enough, and look whether it is still there.

        To be called about once a second: an event is written at most so long to a file that
        nobody can read any more, and is counted as lost.
        """
        settings = self._settings
        self._abandon_if_removed(now)
        if self._file is not None and (
            self._file.size >= settings.rotate_bytes
            or now - self._file_begun >= settings.rotate_seconds
        ):
            self.close(now)

    def close(self, now: float) -> None:
        """Close the file, and let the oldest ones go."""
        self._abandon_if_removed(now)
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
            if self._settings.retention_bytes is not None:
                enforce_retention(self._settings.directory, self._settings.retention_bytes)
        except OSError as error:
            self._warn(_refusal(error), now)

    def _begin(self, now: float, wall: float) -> None:
        settings = self._settings
        stem = file_stem(settings.proxy_id, settings.worker, wall)
        self._file = EventFile(settings.directory, stem)
        self._file_begun = now
        self._file_events = 0

    def _abandon_if_removed(self, now: float) -> None:
        """Write no further to a file that is not in its place, and count what it had as lost."""
        if self._file is None or self._file.is_in_place():
            return
        file, self._file = self._file, None
        file.abandon()
        self.removed += self._file_events
        self._warn(f"has lost {file.path.name}, which was removed or moved away", now)

    def _give_up(self, error: OSError, now: float) -> None:
        """Give the file up: on a disk that is sick, another one may have to be begun elsewhere."""
        self._warn(_refusal(error), now)
        self.close(now)
        self._retry_at = now + RETRY_SECONDS

    def _warn(self, what: str, now: float) -> None:
        if self._warn_at is not None and now < self._warn_at:
            return
        self._warn_at = now + WARNING_SECONDS
        logger.warning(
            "the event log in %s %s; %d events lost so far",
            self._settings.directory,
            what,
            self.dropped + self.removed,
        )


def _refusal(error: OSError) -> str:
    return f"does not take events ({error.strerror})"
