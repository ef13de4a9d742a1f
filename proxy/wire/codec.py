"""Strict codec of whole Kafka messages from untrusted bytes.

Laws:

- The messages are kio's frozen dataclasses, and ours for versions that kio lacks (`acl_v0`,
  `batch_describe`, `kafka_4_4`); reading and writing them is ours. kio's reader allocates as many
  items as an array claims to have, and rejects unknown tags, so it is for trusted bytes only.
  Whatever is missing or impossible is `Malformed`.
- Memory is bounded by the size of the message: an array is rejected before its first item if the
  remaining bytes cannot hold as many items of the minimum size. Depth is bounded by the schema.
- Whatever two readers could understand differently (a tagged field whose size is not that of its
  value, text that is not UTF-8, a varint that is negative in Java) is `Malformed`, so that nothing
  is authorized as one thing and executed as another.
- A value that Python's type cannot express (an error code of a later Kafka, a moment in the year
  55000, which a record may have) stays an `int`, and is written as it was read.
- Unknown tagged fields are skipped, and so are lost when the message is written again.

Each entity class is compiled once, at its first use, into a list of steps; neighbouring fields of
fixed size make one step.

Sources: the protocol guide; KIP-482 (compact types, tags); KIP-893 (structs that may be null).
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from proxy.scheduling.stepped_thread import TooManyValuesError, at_most, pause, pausing
from proxy.wire import acl_v0, batch_describe
from proxy.wire.codec_values import (
    FIXED,
    NULLABLE_MOMENT,
    Codec,
    Convert,
    Fixed,
    Parts,
    Write,
    array_codec,
    bytes_codec,
    fixed_array_codec,
    fixed_codec,
    string_codec,
)
from proxy.wire.primitives import Malformed, tag_count, uvarint, write_uvarint

# Entities are instances of kio's generated classes, one per API and version: `Any` is the only type
# that they share, and mypy does not accept `type[Any]` as a hashable key of a cache.
Entity = Any
E = TypeVar("E")

Fill = Callable[[Entity, bytes, int], int]
"""Function that reads fields into an unfinished entity, and returns the position after them."""
_NULL: Final = b"\xff"
_NOT_NULL: Final = b"\x01"


def _by_key_and_version(*messages: Any) -> Mapping[tuple[int, int], Any]:
    return {(one.__api_key__, one.__version__): one for one in messages}


_OWN_REQUESTS: Final = _by_key_and_version(*acl_v0.REQUESTS, *batch_describe.REQUESTS)
_OWN_RESPONSES: Final = _by_key_and_version(*acl_v0.RESPONSES, *batch_describe.RESPONSES)


@cache
def request_type(api_key: int, api_version: int) -> Any:
    """Return the class of a request: kio's, or ours. An unknown version is a programming error."""
    if own := _OWN_REQUESTS.get((api_key, api_version)):
        return own
    if _is_of_kio(api_key, api_version):
        return load_request_schema(api_key, api_version)
    from proxy.wire import kafka_4_4  # loads the versions before, which no start should wait for

    return _by_key_and_version(*kafka_4_4.REQUESTS)[api_key, api_version]


@cache
def response_type(api_key: int, api_version: int) -> Any:
    """Return the class of a response: kio's, or ours. An unknown version is a programming error."""
    if own := _OWN_RESPONSES.get((api_key, api_version)):
        return own
    if _is_of_kio(api_key, api_version):
        return load_response_schema(api_key, api_version)
    from proxy.wire import kafka_4_4

    return _by_key_and_version(*kafka_4_4.RESPONSES)[api_key, api_version]


def _is_of_kio(api_key: int, api_version: int) -> bool:
    return api_key in api_key_map and api_version in schema_name_map[api_key_map[api_key]]


def decode(entity_type: type[E], data: bytes, position: int = 0) -> E:
    """Read an entity that begins at `position`. Bytes after it are ignored, as by Kafka.

    Raises Malformed.
    """
    try:
        entity, _ = _entity_codec(entity_type).read(data, position)
    except (struct.error, IndexError):
        raise Malformed(f"ends inside {entity_type.__name__}") from None
    return cast(E, entity)


def decode_bounded(entity_type: type[E], data: bytes, *, max_bytes: int, max_values: int) -> E:
    """Read an entity of at most `max_bytes` bytes and `max_values` values: array items and tagged
    fields.

    No array with too many items is allocated. Not to be used within steps. Raises Malformed.
    """
    if len(data) > max_bytes:
        raise Malformed("more bytes than any client sends")
    try:
        with at_most(max_values):
            return decode(entity_type, data)
    except TooManyValuesError:
        raise Malformed("more values than any client sends") from None


def encode(entity: Entity) -> bytes:
    """Return the bytes of an entity, without a header."""
    parts: Parts = []
    _entity_codec(type(entity)).write(parts, entity)
    return b"".join(parts)


# ---------------------------------------------------------------------- fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Type of a field, decomposed."""

    item: Any
    """Class of an entity, or another type, which `kafka_type` specifies."""
    is_array: bool
    nullable: bool


def _shape(field: Field[Any]) -> _Shape:
    kind, nullable = _without_none(field.type)
    if get_origin(kind) is not tuple:
        return _Shape(item=kind, is_array=False, nullable=nullable)
    item, _ = _without_none(get_args(kind)[0])
    return _Shape(item=item, is_array=True, nullable=nullable)


def _without_none(kind: Any) -> tuple[Any, bool]:
    rest = [argument for argument in get_args(kind) if argument is not NoneType]
    return (rest[0], True) if NoneType in get_args(kind) else (kind, False)


def _fixed(field: Field[Any]) -> Fixed | None:
    """Return the `struct` format of a field of fixed size; None for other fields."""
    shape, kafka_type = _shape(field), field.metadata.get("kafka_type", "")
    if shape.is_array:
        return None
    if kafka_type == "datetime_i64" and shape.nullable:
        return NULLABLE_MOMENT
    return FIXED.get(kafka_type)


def _field_codec(field: Field[Any], flexible: bool) -> Codec:
    shape = _shape(field)
    kafka_type = field.metadata.get("kafka_type", "")
    if shape.is_array and kafka_type in FIXED:
        return fixed_array_codec(FIXED[kafka_type], flexible, shape.nullable)
    nullable = shape.nullable and not shape.is_array
    if is_dataclass(shape.item):
        item = _entity_codec(shape.item)
        item = _nullable_entity_codec(item) if nullable else item
    elif fixed := _fixed(field):
        item = fixed_codec(fixed)
    elif kafka_type == "string":
        item = string_codec(flexible, nullable)
    else:
        assert kafka_type in ("bytes", "records"), field
        item = bytes_codec(flexible, nullable)
    return array_codec(item, flexible, shape.nullable) if shape.is_array else item


# ---------------------------------------------------------------------- entities


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One or more adjacent fields of an entity, in the order of the wire."""

    fill: Fill
    write: Write
    min_size: int


def _compile(entity_type: Any) -> Codec:
    steps = tuple(_steps(entity_type))
    fills, writes = [step.fill for step in steps], [step.write for step in steps]

    def read(data: bytes, position: int) -> tuple[Entity, int]:
        entity = object.__new__(entity_type)
        for fill in fills:
            position = fill(entity, data, position)
        return entity, position

    def write(parts: Parts, entity: Entity) -> None:
        for write_fields in writes:
            write_fields(parts, entity)

    return Codec(read=read, write=write, min_size=sum(step.min_size for step in steps))


_entity_codec: Callable[[Any], Codec] = cache(_compile)


def _nullable_entity_codec(codec: Codec) -> Codec:
    """Return the codec of a nullable struct, which a byte precedes (KIP-893)."""

    def read(data: bytes, position: int) -> tuple[Entity | None, int]:
        if data[position] > 0x7F:
            return None, position + 1
        return codec.read(data, position + 1)

    def write(parts: Parts, entity: Entity | None) -> None:
        parts.append(_NULL if entity is None else _NOT_NULL)
        if entity is not None:
            codec.write(parts, entity)

    return Codec(read=read, write=write, min_size=1)


def _steps(entity_type: type[Any]) -> Iterator[_Step]:
    flexible = entity_type.__flexible__
    run: list[tuple[Field[Any], Fixed]] = []
    for field in fields(entity_type):
        if "tag" in field.metadata:
            continue
        if fixed := _fixed(field):
            run.append((field, fixed))
            continue
        if run:
            yield _run_step(entity_type, run)
            run = []
        yield _field_step(entity_type, field, flexible)
    if run:
        yield _run_step(entity_type, run)
    if flexible:
        yield _tags_step(entity_type)


def _setter(entity_type: type[Any], name: str, convert: Convert | None = None) -> Any:
    """Return the function that sets a slot: the only way around a frozen dataclass that avoids
    `__init__`."""
    put = getattr(entity_type, name).__set__
    if convert is None:
        return put

    def put_converted(entity: Entity, value: Any) -> None:
        put(entity, convert(value))

    return put_converted


def _getter(entity_type: type[Any], name: str, convert: Convert | None = None) -> Any:
    get = getattr(entity_type, name).__get__
    return get if convert is None else lambda entity: convert(get(entity))


def _run_step(entity_type: type[Any], run: list[tuple[Field[Any], Fixed]]) -> _Step:
    """Return the step that reads and writes adjacent fields of fixed size at once."""
    packer = struct.Struct(">" + "".join(fixed.format for _, fixed in run))
    unpack_from, pack, size = packer.unpack_from, packer.pack, packer.size
    puts = [_setter(entity_type, field.name, fixed.to_value) for field, fixed in run]
    gets = [_getter(entity_type, field.name, fixed.from_value) for field, fixed in run]

    def fill(entity: Entity, data: bytes, position: int) -> int:
        for put, value in zip(puts, unpack_from(data, position), strict=True):
            put(entity, value)
        return position + size

    def write(parts: Parts, entity: Entity) -> None:
        parts.append(pack(*[get(entity) for get in gets]))

    return _Step(fill=fill, write=write, min_size=size)


def _field_step(entity_type: type[Any], field: Field[Any], flexible: bool) -> _Step:
    codec = _field_codec(field, flexible)
    read_value, write_value = codec.read, codec.write
    put, get = _setter(entity_type, field.name), _getter(entity_type, field.name)

    def fill(entity: Entity, data: bytes, position: int) -> int:
        value, position = read_value(data, position)
        put(entity, value)
        return position

    def write(parts: Parts, entity: Entity) -> None:
        write_value(parts, get(entity))

    return _Step(fill=fill, write=write, min_size=codec.min_size)


def _tags_step(entity_type: type[Any]) -> _Step:
    """Return the step of the tagged fields that end each entity of a flexible version (KIP-482)."""
    tagged = sorted(
        (field.metadata["tag"], field) for field in fields(entity_type) if "tag" in field.metadata
    )
    codecs = {tag: _field_codec(field, flexible=True) for tag, field in tagged}
    puts = {tag: _setter(entity_type, field.name) for tag, field in tagged}
    gets = {tag: _getter(entity_type, field.name) for tag, field in tagged}
    defaults = {tag: field.default for tag, field in tagged}
    assert MISSING not in defaults.values(), entity_type

    def fill(entity: Entity, data: bytes, position: int) -> int:
        for tag, put in puts.items():
            put(entity, defaults[tag])
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

    def write(parts: Parts, entity: Entity) -> None:
        written = [(tag, get(entity)) for tag, get in gets.items() if get(entity) != defaults[tag]]
        parts.append(write_uvarint(len(written)))
        for tag, value in written:
            content: Parts = []
            codecs[tag].write(content, value)
            parts += (write_uvarint(tag), write_uvarint(sum(map(len, content))), *content)

    return _Step(fill=fill, write=write, min_size=1)
