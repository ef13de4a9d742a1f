"""Bounded queue from the data path to the event log's writer thread; it never blocks.

`emit` puts a line into a bounded queue, and a thread writes it. If the queue is full the line is
dropped and counted: a slow disk must not slow down the proxy.
"""

import threading
import time
from collections import deque
from typing import Final

from metrics.event_log import EventLog, EventLogSettings
from metrics.integrity import numbered
from metrics.registry import EVENT_LOG_BYTES, EVENTS_DROPPED, EVENTS_WRITTEN
from metrics.snapshot import Snapshot

QUEUE_EVENTS: Final = 65_536
"""Maximum number of events in the queue: a minute of 1,000 events a second, in some 60 MB."""

FLUSH_SECONDS: Final = 1.0
"""Maximum time in seconds until an event is in the open file."""

CHUNK_EVENTS: Final = 1_024
"""Maximum number of events per write, which takes some 2 ms. Writing releases the interpreter lock,
so the event loop does not wait for a whole burst."""


class EventWriter:
    """Queue and writer thread of one worker. Start it after the fork: threads do not survive one.

    `emit` and `report` are called from one thread, the event loop's. The queue needs no lock: one
    thread appends to a deque, one removes from it, and both operations are atomic.
    """

    def __init__(
        self,
        settings: EventLogSettings,
        *,
        queue_events: int = QUEUE_EVENTS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._log = EventLog(settings)
        self._queue: deque[str] = deque()
        self._max_events = queue_events
        self._wake_at = max(1, queue_events // 2)
        self._flush_seconds = flush_seconds
        self._wake = threading.Event()
        self._closing = False
        self._emitted = 0
        self._queue_full = 0
        self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)

    def start(self) -> None:
        """Start the thread, which first closes the files that an earlier run left open."""
        self._thread.start()

    def emit(self, line: str) -> None:
        """Number an event's line and add it to the queue; it is dropped and counted if the queue is
        full, which leaves a gap in the numbers."""
        waiting = len(self._queue)
        if waiting < self._max_events:
            self._queue.append(numbered(line, self._emitted))
        else:
            self._queue_full += 1
        self._emitted += 1
        if waiting + 1 >= self._wake_at and not self._wake.is_set():
            self._wake.set()

    @property
    def lost(self) -> int:
        """Number of events lost since the start, without those of the rate limit."""
        log = self._log
        return self._queue_full + log.dropped + log.removed + log.undelivered

    def report(self, snapshot: Snapshot, *, rate_limited: int) -> None:
        """Add the log's counters; `rate_limited` is the number of lines that
        `UnauthenticatedEventLimit` dropped."""
        snapshot.count(EVENTS_WRITTEN, self._log.written)
        snapshot.count(EVENT_LOG_BYTES, self._log.written_bytes)
        snapshot.count(EVENTS_DROPPED, self._queue_full, "queue_full")
        snapshot.count(EVENTS_DROPPED, self._log.dropped, "write_error")
        snapshot.count(EVENTS_DROPPED, self._log.removed, "file_removed")
        snapshot.count(EVENTS_DROPPED, self._log.undelivered, "undelivered")
        snapshot.count(EVENTS_DROPPED, rate_limited, "strangers")

    def close(self, timeout: float = 5.0) -> bool:
        """Write the queue and close the file; return False if that takes longer than `timeout`
        seconds.

        In that case the next start recovers the file with the lines written so far.
        """
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._log.recover()
        closing = False
        while not closing:
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            # read before draining, so that all lines emitted before it was set are written
            closing = self._closing
            self._drain()
            self._log.tick(time.monotonic())
        self._log.close(time.monotonic())

    def _drain(self) -> None:
        while lines := self._next_lines():
            self._log.append(lines, time.monotonic(), time.time())

    def _next_lines(self) -> list[str]:
        lines: list[str] = []
        while len(lines) < CHUNK_EVENTS:
            try:
                lines.append(self._queue.popleft())
            except IndexError:
                break
        return lines
