"""Deliverer: takes batches from the spool to a sink, and keeps the position.

It has no clock and never sleeps: the caller decides when to run it, and what to do after an error.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from metrics.delivery.position import Position
from metrics.delivery.selection import Selection
from metrics.delivery.spool import Batch, Spool, SpoolFile


class DeliveryFailed(Exception):
    """The sink did not accept a batch, which can be retried. The message gives the reason."""


class Sink(Protocol):
    """Receiver of events."""

    @property
    def batch_bytes(self) -> int:
        """Largest size of a batch in bytes."""

    def deliver(self, batch: Batch) -> int:
        """Deliver the lines of a batch, at least one.

        Return the number of permanently refused ones, such as lines that are too long.
        When it returns, all others are stored. Raises DeliveryFailed, after which some lines may
        have arrived.
        """


@dataclass(slots=True)
class Delivered:
    """Counts since the start."""

    events: int = 0
    """Events that were delivered; an event that was delivered twice counts twice."""
    bytes: int = 0
    """Uncompressed size of these events in bytes."""
    set_aside: int = 0
    """Lines that cannot be delivered: too long, cut, or permanently refused."""
    gone_files: int = 0
    """Files that disappeared before they were completely delivered."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Events that are not delivered yet."""

    bytes: int = 0
    since: float | None = None
    """Unix time at or before which the oldest of them was written; None if no event is waiting."""


def waiting_in(
    files: Iterable[SpoolFile],
    position: Position,
    caught_up_at: Mapping[str, float] = MappingProxyType({}),
) -> Waiting:
    """Return the part of a folder's files that is not delivered yet.

    `caught_up_at`: last change of each file at the time when it was completely delivered.
    """
    size, since = 0, None
    for file in files:
        rest = file.size - position.offset(file.name, file.inode)
        if rest <= 0:
            continue
        size += rest
        begun = file.modified if file.begun is None else min(file.begun, file.modified)
        begun = caught_up_at.get(file.name, begun)
        since = begun if since is None else min(since, begun)
    return Waiting(size, since)


class Deliverer:
    """Delivery of one folder to one sink."""

    def __init__(self, spool: Spool, position: Position, sink: Sink, selection: Selection) -> None:
        self._spool = spool
        self._position = position
        self._sink = sink
        self._selection = selection
        self._files: list[SpoolFile] = []
        """Files in the most recent listing."""
        self._sizes: dict[str, int] = {}
        """Sizes of the files in the most recent listing."""
        self._caught_up_at: dict[str, float] = {}
        """Last change of each file at the time when it was completely delivered."""
        self.delivered = Delivered()
        self.gone: list[str] = []
        """Names of files that disappeared before they were delivered; the caller clears it."""

    def steps(self) -> Iterator[None]:
        """Deliver the present lines, one batch after the other.

        It yields after each step. Stopping between two steps loses no lines. Raises DeliveryFailed
        and OSError.
        """
        self._files = self._spool.files()
        self._forget_missing()
        yield
        for file in self._files:
            yield from self._deliver(file)

    def save(self) -> None:
        """Write the position if it has changed. Raises OSError."""
        if not self._position.is_saved:
            self._position.save(self._spool.fd)

    def waiting(self) -> Waiting:
        """Return the undelivered events of the files in the most recent listing."""
        return waiting_in(self._files, self._position, self._caught_up_at)

    def _deliver(self, file: SpoolFile) -> Iterator[None]:
        position, sink = self._position, self._sink
        offset = position.offset(file.name, file.inode)
        while offset != file.size:
            batch = self._spool.read(file, offset, sink.batch_bytes)
            if batch is None:
                return
            yield
            lines, set_aside = self._selection.apply(batch.lines)
            refused = 0
            if lines:
                refused = sink.deliver(batch._replace(lines=lines))
            yield
            offset = batch.end
            position.advance(file.name, file.inode, offset)
            self._count(lines, refused, set_aside + batch.set_aside)
            yield
            if offset > file.size:
                return  # it has grown since: deliver the other files first
        self._caught_up_at[file.name] = file.modified

    def _count(self, lines: list[bytes], refused: int, set_aside: int) -> None:
        counts = self.delivered
        counts.events += len(lines) - refused
        counts.bytes += sum(map(len, lines)) + len(lines)
        counts.set_aside += set_aside + refused

    def _forget_missing(self) -> None:
        """Drop files that no longer exist, and record those that were not completely delivered."""
        listed = {file.name: file for file in self._files}
        known = {*self._position.names(), *self._sizes}
        for name in self._spool.missing(known - listed.keys()):
            if self._left_of(name):
                self.delivered.gone_files += 1
                self.gone.append(name)
            self._position.forget([name])
            self._sizes.pop(name, None)
            self._caught_up_at.pop(name, None)
        self._sizes |= {name: file.size for name, file in listed.items()}

    def _left_of(self, name: str) -> bool:
        """Return whether a removed file is known to have had undelivered lines."""
        return self._sizes.get(name, 0) > self._position.reached(name)
