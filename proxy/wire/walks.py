"""Walk through a response to the addresses near its end; hide those of long responses.

A `Structure` is a generator that describes a response by the unsigned varints in it, which are
lengths, and the numbers of bytes between them:

- a generator yields the number of bytes to skip, and is sent the varint after them;
- its return value is the number of bytes to skip until the addresses, or `NOWHERE`;
- records of any size are one skip.

`Walk` follows such a generator over bytes that may arrive in pieces. A Fetch response costs three
steps per partition, about a microsecond. Schemas: Kafka's `ProduceResponse.json`,
`FetchResponse.json`, `ShareFetchResponse.json` and `ShareAcknowledgeResponse.json`, flexible
versions only.

A Fetch response may have 50 MB, and its only addresses, the leader endpoints, are at the end. Its
bytes are forwarded as they arrive, and its length was already sent, so `LongFrameEndpoints` hides
the endpoints in place, without a change of length:

- a tagged field gets a number that clients do not know, and skip (KIP-482);
- a plain array becomes empty, and its former bytes one unknown tagged field.

The client then learns the new leader from Metadata, as clients older than KIP-951 do.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Final

from proxy.errors import BrokerFault
from proxy.wire.apis import FETCH, PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH
from proxy.wire.primitives import HIGHEST_UVARINT, Malformed, View

Structure = Generator[int, int, int]

NOWHERE: Final = -1
"""Result of a walk if the response has no addresses."""

_CORRELATION_ID: Final = 4
_LEADER: Final = 4 + 4
"""Size of LeaderIdAndEpoch in bytes, without its tags."""


def _tags(count: int) -> Structure:
    """Skip `count` tagged fields, except for the content of the last one; return its size."""
    skip = 0
    for _ in range(count):
        yield skip  # the tag's number
        skip = yield 0  # its size
    return skip


def _tag_zero(count: int) -> Structure:
    """Stop after the number of tag 0, if it is among `count` tagged fields."""
    skip = 0
    for _ in range(count):
        number = yield skip
        if number == 0:
            return 0
        skip = yield 0
    return NOWHERE


def _length(length_and_one: int) -> int:
    """Return the size in bytes of a compact string or compact records; 0 for null."""
    return length_and_one - 1 if length_and_one else 0


def _produce(version: int) -> Structure:
    tags = yield _CORRELATION_ID
    skip = (yield from _tags(tags)) if tags else 0
    topics = yield skip
    skip = 0
    for _ in range(topics - 1):
        if version < 13:  # later, topic ids instead of names: KIP-516
            name = yield skip
            partitions = yield _length(name)
        else:
            partitions = yield skip + 16
        skip = 0
        for _ in range(partitions - 1):
            errors = yield skip + 4 + 2 + 8 + 8 + 8
            skip = 0
            for _ in range(errors - 1):
                message = yield skip + 4
                tags = yield _length(message)
                skip = (yield from _tags(tags)) if tags else 0
            message = yield skip
            tags = yield _length(message)
            skip = (yield from _tags(tags)) if tags else 0
        tags = yield skip
        skip = (yield from _tags(tags)) if tags else 0
    count = yield skip + 4
    return (yield from _tag_zero(count)) if count else NOWHERE


def _fetch(version: int) -> Structure:  # noqa: ARG001 - v16 to v18 do not differ up to the addresses
    tags = yield _CORRELATION_ID
    skip = (yield from _tags(tags)) if tags else 0
    topics = yield skip + 4 + 2 + 4
    skip = 0
    for _ in range(topics - 1):
        partitions = yield skip + 16
        skip = 0
        for _ in range(partitions - 1):
            aborted = yield skip + 4 + 2 + 8 + 8 + 8
            skip = 0
            for _ in range(aborted - 1):
                tags = yield skip + 8 + 8
                skip = (yield from _tags(tags)) if tags else 0
            records = yield skip + 4
            tags = yield records - 1 if records else 0
            skip = (yield from _tags(tags)) if tags else 0
        tags = yield skip
        skip = (yield from _tags(tags)) if tags else 0
    count = yield skip
    return (yield from _tag_zero(count)) if count else NOWHERE


def _share_fetch(version: int) -> Structure:  # noqa: ARG001 - v1 and v2 differ in the request only
    tags = yield _CORRELATION_ID
    skip = (yield from _tags(tags)) if tags else 0
    message = yield skip + 4 + 2
    topics = yield _length(message) + 4
    skip = 0
    for _ in range(topics - 1):
        partitions = yield skip + 16
        skip = 0
        for _ in range(partitions - 1):
            message = yield skip + 4 + 2
            message = yield _length(message) + 2
            tags = yield _length(message) + _LEADER
            skip = (yield from _tags(tags)) if tags else 0
            records = yield skip
            acquired = yield _length(records)
            skip = 0
            for _ in range(acquired - 1):
                tags = yield skip + 8 + 8 + 2
                skip = (yield from _tags(tags)) if tags else 0
            tags = yield skip
            skip = (yield from _tags(tags)) if tags else 0
        tags = yield skip
        skip = (yield from _tags(tags)) if tags else 0
    return skip


def _share_acknowledge(version: int) -> Structure:
    tags = yield _CORRELATION_ID
    skip = (yield from _tags(tags)) if tags else 0
    message = yield skip + 4 + 2
    lock_timeout = 4 if version >= 2 else 0  # KIP-1222
    topics = yield _length(message) + lock_timeout
    skip = 0
    for _ in range(topics - 1):
        partitions = yield skip + 16
        skip = 0
        for _ in range(partitions - 1):
            message = yield skip + 4 + 2
            tags = yield _length(message) + _LEADER
            skip = (yield from _tags(tags)) if tags else 0
            tags = yield skip
            skip = (yield from _tags(tags)) if tags else 0
        tags = yield skip
        skip = (yield from _tags(tags)) if tags else 0
    return skip


TAGGED: Final = frozenset({PRODUCE, FETCH})
"""APIs whose leader endpoints are tag 0 of the response: the walk ends after that number. For the
other APIs it ends before the array of nodes."""

STRUCTURES: Final[Mapping[int, Callable[[int], Structure]]] = {
    PRODUCE: _produce,
    FETCH: _fetch,
    SHARE_FETCH: _share_fetch,
    SHARE_ACKNOWLEDGE: _share_acknowledge,
}


class Walk:
    """Walk that follows the steps of one response through its bytes, which may arrive in pieces."""

    __slots__ = ("_finished", "_send", "_shift", "_skip", "_value")

    def __init__(self, api_key: int, api_version: int) -> None:
        steps = STRUCTURES[api_key](api_version)
        self._skip = next(steps)
        self._send = steps.send
        self._value = 0
        self._shift = 0
        self._finished = False

    @property
    def at_addresses(self) -> bool:
        """True if the position that `advance` returned is that of the addresses."""
        return self._finished and self._skip == 0

    @property
    def has_no_addresses(self) -> bool:
        """True if the response was understood, and has no addresses."""
        return self._finished and self._skip == NOWHERE

    def advance(self, view: View, position: int) -> int:
        """Continue with the bytes from `position`, and return the new position.

        That is the end of `view` unless `at_addresses`. Raises `Malformed`.
        """
        if self._finished:
            return self._approach(len(view), position)
        send, skip, value, shift = self._send, self._skip, self._value, self._shift
        end = len(view)
        try:
            while True:
                position += skip
                if position >= end:
                    self._skip, self._value, self._shift = position - end, value, shift
                    return end
                byte = view[position]
                position += 1
                if byte < 0x80 and not shift:  # most have one byte
                    skip = send(byte)
                    continue
                value |= (byte & 0x7F) << shift
                shift += 7
                skip = 0
                if byte < 0x80:
                    if value > HIGHEST_UVARINT:
                        raise Malformed("a varint above 2^31 - 1")
                    skip = send(value)
                    value = shift = 0
                elif shift == 35:
                    raise Malformed("a varint longer than five bytes")
        except StopIteration as end_of_walk:
            self._finished, self._skip = True, end_of_walk.value
            return self._approach(end, position)

    def _approach(self, end: int, position: int) -> int:
        """Skip the bytes between the last varint and the addresses."""
        if self._skip == NOWHERE:
            return end
        step = min(self._skip, end - position)
        self._skip -= step
        return position + step


APIS_CUT_THROUGH: Final = frozenset({PRODUCE, FETCH, SHARE_FETCH, SHARE_ACKNOWLEDGE})
"""APIs whose long responses `LongFrameEndpoints` can follow."""

UNKNOWN_TAG: Final = 0x7F
"""Highest tag number of one byte: greater than any that Kafka has assigned, so tags stay sorted."""
_EMPTY_ARRAY_ONE_TAG: Final = bytes((1, 1, UNKNOWN_TAG))


class LongFrameEndpoints:
    """Hides the leader endpoints of one response, whose bytes are passed to `feed` in order."""

    __slots__ = ("_left", "_overwrite", "_settled", "_tagged", "_walk")

    def __init__(self, api_key: int, api_version: int, body_size: int) -> None:
        """Follow a body of `body_size` bytes, the frame's size field, which counts from the
        correlation id."""
        self._walk = Walk(api_key, api_version)
        self._left = body_size
        self._settled = False
        self._tagged = api_key in TAGGED
        self._overwrite = b""
        """Bytes that are still to be written over a plain array."""

    def feed(self, chunk: memoryview) -> None:
        """Process the next bytes of the body, and change them in place where necessary.

        `chunk` is writable and contains no byte of another frame. Raises BrokerFault if the bytes
        do not parse, at the latest with the body's last byte.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise AssertionError("fed more bytes than the frame has")
        if self._settled:
            return
        try:
            self._follow(chunk)
        except Malformed as malformed:
            raise BrokerFault(f"long response: {malformed}") from None
        if self._left == 0 and not self._settled:
            raise BrokerFault("long response: ends too early")

    def _follow(self, chunk: memoryview) -> None:
        position = 0
        if not self._overwrite:
            position = self._walk.advance(chunk, 0)
            if self._walk.has_no_addresses:
                self._settled = True
                return
            if not self._walk.at_addresses:
                return
            if self._tagged:
                chunk[position - 1] = UNKNOWN_TAG
                self._settled = True
                return
            if position == len(chunk):
                return
            if chunk[position] <= 1:  # no endpoints
                self._settled = True
                return
            self._overwrite = _empty_array_and_tag(len(chunk) - position + self._left)
        part = self._overwrite[: len(chunk) - position]
        chunk[position : position + len(part)] = part
        self._overwrite = self._overwrite[len(part) :]
        self._settled = not self._overwrite


def _empty_array_and_tag(size: int) -> bytes:
    """Return the first bytes of an empty array and one unknown tagged field, which have `size`
    bytes together."""
    content = size - len(_EMPTY_ARRAY_ONE_TAG)
    for width in range(1, 6):
        if 0 <= content - width < 1 << 7 * width:
            return _EMPTY_ARRAY_ONE_TAG + _padded_uvarint(content - width, width)
    raise Malformed("ends too early")


def _padded_uvarint(value: int, width: int) -> bytes:
    """Return an unsigned varint of exactly `width` bytes; readers accept leading zeros.

    The padding is needed where the size of the content, without its own width, needs fewer bytes.
    """
    septets = [value >> 7 * place & 0x7F for place in range(width)]
    return bytes([septet | 0x80 for septet in septets[:-1]] + septets[-1:])
