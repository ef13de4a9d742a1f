"""What is delivered, and where to: the target, the selection of events, the fields to hide."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metrics.events import EventKind

MEANT: Final = "must be kafka:TOPIC"
ELSEWHERE: Final = "; a log shipper brings event files elsewhere: docs/fleet.md"

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Pattern of a topic's name (`org.apache.kafka.common.internals.Topic`)."""

HIDDEN: Final = "hidden"
"""Value of a hidden field; the only element if the field is a list."""
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
"""Fields that can be hidden: they identify a person, a program or a machine."""

_SUMMARY: Final = f'"kind":"{EventKind.SUMMARY}"'.encode()
"""Part of every summary row, and of no other line, because quotes within texts are escaped."""
_ID: Final = b'"connection_id":"'


class Kinds(StrEnum):
    """Kinds of events that are delivered."""

    ALL = "all"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Choice of lines to deliver, and of fields to hide in them."""

    kinds: Kinds = Kinds.ALL
    hide: frozenset[str] = frozenset()
    """Names of the fields, from `HIDEABLE`, whose values must not be delivered."""

    def apply(self, lines: list[bytes]) -> tuple[list[bytes], int]:
        """Return the lines to deliver, and the number of lines that cannot be delivered.

        With hidden fields, a line that is not a JSON object cannot be delivered: it may contain a
        value that must be hidden.
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
    """Return the connection id in a line; None if it is missing."""
    begin = line.find(_ID)
    if begin < 0:
        return None
    begin += len(_ID)
    end = line.find(b'"', begin)
    return line[begin:end] if end > begin else None


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a delivery."""

    topic: str

    def __str__(self) -> str:
        return f"kafka:{self.topic}"


def parse_target(text: str) -> Target:
    """Return the target that a text names.

    Raises ValueError, which does not quote the text: it may contain a password.
    """
    if not text.startswith("kafka:"):
        raise ValueError(MEANT + ELSEWHERE)
    topic = text.removeprefix("kafka:")
    if not _TOPIC.fullmatch(topic):
        raise ValueError("the topic must be 1 to 249 letters, digits, dots, hyphens, or _")
    return Target(topic)
