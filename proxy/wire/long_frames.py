"""Removal of leader end points from long responses while their bytes pass.

A Fetch response may have 50 MB, and its only addresses, the leader end points, are at the end. So
its bytes are forwarded as they arrive, and as its length was already sent, the end points are
hidden in place, without a change of length:

- a tagged field gets a number that clients do not know, and skip (KIP-482);
- a plain array becomes empty, and its former bytes one unknown tagged field.

The client then learns the new leader from Metadata, as clients older than KIP-951 do.
"""

from typing import Final

from proxy.errors import BrokerFault
from proxy.wire.apis import FETCH, PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH
from proxy.wire.primitives import Malformed
from proxy.wire.walks import TAGGED, Walk

APIS_CUT_THROUGH: Final = frozenset({PRODUCE, FETCH, SHARE_FETCH, SHARE_ACKNOWLEDGE})
"""APIs whose long responses `LongFrameEndpoints` can follow."""

UNKNOWN_TAG: Final = 0x7F
"""Highest tag number of one byte: greater than all that Kafka has assigned, so the order holds."""
_EMPTY_ARRAY_ONE_TAG: Final = bytes((1, 1, UNKNOWN_TAG))


class LongFrameEndpoints:
    """Hides the leader end points of one response, whose bytes are passed to `feed` in order."""

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
            if chunk[position] <= 1:  # no end points
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
