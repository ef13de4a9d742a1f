"""Frame headers, routes and in-flight entries of the hot path.

Forwarding a frame does not decode it. `REQUEST_HEAD` reads size, API key and version (as one
number), correlation id and client id length in one call; of the rest, only a `Check` reads a few
bytes.
"""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from mypy_extensions import i64

COMPILED: Final = not __file__.endswith(".py")
"""True if the data path is compiled; compiled code reads integers faster with `i64` than with
`struct`."""
BUILD: Final = "compiled" if COMPILED else "interpreted"
"""How the data path runs; printed after the version."""

Bytes = bytes | memoryview
"""Bytes that were read: an object of their own, or the filled part of a shared read buffer."""

REQUEST_HEAD: Final = struct.Struct(">iIih")
"""Size, API key << 16 | version, correlation id, client id length."""
Head = tuple[int, int, int, int]
"""The fields of `REQUEST_HEAD`."""
RESPONSE_HEAD: Final = struct.Struct(">ii")
read_response_head: Final[Callable[[Bytes, int], tuple[int, int]]] = RESPONSE_HEAD.unpack_from
"""Size, correlation id."""
SIZE: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")

MIN_REQUEST: Final = REQUEST_HEAD.size - SIZE.size
"""Size of a request header without a client id, in bytes; Kafka's parser accepts nothing
shorter."""
MAX_BYTES_OF_A_LOOK: Final = 65_536
"""Maximum number of bytes that a check may ask for; a frame that needs more is hostile."""
MAX_BYTES_OF_A_HEAD: Final = 1_024
"""Maximum length of a Produce up to its first topic, in bytes; a longer one is gathered."""
MAX_TAGS_OF_A_LOOK: Final = 16
"""Maximum number of tagged fields in a request header; Kafka has not defined any so far. The check
reads them all again whenever a client sends another byte."""

LONG_WRITE: Final = 16_384
"""Size in bytes above which part of a read buffer is written at once and without a copy."""


def int32_at(data: bytes, at: "i64") -> "i64":
    """Return the signed 32-bit number at `at`; for compiled code."""
    a: i64 = data[at]
    b: i64 = data[at + 1]
    c: i64 = data[at + 2]
    d: i64 = data[at + 3]
    return ((a << 24 | b << 16 | c << 8 | d) ^ 0x80000000) - 0x80000000


def cut(data: Bytes, start: int, end: int) -> Bytes:
    """Return the part of `data` to be written: `data` itself if it is all, a copy if it is
    short."""
    if end - start == len(data) and type(data) is bytes:
        return data
    piece = data[start:end]
    return piece if end - start > LONG_WRITE else bytes(piece)


def client_id_end(data: Bytes, pos: int) -> int:
    """Return the end of the client id of the request at `pos`, which may be past the end of
    `data`."""
    length: int = _INT16.unpack_from(data, pos + REQUEST_HEAD.size - _INT16.size)[0]
    return pos + REQUEST_HEAD.size + max(length, 0)


FORWARD: Final = 0
"""Forward the request; the broker will answer."""
FORWARD_UNANSWERED: Final = 1
"""Forward the request; the broker will not answer (Produce with acks=0)."""
UNDECIDED: Final = 2
"""More bytes are needed."""

Check = Callable[[Bytes, int, int], tuple[int, int]]
"""Function `check(data, at, end)` that checks a frame whose client id ends at `at`, by its bytes
before `end`. Returns `FORWARD`, `FORWARD_UNANSWERED` or `UNDECIDED`, and the position after the
last byte that this depends on."""

Transform = Callable[[bytes], bytes]
"""Maps a response body to the body sent to the client; both begin with the correlation id."""


class LongTransform(Protocol):
    """Changes a response while it passes, without changing its length."""

    def feed(self, chunk: memoryview) -> None:
        """Change the next bytes after the size field in place."""


class Route:
    """How requests of one API key and version are forwarded to one broker, with their counters.

    The counters are plain integers; a scrape reads them.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "check",
        "long_transform",
        "metered",
        "request_bytes",
        "requests",
        "response_bytes",
        "takes_long",
        "transform",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        check: Check | None = None,
        transform: Transform | None = None,
        long_transform: Callable[[int], LongTransform] | None = None,
        *,
        takes_long: bool = False,
        metered: bool = False,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.check = check
        """None if every such request is forwarded and answered."""
        self.transform = transform
        """None if responses are passed on unchanged."""
        self.long_transform = long_transform
        """Makes the transform of a long response from its size; None if long ones are gathered,
        too."""
        self.takes_long = takes_long
        """True if long responses are changed in steps."""
        self.metered = metered
        """True if responses count towards their client's quota."""
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0


Owed = tuple[int, Route]
"""Entry of the in-flight queue: correlation id and route of the response owed, or the object that
replaces the route (`proxy.connection.inflight`)."""


def route_key(api_key: int, api_version: int) -> int:
    """Return the key of a route, as `REQUEST_HEAD` reads it."""
    return api_key << 16 | api_version


def look_closer(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Check for requests that are always judged whole."""
    del data, at, end
    return FORWARD, 0


def check_produce_before_v3(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Check a Produce of v0 to v2, which begins with its acks."""
    return _acks(data, at, end)


def check_produce(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Check a Produce of v3 to v8; with acks=0 it gets no response."""
    if end < at + 2:
        return UNDECIDED, end
    (length,) = _INT16.unpack_from(data, at)
    return _acks(data, at + 2 + max(length, 0), end)


def check_flexible_produce(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Check a Produce of v9 or later (KIP-482)."""
    try:
        tags, at = _uvarint(data, at, end)
        if tags > MAX_TAGS_OF_A_LOOK:
            return UNDECIDED, end
        for _ in range(tags):
            _, at = _uvarint(data, at, end)
            size, at = _uvarint(data, at, end)
            at += size
        length, at = _uvarint(data, at, end)
    except IndexError:
        return UNDECIDED, end
    return _acks(data, at + max(length - 1, 0), end)


def _acks(data: Bytes, at: int, end: int) -> tuple[int, int]:
    if end < at + 2:
        return UNDECIDED, end
    return (FORWARD if _INT16.unpack_from(data, at)[0] else FORWARD_UNANSWERED), at + 2


def _uvarint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= end:
            raise IndexError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at
