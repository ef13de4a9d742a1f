"""Counts of allowed use: who did what to which resource, and their records in the event log.

No clock here: times are Unix milliseconds, an argument. The wall clock may jump back, so the first
and last time of a row are the least and the greatest time that was seen.

Memory is bounded by the number of rows and by the length of their texts. Use beyond the bound is
counted in one total, so that the sum of all counts stays exact.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from metrics.event_lines import Line
from metrics.events import SCHEMA_VERSION, EventKind
from metrics.history import Timeline

MAX_ROWS: Final = 20_000
"""Maximum number of rows per interval and worker."""
MAX_KEY_CHARS: Final = 8 << 20
"""Maximum number of characters in the keys of all rows together."""

_MARKS: Final = f'"{EventKind.USED}"'.encode(), b'"groups"'
"""Every line of interest contains at least one of these texts, as do a few other lines."""
_MAX_GROUPS: Final = 100
"""Maximum number of groups of a principal in one event that are read."""


class Use(NamedTuple):
    """Key of a row."""

    principal: str
    """Principal with its type, such as `User:alice`."""
    client_id: str
    host: str
    operation: str
    resource_type: str
    name: str


@dataclass(slots=True)
class Amount:
    """Amount of use in one row."""

    count: int = 0
    bytes: int = 0
    """Size of the requests. A request that uses several resources counts in full for each."""
    first_ms: int = 0
    last_ms: int = 0

    def add(self, more: "Amount") -> None:
        """Add the requests of another amount."""
        self.first_ms = min(self.first_ms, more.first_ms) if self.count else more.first_ms
        self.last_ms = max(self.last_ms, more.last_ms) if self.count else more.last_ms
        self.count += more.count
        self.bytes += more.bytes


class UsageTable:
    """Use within the current interval."""

    def __init__(self, *, max_rows: int = MAX_ROWS, max_key_chars: int = MAX_KEY_CHARS) -> None:
        self._rows: dict[Use, Amount] = {}
        self._missing = Amount()
        self._key_chars = 0
        self._max_rows = max_rows
        self._max_key_chars = max_key_chars

    def add(self, use: Use | None, amount: Amount) -> None:
        """Add an amount, which may be empty, to its row; None as a use if it is not known."""
        if amount.count == 0:
            return
        row = self._missing if use is None else self._rows.get(use)
        if row is None:
            assert use is not None
            row = self._new_row(use)
        row.add(amount)

    def _new_row(self, use: Use) -> Amount:
        chars = sum(map(len, use))
        if len(self._rows) >= self._max_rows or self._key_chars + chars > self._max_key_chars:
            return self._missing
        self._key_chars += chars
        row = self._rows[use] = Amount()
        return row

    def take(self) -> tuple[dict[Use, Amount], Amount]:
        """Return the rows, and the use that has no row, and begin the next interval."""
        taken = self._rows, self._missing
        self._rows, self._missing, self._key_chars = {}, Amount(), 0
        return taken


class UsageLog:
    """Uses of one worker's clients, as records of the event log."""

    def __init__(self, stream_id: str, proxy_id: str, worker: int, timeline: Timeline) -> None:
        """`stream_id` stands for a connection id in the records: they are about all connections of
        a client."""
        self._stream_id = stream_id
        self._proxy_id = proxy_id
        self._worker = worker
        self._timeline = timeline
        self._table = UsageTable()
        self._sequence = 0

    def add(self, use: Use | None, count: int, size: int, first_at: float, last_at: float) -> None:
        """Add requests that arrived between two times, in monotonic seconds."""
        epoch_ms = self._timeline.epoch_ms
        self._table.add(use, Amount(count, size, epoch_ms(first_at), epoch_ms(last_at)))

    def lines(self, now: float) -> Iterator[str]:
        """Yield the records of the interval that ends now, in monotonic seconds, one for each row,
        and one for the use that has no row."""
        rows, missing = self._table.take()
        for use, amount in rows.items():
            yield self._line(amount, now, use)
        if missing.count:
            yield self._line(missing, now, None)

    def _line(self, amount: Amount, now: float, use: Use | None) -> str:
        line = Line()
        line.number("schema_version", SCHEMA_VERSION)
        line.text("proxy_id", self._proxy_id)
        line.number("worker", self._worker)
        line.text("connection_id", self._stream_id)
        line.text("kind", EventKind.USED)
        line.number("timestamp_ms", self._timeline.epoch_ms(now))
        line.number("sequence", self._sequence)
        self._sequence += 1
        if use is not None:
            line.unique_text("client_host", use.host)
            line.optional_text("client_id", use.client_id or None)
            line.text("principal", use.principal)
            line.text("operation", use.operation)
            line.text("resource_type", use.resource_type)
            line.unique_text("resource_name", use.name)
        line.number("requests", amount.count)
        line.number("request_bytes", amount.bytes)
        line.number("period_start_ms", amount.first_ms)
        line.number("last_request_ms", amount.last_ms)
        return line.finish()


class Uses(NamedTuple):
    """Uses that were asked for."""

    rows: dict[Use, Amount]
    """The most recent use first."""
    missing: Amount
    """Uses beyond the maximum of different ones: their principals and resources are unknown."""
    unread: int
    """Records that cannot be read, or are of a newer schema."""
    groups: Mapping[str, set[str]]
    """Groups of principals, which every event of a login names."""


def read(lines: Iterable[bytes], wanted: Callable[[Use], bool]) -> Uses:
    """Return the wanted uses in lines of the log."""
    table, unread = UsageTable(max_rows=5 * MAX_ROWS), 0
    groups: dict[str, set[str]] = {}
    for line in lines:
        if not any(mark in line for mark in _MARKS):
            continue
        try:
            found = json.loads(line)
            _note_groups(found, groups)
            record = _record(found) if found["kind"] == EventKind.USED else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unread += 1
            continue
        if record is None:
            continue
        use, amount = record
        if use is None or wanted(use):
            table.add(use, amount)
    rows, missing = table.take()
    latest = sorted(rows.items(), key=lambda row: (-row[1].last_ms, row[0]))
    return Uses(rows=dict(latest), missing=missing, unread=unread, groups=groups)


def _note_groups(event: dict[str, Any], groups: dict[str, set[str]]) -> None:
    principal, names = event.get("principal"), event.get("groups")
    if names and (principal in groups or len(groups) < MAX_ROWS):
        groups.setdefault(_text(principal), set()).update(map(_text, names[:_MAX_GROUPS]))


def _record(found: dict[str, Any]) -> tuple[Use | None, Amount]:
    """Return the use and its amount; no use if it is unknown. Raises ValueError, KeyError and
    TypeError."""
    if found["schema_version"] != SCHEMA_VERSION:
        raise ValueError
    names = "requests", "request_bytes", "period_start_ms", "last_request_ms"
    amount = Amount(*(_number(found[name]) for name in names))
    if "resource_name" not in found:
        return None, amount
    texts = "principal", "client_id", "client_host", "operation", "resource_type", "resource_name"
    return Use(*(_text(found.get(name, "")) for name in texts)), amount


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
