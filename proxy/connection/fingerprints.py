"""Fingerprints of judged frames, by which frames like them pass.

Laws:

- A fingerprint holds every byte of its frame that the verdict depended on; where the verdict
  depended on the frame's end, its size too. A frame that has them all would be judged the same.
- Fingerprints are one connection's, and are forgotten with whatever else the verdicts depended on:
  ACLs, principal, quotas, fetch sessions.
- Recognising a frame costs one comparison, and nothing of it is decoded or copied.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.connection.frames import COMPILED, Bytes, Owed, Route, int32_at

if TYPE_CHECKING:
    from mypy_extensions import i64

Span = tuple[int, int]
"""Start and end of a range of bytes in a frame, counted from its size field."""

CORRELATED: Final = 12
"""Bytes of size, API key and version, and correlation id; what must be alike stands behind them."""
MAX_FINGERPRINTED_BYTES: Final = 512
"""Length of the part of a frame that is compared, in bytes."""
MAX_SPANS: Final = 32
"""Spans of a fingerprint; a Fetch or OffsetCommit has one more than partitions."""
MAX_FINGERPRINTS: Final = 32
"""Per connection: a consumer's Fetches have a size for each number of partitions."""
MAX_ALIKE: Final = 4
"""Fingerprints of one API key and version, and of one size if that is compared."""
UNLIMITED: Final = 1 << 62

_HEAD: Final = struct.Struct(">iI")
"""Size, API key << 16 | version."""
_EPOCH: Final = struct.Struct(">i")


class Basis(NamedTuple):
    """The part of a frame that its verdict depends on."""

    spans: tuple[Span, ...]
    """The bytes, the first of them at `CORRELATED`; none: on more than the frame."""
    whole: bool = False
    """True if the verdict depends on the size of the frame, too."""
    epoch_at: int = 0
    """Position of the epoch of a fetch session, which must be above zero; 0: there is none."""
    max_bytes: int = 0
    """Bytes that a Fetch asks for; 0: it is no Fetch, or nobody counts them."""

    @property
    def is_short(self) -> bool:
        """Return whether it is short enough to be kept."""
        return 0 < len(self.spans) <= MAX_SPANS and (
            CORRELATED < self.spans[-1][1] <= MAX_FINGERPRINTED_BYTES
        )


JUDGE_EACH: Final = Basis(())
"""Basis of a verdict that holds for one frame alone."""
BY_HEAD: Final = Basis((), whole=True)
"""Stands for the bytes that `Route.check` reads, where nobody judges the frame."""


def all_but(varying: Sequence[Span], end: int) -> tuple[Span, ...]:
    """Return the spans of a frame that ends at `end` without those that do not matter."""
    spans, position = [], CORRELATED
    for start, behind in varying:
        spans.append((position, start))
        position = behind
    return (*spans, (position, end))


@lru_cache(maxsize=1_024)
def _reader(spans: tuple[Span, ...]) -> Callable[[Bytes, int], tuple[Any, ...]]:
    """Return what reads size, API key and version, correlation id and the bytes of all spans."""
    parts, position = [">iIi"], CORRELATED
    for start, end in spans:
        parts.append(f"{start - position}x{end - start}s")
        position = end
    return struct.Struct("".join(parts)).unpack_from


class Fingerprint:
    """Pattern of the frames that pass like one that was judged."""

    __slots__ = (
        "epoch_at",
        "first",
        "key",
        "largest",
        "max_bytes",
        "others",
        "parts",
        "route",
        "smallest",
        "width",
    )

    def __init__(
        self, frame: Bytes, at: int, size: int, basis: Basis, route: Route, largest: int
    ) -> None:
        """Take it of the frame of `size` at `at`; `largest` is the limit of any size field."""
        spans = basis.spans
        self.route = route
        self.key: int = _HEAD.unpack_from(frame, at)[1]
        """API key << 16 | version."""
        self.width = spans[-1][1]
        """Bytes that must be here to recognise a frame."""
        self.smallest, self.largest = (size, size) if basis.whole else (self.width - 4, largest)
        """Limits of the size field, in bytes."""
        self.epoch_at = basis.epoch_at
        self.max_bytes = basis.max_bytes
        seen = [bytes(frame[at + start : at + end]) for start, end in spans]
        self.parts = (
            _reader(spans),
            self.width,
            self.key,
            seen[0],
            tuple(seen[1:]),
            self.smallest,
            self.largest,
            self.epoch_at,
            route,
        )
        """All that `pass_over` needs where it is not compiled, in one tuple."""
        self.first = seen[0]
        self.others = [
            (spans[index][0], spans[index][1], seen[index]) for index in range(1, len(seen))
        ]
        """Start, end and bytes of each span after the first."""


def pass_over(
    data: Bytes, start: int, found: Fingerprint, limit: int, queue: list[Owed]
) -> tuple[int, int]:
    """Pass over the frames at `start` that have a fingerprint, `limit` at most; append what is owed
    for each. Return where others begin, perhaps behind the end of `data`, and how many they were.
    """
    if COMPILED and type(data) is bytes:
        return _pass_over_bytes(data, start, found, limit, queue)
    read, width, key, first, others, smallest, largest, epoch_at, route = found.parts
    end, pos, count = len(data), start, 0
    while end - pos >= width and count < limit:
        seen = read(data, pos)
        size = seen[0]
        if seen[3] != first or seen[1] != key or not smallest <= size <= largest:
            break
        if others and seen[4:] != others:
            break
        if epoch_at and _EPOCH.unpack_from(data, pos + epoch_at)[0] <= 0:
            break
        queue.append((seen[2], route))
        count += 1
        pos += size + 4
    return pos, count


def _pass_over_bytes(
    data: bytes, start: "i64", found: Fingerprint, limit: "i64", queue: list[Owed]
) -> "tuple[i64, i64]":
    """Do what `pass_over` does, compiled: machine integers beat `struct`."""
    end: i64 = len(data)
    width: i64 = found.width
    key: i64 = found.key
    smallest: i64 = found.smallest
    largest: i64 = found.largest
    epoch_at: i64 = found.epoch_at
    first, route = found.first, found.route
    first_end: i64 = CORRELATED + len(first)
    has_others = len(found.others) > 0
    count: i64 = 0
    pos = start
    while end - pos >= width and count < limit:
        size = int32_at(data, pos)
        if int32_at(data, pos + 4) != key or size < smallest or size > largest:
            break
        if data[pos + 12 : pos + first_end] != first:
            break
        if has_others and not _is_alike(data, pos, found):
            break
        if epoch_at and int32_at(data, pos + epoch_at) <= 0:
            break
        queue.append((int32_at(data, pos + 8), route))
        count += 1
        pos += size + 4
    return pos, count


def _is_alike(data: bytes, pos: "i64", found: Fingerprint) -> bool:
    for start, end, expected in found.others:
        begin: i64 = start
        behind: i64 = end
        if data[pos + begin : pos + behind] != expected:
            return False
    return True


NOTHING: Final[Sequence[Fingerprint]] = ()


class Fingerprints:
    """Fingerprints of one connection."""

    __slots__ = ("_count", "_found")

    def __init__(self) -> None:
        self._found: dict[int, list[Fingerprint]] = {}
        """By API key and version, and by size where all frames must have the same."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, fingerprint: Fingerprint) -> None:
        """Recognise frames by this, too."""
        if self._count >= MAX_FINGERPRINTS:
            self.clear()
        alike = self._found.setdefault(_place(fingerprint), [])
        if len(alike) >= MAX_ALIKE:
            self._count -= len(alike)
            alike.clear()
        alike.append(fingerprint)
        self._count += 1

    def of(self, data: Bytes, at: int) -> Sequence[Fingerprint]:
        """Return those that the frame at `at`, whose first eight bytes are here, may have."""
        size, key = _HEAD.unpack_from(data, at)
        return self._found.get(size << 32 | key) or self._found.get(key) or NOTHING

    def clear(self) -> None:
        """Recognise nothing any more."""
        self._found.clear()
        self._count = 0


def _place(fingerprint: Fingerprint) -> int:
    if fingerprint.smallest == fingerprint.largest:
        return fingerprint.smallest << 32 | fingerprint.key
    return fingerprint.key
