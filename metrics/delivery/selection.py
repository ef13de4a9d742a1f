"""Selection of what is delivered: the kinds of events, and the fields that are hidden."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metrics.events import EventKind

HIDDEN: Final = "hidden"
"""Value of a hidden field; of one that is a list, its only element."""
HIDEABLE: Final = (
    "client_host",
    "client_id",
    "principal",
    "claimed_principal",
    "resource_name",
    "proxy_id",
    "groups",
    "groups_joined",
    "groups_left",
)
"""Fields that can be hidden: those that name a person, a program or a machine."""

_SUMMARY: Final = f'"kind":"{EventKind.SUMMARY}"'.encode()
"""Part of a summary row. In a text of a line, quotes are escaped: nothing else has it."""
_ID: Final = b'"connection_id":"'


class Kinds(StrEnum):
    """Kinds of events that are delivered."""

    ALL = "all"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Choice of lines, and of what is left in them."""

    kinds: Kinds = Kinds.ALL
    hide: frozenset[str] = frozenset()
    """Names of the fields, of `HIDEABLE`, whose values must not leave."""

    def apply(self, lines: list[bytes]) -> tuple[list[bytes], int]:
        """Return what is to be delivered of lines, and how many cannot be.

        With hidden fields, a line that is no JSON object is one of these: what it has is not known.
        """
        if self.kinds is Kinds.SUMMARY:
            lines = [line for line in lines if _SUMMARY in line]
        if not self.hide:
            return lines, 0
        hidden = [self._hidden(line) for line in lines]
        kept = [line for line in hidden if line is not None]
        return kept, len(hidden) - len(kept)

    def _hidden(self, line: bytes) -> bytes | None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(event, dict):
            return None
        for name in self.hide & event.keys():
            event[name] = [HIDDEN] if isinstance(event[name], list) else HIDDEN
        return json.dumps(event, separators=(",", ":")).encode("ascii")


def connection_of(line: bytes) -> bytes | None:
    """Return the id of the connection that a line is about; None: it has none."""
    begin = line.find(_ID)
    if begin < 0:
        return None
    begin += len(_ID)
    end = line.find(b'"', begin)
    return line[begin:end] if end > begin else None
