"""Record batches of the metadata log and of snapshots (record format version 2, KIP-98)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from proxy.wire.primitives import Malformed

MAX_BATCH: Final = 67_108_864
"""Maximum size of a batch in bytes. Kafka's controllers make batches of 8 MiB at most."""

_PREFIX: Final = struct.Struct(">qi")
"""Base offset, and number of bytes that follow."""
_HEADER: Final = struct.Struct(">ibIhiqqqhii")
"""Leader epoch, magic, CRC, attributes, last offset delta, two times, producer id and epoch, base
sequence, number of records."""
_CHECKED_FROM: Final = 9
"""Position in the header from which bytes are covered by the CRC."""
_MAGIC: Final = 2
_COMPRESSION: Final = 0x07
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")
"""Version and type."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of records."""

    first: int
    """Offset of the first record."""
    end: int
    """Offset after the last record."""
    values: tuple[bytes, ...]
    """Values of the records; none for control records."""
    control_type: int | None = None
    """Type of the batch's last control record; None if it has other records."""


def batches(file: BinaryIO, *, is_growing: bool) -> Iterator[Batch]:
    """Yield the batches in a file. Raises Malformed and OSError.

    `is_growing`: its last batch may be incomplete, as a node may write it just now; it is left out.
    """
    while prefix := file.read(_PREFIX.size):
        body = b""
        if len(prefix) == _PREFIX.size:
            first, size = _PREFIX.unpack(prefix)
            if not _HEADER.size <= size <= MAX_BATCH:
                raise Malformed(f"a batch of {size} bytes")
            body = file.read(size)
            if len(body) == size:
                yield _batch(first, body)
                continue
        if is_growing:
            return
        raise Malformed("ends inside a batch")


def _batch(first: int, body: bytes) -> Batch:
    _, magic, crc, attributes, last_delta, _, _, _, _, _, count = _HEADER.unpack_from(body)
    if magic != _MAGIC:
        raise Malformed(f"a batch of the format version {magic}")
    if crc32c(body[_CHECKED_FROM:]) != crc:
        raise Malformed("a batch with a wrong checksum")
    if attributes & _COMPRESSION:
        raise Malformed("a compressed batch, which no controller writes")
    records = tuple(_records(body, count))
    if count != len(records) or last_delta != count - 1:
        raise Malformed("a batch with a wrong number of records")
    end = first + count
    if not attributes & _CONTROL:
        return Batch(first, end, tuple(value for _, value in records))
    try:
        _, control_type = _CONTROL_KEY.unpack_from(records[-1][0])
    except (struct.error, IndexError):
        raise Malformed("a control batch without a type") from None
    return Batch(first, end, (), control_type)


def _records(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of records."""
    position = _HEADER.size
    for _ in range(count):
        size, position = _varint(body, position)
        end = position + size
        position += 1  # its attributes
        _, position = _varint(body, position)  # time
        _, position = _varint(body, position)  # offset
        key, position = _bytes(body, position)
        value, position = _bytes(body, position)
        headers, position = _varint(body, position)
        if headers or position != end or end > len(body):
            raise Malformed("a record with a wrong size")
        yield key, value
    if position != len(body):
        raise Malformed("a batch with bytes behind its records")


def _bytes(body: bytes, position: int) -> tuple[bytes, int]:
    """Read bytes after their length; null is empty."""
    size, position = _varint(body, position)
    end = position + max(size, 0)
    if end > len(body):
        raise Malformed("ends inside a record")
    return body[position:end], end


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Read a VARINT or VARLONG in zigzag encoding."""
    value = 0
    try:
        for shift in range(0, 70, 7):
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1), position
    except IndexError:
        raise Malformed("ends inside a varint") from None
    raise Malformed("a varint longer than ten bytes")


def _table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        rest = number
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
        table.append(rest)
    return tuple(table)


_CRC: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of RFC 3720 section 12.1."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest = _CRC[(rest ^ byte) & 0xFF] ^ rest >> 8
    return rest ^ 0xFFFFFFFF
