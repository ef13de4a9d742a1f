"""Target of a delivery: `kafka:TOPIC`, `file:///FOLDER` or `s3a://BUCKET/PREFIX`."""

import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

MEANT: Final = "must be kafka:TOPIC, file:///FOLDER or s3a://BUCKET/PREFIX"

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Pattern of a topic's name (`org.apache.kafka.common.internals.Topic`)."""
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""Pattern of a bucket's name (Amazon S3, "General purpose bucket naming rules")."""


class TargetKind(StrEnum):
    """Kinds of targets, by their prefix."""

    KAFKA = "kafka"
    FOLDER = "file"
    OBJECTS = "s3a"


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a delivery."""

    kind: TargetKind
    place: str
    """The topic, the folder, or the bucket."""
    prefix: str = ""
    """Begin of the names of objects, without slashes at its ends; empty: none."""

    @property
    def folder(self) -> Path:
        """The folder of a `file:` target."""
        return Path(self.place)

    def __str__(self) -> str:
        match self.kind:
            case TargetKind.KAFKA:
                return f"kafka:{self.place}"
            case TargetKind.FOLDER:
                return self.folder.as_uri()
            case TargetKind.OBJECTS:
                return f"s3a://{self.place}/{self.prefix}".rstrip("/")


def parse_target(text: str) -> Target:
    """Return the target that a text names. Raises ValueError, which says what is meant."""
    if text.startswith("kafka:"):
        topic = text.removeprefix("kafka:")
        if not _TOPIC.fullmatch(topic):
            raise ValueError("the topic must be 1 to 249 letters, digits, dots, hyphens, or _")
        return Target(TargetKind.KAFKA, topic)
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError(MEANT) from None
    if url.query or url.fragment or "\0" in unquote(url.path):
        raise ValueError(MEANT)
    if url.scheme == "file" and not url.netloc and text.startswith("file:///"):
        return Target(TargetKind.FOLDER, unquote(url.path))
    if url.scheme in ("s3", "s3a") and _BUCKET.fullmatch(url.netloc):
        return Target(TargetKind.OBJECTS, url.netloc, url.path.strip("/"))
    raise ValueError(MEANT)


def missing_library(target: Target) -> str | None:
    """Return what to install for a target; None: everything is there."""
    if target.kind is TargetKind.KAFKA and find_spec("confluent_kafka") is None:
        return "kafka: needs confluent-kafka: pip install 'kafka-reauth-proxy[kafka]'"
    if target.kind is TargetKind.OBJECTS and find_spec("obstore") is None:
        return "s3a: needs obstore: pip install 'kafka-reauth-proxy[s3]'"
    return None
