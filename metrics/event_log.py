"""Rotation of the event log's files, and its behaviour when the disk refuses a write.

No thread and no clock here: `now` is monotonic seconds, `wall` Unix time, both arguments.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from metrics.event_files import EventFile, enforce_retention, file_stem, recover_orphans

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Seconds for which events are dropped after a failed write: a full disk is not hammered."""

WARNING_SECONDS = 60.0
"""The least time in seconds between two warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogSettings:
    """Settings of the event log of one worker."""

    directory: Path
    proxy_id: str
    worker: int
    rotate_bytes: int = 64 * 1024 * 1024
    """The size in bytes at which a file is closed; it may be larger by one write."""
    rotate_seconds: float = 300.0
    """The age in seconds at which a file is closed: readers see events no later."""
    retention_bytes: int | None = None
    """The size in bytes that all closed files of the directory may have; beyond it the oldest are
    removed. None: no file is removed."""


class EventLog:
    """The growing end of the log. It never raises for what the disk does."""

    def __init__(self, settings: EventLogSettings) -> None:
        self._settings = settings
        self._file: EventFile | None = None
        self._file_begun = 0.0
        self._file_events = 0
        """The number of events in the file that is open."""
        self._retry_at: float | None = None
        self._warn_at: float | None = None
        self.written = 0
        """The number of events written since the start, also to files that were removed later."""
        self.written_bytes = 0
        self.dropped = 0
        """The number of events lost because the disk refused a write."""
        self.removed = 0
        """The number of events lost with files that were removed or moved before they closed."""

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
