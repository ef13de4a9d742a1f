"""Strict codec of single values of Kafka's messages.

A codec reads a value at a position and appends a value's bytes to a list. Bytes that end inside a
number show as `struct.error` or IndexError, which `codec.decode` turns into Malformed: a check per
number would cost as much as the number.

Sources: the protocol guide's "Protocol Primitive Types"; KIP-482 for compact types.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from proxy.errors import ProxyError
from proxy.scheduling.stepped_thread import MASK, free_in_steps, pause, pausing
from proxy.wire.primitives import INT16, INT32, MAX_STRING, Malformed, uvarint, write_uvarint

Read = Callable[[bytes, int], tuple[Any, int]]
"""Function from the bytes and a position to the value and the position after it."""
Parts = list[bytes]
Write = Callable[[Parts, Any], None]
"""Function that appends a value's bytes."""


class Unwritable(ProxyError):
    """A value cannot be written in the version: a field that the version lacks, or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Reader and writer of values of one type."""

    read: Read
    write: Write
    min_size: int
    """Size of the smallest value, in bytes."""


# ---------------------------------------------------------------------- types of fixed size


FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Formats of `struct` of Kafka's types."""


def fixed_codec(form: str) -> Codec:
    """Return the codec of a value of fixed size, in a format of `struct`."""
    packer = struct.Struct(f">{form}")
    unpack_from, pack, size = packer.unpack_from, packer.pack, packer.size

    def read(data: bytes, position: int) -> tuple[Any, int]:
        (value,) = unpack_from(data, position)
        return value, position + size

    def write(parts: Parts, value: Any) -> None:
        parts.append(pack(value))

    return Codec(read=read, write=write, min_size=size)


def fixed_array_codec(form: str, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of an array of such values."""
    packer = struct.Struct(f">{form}")
    pack, size = packer.pack, packer.size
    read_length, write_length = _lengths(flexible, nullable, min_size=size)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(data, position)
        if length <= 0:
            return (None if length < 0 else ()), position
        pause(length)
        end = position + size * length
        if len(form) == 1:
            return struct.unpack_from(f">{length}{form}", data, position), end
        return tuple(item for (item,) in packer.iter_unpack(data[position:end])), end

    def write(parts: Parts, items: Any) -> None:
        write_length(parts, items)
        parts += map(pack, items or ())

    return Codec(read=read, write=write, min_size=1 if flexible else 4)


# ---------------------------------------------------------------------- types with a length


def _compact_length(data: bytes, position: int) -> tuple[int, int]:
    """Read the length of a compact type; -1 stands for null."""
    byte = data[position]
    if byte < 0x80:
        return byte - 1, position + 1
    length, position = uvarint(data, position)
    return length - 1, position


def _length16(data: bytes, position: int) -> tuple[int, int]:
    return INT16.unpack_from(data, position)[0], position + 2


def _length32(data: bytes, position: int) -> tuple[int, int]:
    return INT32.unpack_from(data, position)[0], position + 4


def _lengths(
    flexible: bool, nullable: bool, min_size: int
) -> tuple[Read, Callable[[Parts, Any], None]]:
    """Return the reader of an array's length, and the writer of the length of given items."""
    read_any = _compact_length if flexible else _length32

    def read(data: bytes, position: int) -> tuple[int, int]:
        length, position = read_any(data, position)
        if length < 0 and not nullable:
            raise Malformed("null instead of an array")
        if length * min_size > len(data) - position:
            raise Malformed("an array longer than its message")
        return length, position

    def write(parts: Parts, items: Any) -> None:
        if items is None and not nullable:
            raise Unwritable("null instead of an array")
        length = -1 if items is None else len(items)
        parts.append(write_uvarint(length + 1) if flexible else INT32.pack(length))

    return read, write


def string_codec(flexible: bool, nullable: bool) -> Codec:
    """Return the codec of a (COMPACT_)(NULLABLE_)STRING."""
    read_length = _compact_length if flexible else _length16

    def read(data: bytes, position: int) -> tuple[str | None, int]:
        length, position = read_length(data, position)
        if length < 0:
            if not nullable:
                raise Malformed("null instead of a string")
            return None, position
        end = position + length
        if length > MAX_STRING or end > len(data):
            raise Malformed("ends inside a string")
        try:
            return str(data[position:end], "utf-8"), end
        except UnicodeDecodeError:
            raise Malformed("a string that is not UTF-8") from None

    def write(parts: Parts, text: str | None) -> None:
        if text is None:
            if not nullable:
                raise Unwritable("null instead of a string")
            parts.append(b"\x00" if flexible else b"\xff\xff")
            return
        encoded = text.encode()
        size = len(encoded)
        parts.append(write_uvarint(size + 1) if flexible else INT16.pack(size))
        parts.append(encoded)

    return Codec(read=read, write=write, min_size=1 if flexible else 2)


def bytes_codec(flexible: bool, nullable: bool) -> Codec:
    """Return the codec of (COMPACT_)(NULLABLE_)BYTES or RECORDS."""
    read_length, write_length = _lengths(flexible, nullable, min_size=1)

    def read(data: bytes, position: int) -> tuple[bytes | None, int]:
        length, position = read_length(data, position)
        if length < 0:
            return None, position
        return bytes(data[position : position + length]), position + length

    def write(parts: Parts, value: bytes | None) -> None:
        write_length(parts, value)
        if value:
            parts.append(value)

    return Codec(read=read, write=write, min_size=1 if flexible else 4)


def array_codec(item: Codec, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of a (COMPACT_)ARRAY of such items."""
    read_item, write_item = item.read, item.write
    read_length, write_length = _lengths(flexible, nullable, item.min_size)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(data, position)
        if length < 0:
            return None, position
        pause(length)
        items: list[Any] = []
        if length > MASK:
            free_in_steps(items)
        for _ in pausing(range(length)):
            value, position = read_item(data, position)
            items.append(value)
        return tuple(items), position

    def write(parts: Parts, items: Any) -> None:
        write_length(parts, items)
        for value in pausing(items or ()):
            write_item(parts, value)

    return Codec(read=read, write=write, min_size=1 if flexible else 4)
