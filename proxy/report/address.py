"""Address of a report: the place that it names, a folder or a prefix in an object store."""

from pathlib import Path
from typing import Final

from metrics.delivery.target import TargetKind, missing_library, parse_target
from metrics.readiness.folder import is_remote
from proxy.errors import ConfigError
from proxy.report.folder import Folder
from proxy.report.place import Place

MEANT: Final = "must be a folder, file:///FOLDER or s3a://BUCKET/PREFIX; copy it from elsewhere"


def place_of(text: str) -> Place:
    """Return the place that a text names. Raises ConfigError."""
    if not is_remote(text):
        return Folder(Path(text))
    try:
        target = parse_target(text)
    except ValueError:
        raise ConfigError("--from", MEANT) from None
    if target.kind is TargetKind.FOLDER:
        return Folder(target.folder)
    if target.kind is not TargetKind.OBJECTS:
        raise ConfigError("--from", MEANT)
    if (needed := missing_library(target)) is not None:
        raise ConfigError("--from", needed)
    from proxy.report.objects import ObjectStore

    return ObjectStore(target.place, target.prefix)
