"""Rotation of the event log's files, and its behaviour when the disk refuses a write.

No thread and no clock here: `now` is monotonic seconds, `wall` Unix time, both arguments.
"""

import contextlib
import logging
from pathlib import Path
from typing import NamedTuple

from metrics.delivery.position import Position, read_position
from metrics.delivery.spool import count_lines
from metrics.event_files import EventFile, beyond_retention, file_stem, recover_orphans
from metrics.integrity import chained

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Time in seconds for which events are dropped after a failed write, to spare a full disk."""

WARNING_SECONDS = 60.0
"""Minimum time in seconds between two warnings."""


class EventLogSettings(NamedTuple):
    """Settings of the event log of one worker."""

    directory: Path
    proxy_id: str
    worker: int
    rotate_bytes: int = 64 * 1024 * 1024
    """Size in bytes at which a file is closed; it may be larger by one write."""
    rotate_seconds: float = 300.0
    """Age in seconds at which a file is closed, so that readers see its events."""
    retention_bytes: int | None = None
    """Maximum size in bytes of all closed files in the directory; beyond it the oldest are removed.
    None if no file is removed."""
    delivered: bool = False
    """True to count events that are removed before they were delivered."""
    chained: bool = False
    """True to chain the lines of each file by hashes."""


class EventLog:
    """Writer of one worker's events to files. Errors of the disk are logged and counted, not
    raised."""

    def __init__(self, settings: EventLogSettings) -> None:
        self._settings = settings
        self._file: EventFile | None = None
        self._file_opened_at = 0.0
        self._file_events = 0
        """Number of events in the open file."""
        self._chain = ""
        """Chain value of the last line of the open file; empty before the first line."""
        self._retry_at: float | None = None
        self._warn_at: float | None = None
        self.written = 0
        """Number of events written since the start, including those in files that were removed."""
        self.written_bytes = 0
        self.dropped = 0
        """Number of events lost because a write failed."""
        self.removed = 0
        """Number of events lost with files that were removed or moved before they were closed."""
        self.undelivered = 0
        """Number of events that retention removed before the delivery's position covered them."""

    def recover(self) -> None:
        """Close the files that an earlier run left open."""
        for path in recover_orphans(self._settings.directory):
            logger.info("recovered the event file %s of an earlier run", path.name)

    def append(self, lines: list[str], now: float, wall: float) -> None:
        """Write lines to the open file, or to a new one."""
        if self._retry_at is not None and now < self._retry_at:
            self.dropped += len(lines)
            return
        self._abandon_if_removed(now)
        try:
            if self._file is None:
                self._begin(now, wall)
            chain = self._chain
            if self._settings.chained:
                lines, chain = chained(lines, chain)
            data = "".join(f"{line}\n" for line in lines).encode("ascii")
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            self.dropped += len(lines)
            self._give_up(error, now)
            return
        self._retry_at = None
        self._chain = chain
        self._file_events += len(lines)
        self.written += len(lines)
        self.written_bytes += len(data)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Close the file if it is large or old enough, and check whether it still exists.

        Called about once a second. Events written to a removed file between two calls are counted
        as lost.
        """
        settings = self._settings
        self._abandon_if_removed(now)
        if self._file is not None and (
            self._file.size >= settings.rotate_bytes
            or now - self._file_opened_at >= settings.rotate_seconds
        ):
            self.close(now)

    def close(self, now: float) -> None:
        """Close the file, and remove the oldest ones beyond `retention_bytes`."""
        self._abandon_if_removed(now)
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
            self._remove_oldest(now)
        except OSError as error:
            self._warn(_refusal(error), now)

    def _remove_oldest(self, now: float) -> None:
        """Remove the oldest files beyond `retention_bytes`. Raises OSError."""
        settings = self._settings
        if settings.retention_bytes is None:
            return
        beyond = beyond_retention(settings.directory, settings.retention_bytes)
        position = read_position(settings.directory) if beyond and settings.delivered else None
        for path in beyond:
            with contextlib.suppress(FileNotFoundError):  # another worker removed it
                lost = 0 if position is None else self._undelivered(path, position, now)
                path.unlink()
                self.undelivered += lost
                if lost:
                    what = f"has lost {path.name}, which retention removed before it was delivered"
                    self._warn(what, now)

    def _undelivered(self, path: Path, position: Position, now: float) -> int:
        """Return the number of events of a file that were not delivered; 0 if it is not readable.

        Raises FileNotFoundError.
        """
        try:
            return count_lines(path, position.offset(path.name, path.lstat().st_ino))
        except FileNotFoundError:
            raise
        except OSError as error:
            what = f"does not know whether {path.name}, which retention removes, was delivered"
            self._warn(f"{what} ({error.strerror})", now)
            return 0

    def _begin(self, now: float, wall: float) -> None:
        settings = self._settings
        stem = file_stem(settings.proxy_id, settings.worker, wall)
        self._file = EventFile(settings.directory, stem)
        self._file_opened_at = now
        self._file_events = 0
        self._chain = ""

    def _abandon_if_removed(self, now: float) -> None:
        """Abandon the file if it was removed or moved, and count its events as lost."""
        if self._file is None or self._file.is_in_place():
            return
        file, self._file = self._file, None
        file.abandon()
        self.removed += self._file_events
        self._warn(f"has lost {file.path.name}, which was removed or moved away", now)

    def _give_up(self, error: OSError, now: float) -> None:
        """Close the file after an error; a new one is created when writing is tried again."""
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
            self.dropped + self.removed + self.undelivered,
        )


def _refusal(error: OSError) -> str:
    return f"does not take events ({error.strerror})"
