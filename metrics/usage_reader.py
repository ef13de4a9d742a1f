"""Uses in the event log: who used a resource, and what a principal used.

Memory is bounded by the number of answers, as that of a worker is by its rows: further uses are
counted together.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metrics.events import SCHEMA_VERSION, EventKind
from metrics.usage import MAX_ROWS, Amount, UsageTable, Use

_MARKS: Final = f'"{EventKind.USED}"'.encode(), b'"groups"'
"""Every line of interest contains at least one of these texts, as do a few other lines."""
_MAX_GROUPS: Final = 100
"""Maximum number of groups of a principal in one event that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
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
    table, missing, unread = UsageTable(max_rows=5 * MAX_ROWS), Amount(), 0
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
        if use is None:
            missing.add(amount.count, amount.bytes, amount.first_ms, amount.last_ms)
        elif wanted(use):
            table.add(use, amount.count, amount.bytes, amount.first_ms, amount.last_ms)
    rows, beyond = table.take()
    if beyond.count:
        missing.add(beyond.count, beyond.bytes, beyond.first_ms, beyond.last_ms)
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
