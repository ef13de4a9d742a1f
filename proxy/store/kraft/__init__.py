"""Users, ACLs and quotas out of the metadata of a KRaft cluster, as a node has them on its disk.

Sources: KIP-630 (snapshots), KIP-868 (transactions), KIP-900 (SCRAM), and the schemas of records in
Kafka's `common/metadata`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.store.interface import StoreError
from proxy.store.kraft.batches import Batch, batches
from proxy.store.kraft.records import Metadata, UnknownRecord
from proxy.wire.primitives import Malformed

LOG_DIRECTORY: Final = "__cluster_metadata-0"
_CHECKPOINT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_SEGMENT: Final = re.compile(r"(\d{20})\.log", re.ASCII)
_SNAPSHOT_FOOTER: Final = 4
"""Type of the control record that ends a snapshot (KIP-630)."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    path: Path
    end: int
    """Offset of the first record that is not in the snapshot."""


def read_metadata(place: Path) -> Metadata:
    """Return the metadata in a snapshot, or in a log directory with its latest snapshot.

    Everything in the log counts, also at its end what other nodes may not have yet. Raises
    StoreError.
    """
    metadata = Metadata()
    snapshot, segments = _files(place)
    if snapshot is not None:
        _read_snapshot(snapshot, metadata)
    _read_log(segments, 0 if snapshot is None else snapshot.end, metadata)
    metadata.end()
    return metadata


def _files(place: Path) -> tuple[_Snapshot | None, list[Path]]:
    """Return the latest snapshot, if there is one, and the segments of the log, in order."""
    if place.is_file():
        found = _CHECKPOINT.fullmatch(place.name)
        if found is None:
            raise StoreError(f"{place}: is not a metadata snapshot (OFFSET-EPOCH.checkpoint)")
        return _Snapshot(place, int(found[1])), []
    below = place / LOG_DIRECTORY
    directory = below if below.is_dir() else place
    try:
        names = sorted(one.name for one in directory.iterdir())
    except OSError as error:
        raise StoreError(f"{directory}: cannot be read: {error.strerror}") from None
    checkpoints = [found for name in names if (found := _CHECKPOINT.fullmatch(name))]
    segments = [directory / name for name in names if _SEGMENT.fullmatch(name)]
    if not checkpoints and not segments:
        raise StoreError(
            f"{place}: has neither {LOG_DIRECTORY} nor metadata snapshots: give the log.dirs or"
            " metadata.log.dir of a KRaft node"
        )
    latest = checkpoints[-1] if checkpoints else None
    snapshot = None if latest is None else _Snapshot(directory / latest[0], int(latest[1]))
    return snapshot, segments


def _read_snapshot(snapshot: _Snapshot, metadata: Metadata) -> None:
    is_whole = False
    for batch in _batches(snapshot.path, is_growing=False):
        is_whole = batch.control_type == _SNAPSHOT_FOOTER
        _apply(snapshot.path, batch, metadata)
    if not is_whole:
        raise StoreError(f"{snapshot.path}: is not whole: it has no end")


def _read_log(segments: list[Path], start: int, metadata: Metadata) -> None:
    """Read the records of a log from an offset on."""
    offset: int | None = None
    for number, path in enumerate(segments, 1):
        for batch in _batches(path, is_growing=number == len(segments)):
            if offset is None and batch.first > start:
                raise StoreError(
                    f"{path}: records {start} to {batch.first - 1} are missing: the snapshot that"
                    " has them is not there"
                )
            if offset is not None and batch.first != offset:
                raise StoreError(f"{path}: record {offset} is missing")
            offset = batch.end
            if batch.end > start:
                _apply(path, batch, metadata, start - batch.first)


def _batches(path: Path, *, is_growing: bool) -> Iterator[Batch]:
    try:
        with path.open("rb") as file:
            yield from batches(file, is_growing=is_growing)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    except Malformed as malformed:
        raise StoreError(f"{path}: is damaged, or not of Kafka: {malformed}") from None


def _apply(path: Path, batch: Batch, metadata: Metadata, skipped: int = 0) -> None:
    try:
        for value in batch.values[max(skipped, 0) :]:
            metadata.apply(value)
    except Malformed as malformed:
        raise StoreError(f"{path}: is damaged, or not of Kafka: {malformed}") from None
    except UnknownRecord as unknown:
        raise StoreError(f"{path}: {unknown}") from None
