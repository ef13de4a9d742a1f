"""Fingerprints of allowed frames, ignoring volatile fields: frames that match them pass.

Rules:

- A fingerprint has every byte of its frame that the verdict depended on, and the frame's size if
  the verdict depended on its end. A frame that matches it would be judged the same.
- Fingerprints belong to one connection, and are forgotten when anything else changes that affects
  verdicts: ACLs, principal, quotas, fetch sessions.
- Recognizing a frame costs one comparison; nothing is decoded or copied.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.connection.frames import COMPILED, Bytes, Owed, Route, int32_at
from proxy.connection.usage import Tally

if TYPE_CHECKING:
    from mypy_extensions import i64

Span = tuple[int, int]
"""Start and end of a range of bytes in a frame, relative to its size field."""

CORRELATED: Final = 12
"""Size in bytes of size field, API key, version and correlation id; the compared bytes follow."""
MAX_FINGERPRINTED_BYTES: Final = 512
"""Maximum length of the part of a frame that is compared, in bytes."""
MAX_SPANS: Final = 32
"""Maximum number of spans of a fingerprint; a Fetch or OffsetCommit has one more than
partitions."""
MAX_FINGERPRINTS: Final = 32
"""Maximum number per connection; a consumer's Fetches have one size per number of partitions."""
MAX_ALIKE: Final = 4
"""Maximum number for one API key and version, and for one size if the size is compared."""
UNLIMITED: Final = 1 << 62

_HEAD: Final = struct.Struct(">iI")
"""Size, API key << 16 | version."""
_EPOCH: Final = struct.Struct(">i")


class Basis(NamedTuple):
    """Part of a frame that its verdict depends on."""

    spans: tuple[Span, ...]
    """Ranges of bytes, the first from `CORRELATED` on. Empty if the verdict depends on more than
    the frame."""
    whole: bool = False
    """True if the verdict also depends on the size of the frame."""
    epoch_at: int = 0
    """Position of a fetch session's epoch, which must be positive; 0 if it is not checked."""
    max_bytes: int = 0
    """`max_bytes` of a Fetch; 0 for other requests, or if no quota counts it."""
    tally: Tally | None = None
    """Tally that counts the frame; None if uses are not counted, or it was counted already."""

    @property
    def is_short(self) -> bool:
        """True if it is short enough to be remembered."""
        return 0 < len(self.spans) <= MAX_SPANS and (
            CORRELATED < self.spans[-1][1] <= MAX_FINGERPRINTED_BYTES
        )


JUDGE_EACH: Final = Basis(())
"""Basis of a verdict that only holds for one frame."""
BY_HEAD: Final = Basis((), whole=True)
"""Stands for the bytes that `Route.check` reads, if nothing else judges the frame."""


def all_but(varying: Sequence[Span], end: int) -> tuple[Span, ...]:
    """Return the spans of a frame that ends at `end`, without the volatile ones."""
    spans, position = [], CORRELATED
    for start, behind in varying:
        spans.append((position, start))
        position = behind
    return (*spans, (position, end))


@lru_cache(maxsize=1_024)
def _reader(spans: tuple[Span, ...]) -> Callable[[Bytes, int], tuple[Any, ...]]:
    """Return the reader of size, API key and version, correlation id, and the bytes of all
    spans."""
    parts, position = [">iIi"], CORRELATED
    for start, end in spans:
        parts.append(f"{start - position}x{end - start}s")
        position = end
    return struct.Struct("".join(parts)).unpack_from


class Fingerprint:
    """Pattern of frames that pass like one that was judged."""

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
        "tally",
        "width",
    )

    def __init__(
        self, frame: Bytes, at: int, size: int, basis: Basis, route: Route, largest: int
    ) -> None:
        """Make the fingerprint of the frame of `size` bytes at `at`; no frame may be longer than
        `largest`."""
        spans = basis.spans
        self.route = route
        self.key: int = _HEAD.unpack_from(frame, at)[1]
        """API key << 16 | version."""
        self.width = spans[-1][1]
        """Number of bytes needed to recognize a frame."""
        self.smallest, self.largest = (size, size) if basis.whole else (self.width - 4, largest)
        """Limits of the size field, in bytes."""
        self.epoch_at = basis.epoch_at
        self.max_bytes = basis.max_bytes
        self.tally = basis.tally
        """Tally that counts the frames that match."""
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
        """Everything that the interpreted `pass_over` needs, in one tuple."""
        self.first = seen[0]
        self.others = [
            (spans[index][0], spans[index][1], seen[index]) for index in range(1, len(seen))
        ]
        """Start, end and bytes of each span after the first."""


def pass_over(
    data: Bytes, start: int, found: Fingerprint, limit: int, queue: list[Owed]
) -> tuple[int, int]:
    """Pass over the frames at `start` that match a fingerprint, at most `limit`, and add their
    entries to the queue. Return the position after them, which may be past the end of `data`, and
    their number.
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
    """The compiled form of the loop in `pass_over`; machine integers are faster than `struct`."""
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
        """Fingerprints by API key and version, and by size if that is compared."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, fingerprint: Fingerprint) -> None:
        """Add a fingerprint."""
        if self._count >= MAX_FINGERPRINTS:
            self.clear()
        alike = self._found.setdefault(_place(fingerprint), [])
        if len(alike) >= MAX_ALIKE:
            self._count -= len(alike)
            alike.clear()
        alike.append(fingerprint)
        self._count += 1

    def of(self, data: Bytes, at: int) -> Sequence[Fingerprint]:
        """Return the fingerprints that the frame at `at` may match, by its first eight bytes."""
        size, key = _HEAD.unpack_from(data, at)
        return self._found.get(size << 32 | key) or self._found.get(key) or NOTHING

    def clear(self) -> None:
        """Forget all fingerprints."""
        self._found.clear()
        self._count = 0


def _place(fingerprint: Fingerprint) -> int:
    if fingerprint.smallest == fingerprint.largest:
        return fingerprint.smallest << 32 | fingerprint.key
    return fingerprint.key
