"""Target of a delivery: a Kafka topic, written `kafka:TOPIC`."""

import re
from dataclasses import dataclass
from typing import Final

MEANT: Final = "must be kafka:TOPIC"
ELSEWHERE: Final = "; a log shipper brings event files elsewhere: docs/fleet.md"

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Pattern of a topic's name (`org.apache.kafka.common.internals.Topic`)."""


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
