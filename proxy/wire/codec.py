"""Strict codec of whole Kafka messages from untrusted bytes.

Rules:

- Messages are the entity types of `proxy.wire.messages`. Bytes with a missing or impossible value
  are `Malformed`, and so is a version that the message does not have.
- Memory is bounded by the size of the message: an array is rejected before its first item if the
  remaining bytes cannot hold as many items of the minimum size. Depth is bounded by the schema.
- Bytes that two readers could interpret differently (a tagged field whose size is not that of its
  value, text that is not UTF-8, a varint that is negative in Java) are `Malformed`, so that no
  request is authorized as one thing and executed as another.
- A field that the version lacks holds its default. Writing another value is `Unwritable`, unless
  Kafka's definition allows that value to be lost.
- Unknown tagged fields are skipped, and so are lost when the message is written again.

A structure is compiled at first use into a list of steps, once for all versions in which its layout
is the same; neighbouring fields of fixed size make one step.

Sources: the protocol guide; KIP-482 (compact types, tags); KIP-893 (structs that may be null).
"""

import struct
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

from proxy.errors import ProxyError
from proxy.scheduling.steps import MASK, TooManyValuesError, at_most, free_in_steps, pause, pausing
from proxy.wire.primitives import (
    INT16,
    INT32,
    MAX_STRING,
    Malformed,
    tag_count,
    uvarint,
    write_uvarint,
)
from proxy.wire.schema import Field, Message

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


M = TypeVar("M", bound=Message)

Fill = Callable[[Message, bytes, int], int]
"""Function that reads fields into an unfinished entity, and returns the position after them."""
_NULL: Final = b"\xff"
_NOT_NULL: Final = b"\x01"


def decode(
    kind: type[M], version: int, data: bytes, position: int = 0, *, is_last: bool = False
) -> M:
    """Read an entity that begins at `position`.

    Bytes after it are ignored, as in Kafka, unless it must be the last. Raises Malformed.
    """
    try:
        entity, end = codec(kind, version).read(data, position)
    except (struct.error, IndexError):
        raise Malformed(f"ends inside {kind.__name__}") from None
    if is_last and end != len(data):
        raise Malformed(f"bytes after {kind.__name__}")
    assert isinstance(entity, kind)
    return entity


def decode_bounded(
    kind: type[M], version: int, data: bytes, *, max_bytes: int, max_values: int
) -> M:
    """Read an entity of at most `max_bytes` bytes and `max_values` values: array items and tagged
    fields.

    No array with too many items is allocated. Not to be used within steps. Raises Malformed.
    """
    if len(data) > max_bytes:
        raise Malformed("more bytes than any client sends")
    try:
        with at_most(max_values):
            return decode(kind, version, data)
    except TooManyValuesError:
        raise Malformed("more values than any client sends") from None


def encode(entity: Message, version: int) -> bytes:
    """Return the bytes of an entity in this version, without a header. Raises Unwritable."""
    parts: Parts = []
    codec(type(entity), version).write(parts, entity)
    return b"".join(parts)


def codec(kind: type[Message], version: int) -> Codec:
    """Return the reader and writer of a structure in a version. Raises Malformed."""
    if not kind.HEAD.versions.has(version):
        raise Malformed(f"{kind.__name__} has no version {version}")
    return _codec(kind, kind.EPOCHS[bisect(kind.EPOCHS, version) - 1])


# ---------------------------------------------------------------------- fields


def field_codec(field: Field, version: int, flexible: bool) -> Codec:
    """Return the reader and writer of a field in a version that has it."""
    nullable = field.null.has(version)
    if field.is_array and field.kind in FORMATS:
        return fixed_array_codec(FORMATS[field.kind], flexible, nullable)
    item = _item_codec(field, version, flexible, nullable and not field.is_array)
    return array_codec(item, flexible, nullable) if field.is_array else item


def _item_codec(field: Field, version: int, flexible: bool, nullable: bool) -> Codec:
    if field.struct is not None:
        item = _codec(field.struct, field.struct.EPOCHS[bisect(field.struct.EPOCHS, version) - 1])
        return _nullable_entity_codec(item) if nullable else item
    if field.kind == "string":
        return string_codec(flexible, nullable)
    if field.kind in FORMATS:
        return fixed_codec(FORMATS[field.kind])
    return bytes_codec(flexible, nullable)


# ---------------------------------------------------------------------- entities


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One or more adjacent fields of an entity, in the order of the wire."""

    fill: Fill
    write: Write
    min_size: int


def _compile(kind: type[Message], version: int) -> Codec:
    steps = tuple(_steps(kind, version))
    fills, writes = [step.fill for step in steps], [step.write for step in steps]

    def read(data: bytes, position: int) -> tuple[Message, int]:
        entity = object.__new__(kind)
        for fill in fills:
            position = fill(entity, data, position)
        return entity, position

    def write(parts: Parts, entity: Message) -> None:
        for write_fields in writes:
            write_fields(parts, entity)

    return Codec(read=read, write=write, min_size=sum(step.min_size for step in steps))


_codec: Callable[[Any, int], Codec] = cache(_compile)


def _nullable_entity_codec(codec: Codec) -> Codec:
    """Return the codec of a nullable struct, which a byte precedes (KIP-893)."""

    def read(data: bytes, position: int) -> tuple[Message | None, int]:
        if data[position] > 0x7F:
            return None, position + 1
        return codec.read(data, position + 1)

    def write(parts: Parts, entity: Message | None) -> None:
        parts.append(_NULL if entity is None else _NOT_NULL)
        if entity is not None:
            codec.write(parts, entity)

    return Codec(read=read, write=write, min_size=1)


def _steps(kind: type[Message], version: int) -> Iterator[_Step]:
    flexible = version >= kind.HEAD.first_flexible
    present = [field for field in kind.FIELDS if field.versions.has(version)]
    absent = [field for field in kind.FIELDS if not field.versions.has(version)]
    if absent:
        yield _absent_step(kind, absent)
    run: list[Field] = []
    for field in present:
        if field.tag is not None:
            continue
        if field.kind in FORMATS and not field.is_array:
            run.append(field)
            continue
        if run:
            yield _run_step(kind, run)
            run = []
        yield _field_step(kind, field, version, flexible)
    if run:
        yield _run_step(kind, run)
    if flexible:
        yield _tags_step(kind, [one for one in present if one.tag is not None], version)


def _setter(kind: type[Message], field: Field) -> Callable[[Message, Any], None]:
    name = field.name
    slot = vars(kind).get(name)
    return (lambda entity, value: setattr(entity, name, value)) if slot is None else slot.__set__


def _absent_step(kind: type[Message], absent: list[Field]) -> _Step:
    """Return the step of the fields that the version lacks."""
    puts = [(_setter(kind, field), field.default) for field in absent]
    kept = [(field.name, field.default) for field in absent if not field.ignorable]

    def fill(entity: Message, _: bytes, position: int) -> int:
        for put, default in puts:
            put(entity, default)
        return position

    def write(_: Parts, entity: Message) -> None:
        for name, default in kept:
            if getattr(entity, name) != default:
                raise Unwritable(f"{kind.__qualname__}: this version has no {name}")

    return _Step(fill=fill, write=write, min_size=0)


def _run_step(kind: type[Message], run: list[Field]) -> _Step:
    """Return the step that reads and writes adjacent fields of fixed size at once."""
    packer = struct.Struct(">" + "".join(FORMATS[field.kind] for field in run))
    unpack_from, pack, size = packer.unpack_from, packer.pack, packer.size
    puts = [_setter(kind, field) for field in run]
    get = attrgetter(*(field.name for field in run))

    def fill(entity: Message, data: bytes, position: int) -> int:
        for put, value in zip(puts, unpack_from(data, position), strict=True):
            put(entity, value)
        return position + size

    def write_one(parts: Parts, entity: Message) -> None:
        parts.append(pack(get(entity)))

    def write(parts: Parts, entity: Message) -> None:
        parts.append(pack(*get(entity)))

    return _Step(fill=fill, write=write_one if len(run) == 1 else write, min_size=size)


def _field_step(kind: type[Message], field: Field, version: int, flexible: bool) -> _Step:
    codec = field_codec(field, version, flexible)
    read_value, write_value = codec.read, codec.write
    put, get = _setter(kind, field), attrgetter(field.name)

    def fill(entity: Message, data: bytes, position: int) -> int:
        value, position = read_value(data, position)
        put(entity, value)
        return position

    def write(parts: Parts, entity: Message) -> None:
        write_value(parts, get(entity))

    return _Step(fill=fill, write=write, min_size=codec.min_size)


def _tags_step(kind: type[Message], tagged: list[Field], version: int) -> _Step:
    """Return the step of the tagged fields that end each entity of a flexible version (KIP-482)."""
    codecs = {field.tag: field_codec(field, version, flexible=True) for field in tagged}
    puts = {field.tag: _setter(kind, field) for field in tagged}
    defaults = [(puts[field.tag], field.default) for field in tagged]

    def fill(entity: Message, data: bytes, position: int) -> int:
        for put, default in defaults:
            put(entity, default)
        if data[position] == 0:
            return position + 1
        count, position = tag_count(data, position)
        pause(count)
        for _ in pausing(range(count)):
            tag, position = uvarint(data, position)
            size, position = uvarint(data, position)
            end = position + size
            if end > len(data):
                raise Malformed("ends inside a tagged field")
            if tag in codecs:
                value, position = codecs[tag].read(data, position)
                if position != end:
                    raise Malformed("a tagged field whose size is not that of its value")
                puts[tag](entity, value)
            position = end
        return position

    return _Step(fill=fill, write=_tags_writer(tagged, codecs), min_size=1)


def _tags_writer(tagged: list[Field], codecs: dict[int | None, Codec]) -> Write:
    ordered = [
        (tag, field, codecs[tag].write)
        for tag, field in sorted((field.tag, field) for field in tagged if field.tag is not None)
    ]

    def write(parts: Parts, entity: Message) -> None:
        values = [(tag, getattr(entity, one.name), one.default, put) for tag, one, put in ordered]
        written = [(tag, value, put) for tag, value, default, put in values if value != default]
        parts.append(write_uvarint(len(written)))
        for tag, value, put in written:
            content: Parts = []
            put(content, value)
            parts += (write_uvarint(tag), write_uvarint(sum(map(len, content))), *content)

    return write
