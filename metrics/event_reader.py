"""Events of the log for people: their selection from files or a topic, and each in words.

A writer of the files or the topic chooses every value, so a line that does not have the
schema's types is counted and skipped.
"""

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from metrics.event_schema import EVENT_SCHEMA
from metrics.events import EventKind
from metrics.integrity import MAX_LINE_BYTES, files_of_log, open_regular

MAX_EVENTS: Final = 10_000
"""Maximum number of events that are returned, the latest ones."""

_ENDINGS: Final = frozenset(
    {EventKind.FAILED, EventKind.EXPIRED_KILLED, EventKind.MISROUTED, EventKind.CLOSED}
)
"""Kinds that explain the end of a connection."""
_EXPLAINED: Final = frozenset(
    {"expired", "token_expired", "expired_at_login", "authentication_failed"}
)
"""Close reasons that an earlier event of the connection explains."""
_SELDOM_WANTED: Final = frozenset({"summary", "checkpoint", "used"})
"""Kinds that are returned only if they are asked for: they repeat other events, or are many."""
_TYPES: Final = {
    one.name: {"long": int, "string": str, "boolean": bool}.get(one.type, list)
    for one in EVENT_SCHEMA
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selection of events; None selects all."""

    client_id: str | None = None
    principal: str | None = None
    """The authenticated or the claimed principal."""
    kinds: frozenset[str] | None = None
    """Kinds; None for all except summaries, checkpoints and records of use."""
    since_ms: int | None = None
    """Earliest time, epoch ms."""
    endings: bool = False
    """True for the one event that explains the end of a connection."""

    def includes(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is selected."""
        kind = event["kind"]
        if self.endings and (kind not in _ENDINGS or event.get("close_reason") in _EXPLAINED):
            return False
        return (
            (kind not in _SELDOM_WANTED if self.kinds is None else kind in self.kinds)
            and self.client_id in (None, event.get("client_id"))
            and self.principal in (None, event.get("principal"), event.get("claimed_principal"))
            and (self.since_ms is None or event["timestamp_ms"] >= self.since_ms)
        )


@dataclass(slots=True)
class Found:
    """Selected events, the oldest first."""

    events: list[dict[str, Any]]
    more: int = 0
    """Number of older events beyond `MAX_EVENTS`."""
    unread: int = 0
    """Number of lines that are not events of the schema."""


def lines_of_files(path: Path, since_ms: int | None) -> Iterator[bytes]:
    """Yield the lines of a folder's event files, or of a file, without the files that were last
    written before a time. Raises OSError."""
    path.stat()  # raises an error that names it
    for name in files_of_log(path):
        file = open_regular(name)
        if file is None:
            continue
        with file:
            if since_ms is None or os.fstat(file.fileno()).st_mtime * 1000 >= since_ms:
                yield from iter(partial(file.readline, MAX_LINE_BYTES), b"")


def select(lines: Iterable[bytes], wanted: Wanted) -> Found:
    """Return the selected events, each once: delivery may repeat a line."""
    found = Found([])
    latest: list[tuple[int, int, tuple[Any, Any], dict[str, Any]]] = []
    kept: set[tuple[Any, Any]] = set()
    for number, line in enumerate(lines):
        event = _parsed(line)
        if event is None:
            found.unread += 1
            continue
        key = event.get("connection_id", line), event.get("sequence")
        if key in kept or not wanted.includes(event):
            continue
        kept.add(key)
        heapq.heappush(latest, (event["timestamp_ms"], number, key, event))
        if len(latest) > MAX_EVENTS:
            kept.discard(heapq.heappop(latest)[2])
            found.more += 1
    found.events = [event for *_, event in sorted(latest)]
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if it has no kind or time, or a value of another type."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not {"kind", "timestamp_ms"} <= event.keys():
        return None
    of_the_schema = all(type(event[name]) is _TYPES[name] for name in event.keys() & _TYPES.keys())
    return event if of_the_schema else None
