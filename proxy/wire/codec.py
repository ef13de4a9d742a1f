"""Strict codec of whole Kafka messages from untrusted bytes.

Laws:

- Messages are the entity types of `proxy.wire.messages`. Whatever is missing or impossible in bytes
  is `Malformed`, and so is a version that the message does not have.
- Memory is bounded by the size of the message: an array is rejected before its first item if the
  remaining bytes cannot hold as many items of the minimum size. Depth is bounded by the schema.
- Whatever two readers could understand differently (a tagged field whose size is not that of its
  value, text that is not UTF-8, a varint that is negative in Java) is `Malformed`, so that nothing
  is authorized as one thing and executed as another.
- A field that the version lacks holds its default. If another value is written, and Kafka's
  definition does not allow that to be lost, it is `Unwritable`.
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

from proxy.scheduling.stepped_thread import TooManyValuesError, at_most, pause, pausing
from proxy.wire.codec_values import (
    FORMATS,
    Codec,
    Parts,
    Unwritable,
    Write,
    array_codec,
    bytes_codec,
    fixed_array_codec,
    fixed_codec,
    string_codec,
)
from proxy.wire.primitives import Malformed, tag_count, uvarint, write_uvarint
from proxy.wire.schema import Field, Message

M = TypeVar("M", bound=Message)

Fill = Callable[[Message, bytes, int], int]
"""Function that reads fields into an unfinished entity, and returns the position after them."""
_NULL: Final = b"\xff"
_NOT_NULL: Final = b"\x01"


def decode(kind: type[M], version: int, data: bytes, position: int = 0) -> M:
    """Read an entity that begins at `position`. Bytes after it are ignored, as by Kafka.

    Raises Malformed.
    """
    try:
        entity, _ = codec(kind, version).read(data, position)
    except (struct.error, IndexError):
        raise Malformed(f"ends inside {kind.__name__}") from None
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
