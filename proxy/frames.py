"""Frames as the hot path sees them: a first look at a few bytes, and what follows from it.

A frame is never decoded to be forwarded. `REQUEST_HEAD` reads size, API key and version (as one
number), correlation id and client id length in one call; the rest of the frame is not touched,
but for the few bytes a `Check` needs.
"""

import struct
from collections.abc import Callable
from typing import Final, Protocol

REQUEST_HEAD: Final = struct.Struct(">iIih")
"""Size, API key << 16 | version, correlation id, client id length."""
RESPONSE_HEAD: Final = struct.Struct(">ii")
"""Size, correlation id."""
SIZE: Final = struct.Struct(">i")

SMALLEST_REQUEST: Final = REQUEST_HEAD.size - SIZE.size
"""A request header without client id: nothing that Kafka's own parser accepts is shorter."""
MOST_BYTES_OF_A_LOOK: Final = 65_536
"""A check that wants to see more of a frame than this is being led on."""

FORWARD: Final = 0
"""Forward it; the broker will answer."""
FORWARD_UNANSWERED: Final = 1
"""Forward it; the broker will not answer (Produce with acks=0)."""
UNDECIDED: Final = 2
"""The bytes at hand do not suffice."""

Check = Callable[[memoryview, int, int], int]
"""`check(view, start, end)`: look at the frame whose size field is at `start`, of which the bytes
before `end` are here, and say what to do with it."""

Transform = Callable[[bytes], bytes]
"""From a response's content behind the size field to what the client is sent in its place."""


class LongTransform(Protocol):
    """Changes a response in passing, without changing its length."""

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes behind the size field and change them in place."""
        ...


class Route:
    """How requests of one API key and version pass to one target, and how many did.

    The counters are plain integers that are read when metrics are collected.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "check",
        "long_transform",
        "request_bytes",
        "requests",
        "response_bytes",
        "transform",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        check: Check | None = None,
        transform: Transform | None = None,
        long_transform: Callable[[int], LongTransform] | None = None,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.check = check
        """None: every such request is forwarded and answered."""
        self.transform = transform
        """None: responses pass as they came."""
        self.long_transform = long_transform
        """Made per long response, from its size; None: long ones are gathered like others."""
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0


def route_key(api_key: int, api_version: int) -> int:
    """The key under which a route is found, as `REQUEST_HEAD` reads it."""
    return api_key << 16 | api_version


_INT16 = struct.Struct(">h")
FIRST_FLEXIBLE_PRODUCE: Final = 9


def produce_check(api_version: int) -> Check:
    """The look at a Produce request (v3 and later): acks=0 gets no answer."""
    return _compact_produce if api_version >= FIRST_FLEXIBLE_PRODUCE else _legacy_produce


def _legacy_produce(view: memoryview, start: int, end: int) -> int:
    client_id = start + REQUEST_HEAD.size
    if end < client_id + 2:
        return UNDECIDED
    (length,) = _INT16.unpack_from(view, client_id - 2)
    transactional_id = client_id + max(length, 0)
    if end < transactional_id + 2:
        return UNDECIDED
    (length,) = _INT16.unpack_from(view, transactional_id)
    return _acks(view, transactional_id + 2 + max(length, 0), end)


def _compact_produce(view: memoryview, start: int, end: int) -> int:
    client_id = start + REQUEST_HEAD.size
    (length,) = _INT16.unpack_from(view, client_id - 2)
    at = client_id + max(length, 0)
    if end >= at + 4 and view[at] == 0 and view[at + 1] == 0:  # no tags, no transaction
        return FORWARD_UNANSWERED if view[at + 2] == 0 and view[at + 3] == 0 else FORWARD
    try:
        tags, at = _uvarint(view, at, end)
        for _ in range(tags):
            _, at = _uvarint(view, at, end)
            size, at = _uvarint(view, at, end)
            at += size
        length, at = _uvarint(view, at, end)
    except IndexError:
        return UNDECIDED
    return _acks(view, at + max(length - 1, 0), end)


def _acks(view: memoryview, at: int, end: int) -> int:
    if end < at + 2:
        return UNDECIDED
    return FORWARD_UNANSWERED if view[at] == 0 and view[at + 1] == 0 else FORWARD


def _uvarint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= end:
            raise IndexError
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at
