"""Frame headers, routes and in-flight entries of the hot path.

A frame is never decoded to be forwarded. `REQUEST_HEAD` reads size, API key and version (as one
number), correlation id and client id length in one call; the rest of the frame is not touched,
but for the few bytes a `Check` needs.
"""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from mypy_extensions import i64

COMPILED: Final = not __file__.endswith(".py")
"""True if the data path is compiled: there machine integers (`i64`) beat `struct`."""
BUILD: Final = "compiled" if COMPILED else "interpreted"
"""How the data path runs; stands behind the version."""

Bytes = bytes | memoryview
"""Bytes that were read, or the part of a shared read buffer that was filled."""

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
"""A request header without client id: nothing that Kafka's own parser accepts is shorter."""
MAX_BYTES_OF_A_LOOK: Final = 65_536
"""A check that wants to see more of a frame than this is being led on."""
MAX_BYTES_OF_A_HEAD: Final = 1_024
"""Length of a Produce up to its first topic, in bytes; a longer one is gathered."""
MAX_TAGS_OF_A_LOOK: Final = 16
"""Tagged fields of a request header, of which Kafka has none so far: each look passes over all of
them, and who sends byte by byte is looked at as often."""

LONG_WRITE: Final = 16_384
"""From a read buffer, what is longer is written without a copy, and at once."""


def int32_at(data: bytes, at: "i64") -> "i64":
    """The signed 32-bit number at `at`; for compiled code."""
    a: i64 = data[at]
    b: i64 = data[at + 1]
    c: i64 = data[at + 2]
    d: i64 = data[at + 3]
    return ((a << 24 | b << 16 | c << 8 | d) ^ 0x80000000) - 0x80000000


def cut(data: Bytes, start: int, end: int) -> Bytes:
    """The part of `data` to be written: itself if it is all, a copy if it is short."""
    if end - start == len(data) and type(data) is bytes:
        return data
    piece = data[start:end]
    return piece if end - start > LONG_WRITE else bytes(piece)


def client_id_end(data: Bytes, pos: int) -> int:
    """The end of the client id of the request at `pos`, perhaps beyond what is here."""
    length: int = _INT16.unpack_from(data, pos + REQUEST_HEAD.size - _INT16.size)[0]
    return pos + REQUEST_HEAD.size + max(length, 0)


FORWARD: Final = 0
"""Forward it; the broker will answer."""
FORWARD_UNANSWERED: Final = 1
"""Forward it; the broker will not answer (Produce with acks=0)."""
UNDECIDED: Final = 2
"""The bytes at hand do not suffice."""

Check = Callable[[Bytes, int, int], tuple[int, int]]
"""`check(data, at, end)`: look at a frame whose client id ends at `at`, and of which the bytes
before `end` are here, and say what to do with it, and behind which byte that is no more seen."""

Transform = Callable[[bytes], bytes]
"""From a response's content behind the size field to what the client is sent in its place."""


class LongTransform(Protocol):
    """Changes a response in passing, without changing its length."""

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes behind the size field and change them in place."""
        ...


class Route:
    """Way of the requests of one API key and version to one broker, with their counters.

    The counters are plain integers that are read when metrics are collected.
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
        """None: every such request is forwarded and answered."""
        self.transform = transform
        """None: responses pass as they came."""
        self.long_transform = long_transform
        """Made per long response, from its size; None: long ones are gathered like others."""
        self.takes_long = takes_long
        """True if a long response is changed in steps."""
        self.metered = metered
        """True if responses count towards a quota, if their client has one."""
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0


class Amendment(Route):
    """Stands for a route where the response to one request alone is treated in a way of its own."""

    __slots__ = ("counted", "keeps")

    def __init__(
        self,
        route: Route,
        transform: Transform,
        long_transform: Callable[[int], LongTransform] | None = None,
        *,
        takes_long: bool = False,
        keeps: int = 0,
    ) -> None:
        """Include the route's own transforms in those given; see `keeps`."""
        super().__init__(
            route.api_key,
            route.api_version,
            None,
            transform,
            long_transform,
            takes_long=takes_long or route.takes_long,
            metered=route.metered,
        )
        self.counted: Route = route
        """The route whose counters count the response."""
        self.keeps = keeps
        """About how many bytes of memory are kept until the response comes."""
        if isinstance(route, Amendment):
            self.counted = route.counted
            self.keeps += route.keeps


Owed = tuple[int, Route]
"""Entry of the in-flight queue: the correlation id and route of the response that is owed, or
what stands in place of the route (`proxy.connection.inflight`)."""


def route_key(api_key: int, api_version: int) -> int:
    """The key under which a route is found, as `REQUEST_HEAD` reads it."""
    return api_key << 16 | api_version


def look_closer(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The look at what is never to be forwarded at a first look."""
    del data, at, end
    return FORWARD, 0


def check_produce_before_v3(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The look at a Produce of v0 to v2, which begins with its acks."""
    return _acks(data, at, end)


def check_produce(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The look at a Produce of v3 to v8: with acks=0 it gets no answer."""
    if end < at + 2:
        return UNDECIDED, end
    (length,) = _INT16.unpack_from(data, at)
    return _acks(data, at + 2 + max(length, 0), end)


def check_flexible_produce(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The look at a Produce of v9 or later (KIP-482)."""
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
