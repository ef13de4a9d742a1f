"""Kafka's primitive types, read by position and written to bytes.

Rules:

- A reader takes a view and a position, and returns the value and the position after it. It never
  reads outside the view: a missing or impossible value is `Malformed`.
- A `skip_…` function returns the position alone, which may be past the end of the view: the next
  reader will raise, or the caller compares the last position with the end.
- The caller turns `Malformed` into the fault of the client or of the broker, whose bytes they are.

Sources: the protocol guide's "Protocol Primitive Types"; KIP-482 for compact types and tags.
"""

import struct
from typing import Final

from proxy.errors import ProxyError

View = bytes | memoryview

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

MAX_STRING: Final = 0x7FFF
"""Maximum size of a string in bytes: Kafka's generated classes refuse longer strings, including
compact ones."""
MAX_SENTENCE: Final = MAX_STRING // 4
"""Number of characters that fit into any string, at four bytes each at most. Messages that quote a
name of the request are truncated to it."""
HIGHEST_UVARINT: Final = 0x7FFF_FFFF
"""Highest unsigned varint: Kafka reads one into a Java int, and refuses negative values."""

MAX_TAGS: Final = 4_096
"""Maximum number of tagged fields in one section, known or not: far more than in any message of
Kafka, which has no such bound."""


class Malformed(ProxyError):
    """The bytes end too early, or are invalid."""


def int8(view: View, position: int) -> tuple[int, int]:
    """Read an INT8 or a BOOLEAN (as 0 or 1)."""
    try:
        byte = view[position]
    except IndexError:
        raise Malformed("ends inside an int8") from None
    return (byte - 256 if byte > 0x7F else byte), position + 1


def int16(view: View, position: int) -> tuple[int, int]:
    """Read an INT16."""
    try:
        return INT16.unpack_from(view, position)[0], position + 2
    except struct.error:
        raise Malformed("ends inside an int16") from None


def int32(view: View, position: int) -> tuple[int, int]:
    """Read an INT32."""
    try:
        return INT32.unpack_from(view, position)[0], position + 4
    except struct.error:
        raise Malformed("ends inside an int32") from None


def int64(view: View, position: int) -> tuple[int, int]:
    """Read an INT64."""
    try:
        return INT64.unpack_from(view, position)[0], position + 8
    except struct.error:
        raise Malformed("ends inside an int64") from None


def uvarint(view: View, position: int) -> tuple[int, int]:
    """Read an UNSIGNED_VARINT of at most five bytes."""
    value = 0
    try:
        for shift in range(0, 35, 7):
            byte = view[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise Malformed("a varint longer than five bytes")
    except IndexError:
        raise Malformed("ends inside a varint") from None
    if value > HIGHEST_UVARINT:
        raise Malformed("a varint above 2^31 - 1")
    return value, position


def nullable_string(view: View, position: int, flexible: bool) -> tuple[str | None, int]:
    """Read a (COMPACT_)NULLABLE_STRING."""
    if flexible:
        length, position = uvarint(view, position)
        length -= 1
    else:
        length, position = int16(view, position)
    if length < 0:
        return None, position
    end = position + length
    if length > MAX_STRING or end > len(view):
        raise Malformed("ends inside a string")
    try:
        return str(view[position:end], "utf-8"), end
    except UnicodeDecodeError:
        raise Malformed("a string that is not UTF-8") from None


def string(view: View, position: int, flexible: bool) -> tuple[str, int]:
    """Read a (COMPACT_)STRING."""
    text, position = nullable_string(view, position, flexible)
    if text is None:
        raise Malformed("null instead of a string")
    return text, position


def array_length(view: View, position: int, flexible: bool) -> tuple[int, int]:
    """Read the length of a (COMPACT_)ARRAY; a null array counts as empty."""
    if flexible:
        length, position = uvarint(view, position)
        length -= 1
    else:
        length, position = int32(view, position)
    return max(length, 0), position


def skip_string(view: View, position: int, flexible: bool) -> int:
    """Return the position after a string, null or not."""
    if flexible:
        length, position = uvarint(view, position)
        length -= 1
    else:
        length, position = int16(view, position)
    return position + max(length, 0)


def tag_count(view: View, position: int) -> tuple[int, int]:
    """Read the number of tagged fields in a section."""
    count, position = uvarint(view, position)
    if count > MAX_TAGS:
        raise Malformed("more tagged fields than any client sends")
    return count, position


def skip_tags(view: View, position: int) -> int:
    """Return the position after a section of tagged fields (KIP-482)."""
    count, position = tag_count(view, position)
    for _ in range(count):
        _, position = uvarint(view, position)
        size, position = uvarint(view, position)
        position += size
    return position


def write_uvarint(value: int) -> bytes:
    """Return the bytes of an UNSIGNED_VARINT."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_string(text: str, flexible: bool) -> bytes:
    """Return the bytes of a (COMPACT_)STRING."""
    encoded = text.encode()
    if flexible:
        return write_uvarint(len(encoded) + 1) + encoded
    return INT16.pack(len(encoded)) + encoded


def write_null_string(flexible: bool) -> bytes:
    """Return the bytes of a null (COMPACT_)NULLABLE_STRING."""
    return b"\x00" if flexible else b"\xff\xff"


def write_array_length(length: int, flexible: bool) -> bytes:
    """Return the bytes of the length of a (COMPACT_)ARRAY."""
    return write_uvarint(length + 1) if flexible else INT32.pack(length)
