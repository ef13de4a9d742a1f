"""Kafka messages of any API and version, built from plain values and encoded with kio."""

import io
import typing
import uuid
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from proxy.wire.apis import APIS, FETCH, METADATA, PRODUCE
from proxy.wire.schema import Message, message_type
from tests.support.kio_messages import request_type, response_type

# A minimal and a filled instance of any kio schema, without randomness

SMALL: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime(1970, 1, 1, tzinfo=UTC),
}
LARGE: dict[str, Any] = {
    "bool": True,
    "int8": -7,
    "int16": -300,
    "uint16": 65_000,
    "int32": -70_000,
    "int64": 2**40 + 1,
    "string": "Zürich" * 25,
    "bytes": bytes(range(150)),
    "records": bytes(range(150)),
    "uuid": uuid.UUID(int=2**127 + 5),
    "float64": -1.5,
    "error_code": ErrorCode.topic_authorization_failed,
    "timedelta_i32": timedelta(milliseconds=1001),
    "timedelta_i64": timedelta(milliseconds=-1),
    "datetime_i64": datetime(2025, 9, 1, 12, tzinfo=UTC),
}


def small(schema: type[Any]) -> Any:
    """An instance with empty arrays, null where possible, and all defaults."""
    return schema(**{f.name: _small(f) for f in fields(schema) if f.default is MISSING})


def _small(field: Field[Any]) -> Any:
    kind = field.type
    if NoneType in typing.get_args(kind):
        return None
    if typing.get_origin(kind) is tuple:
        return ()
    if is_dataclass(kind):
        return small(typing.cast("type[Any]", kind))
    return SMALL.get(field.metadata["kafka_type"], 0)


def large(schema: type[Any]) -> Any:
    """An instance with two items in each array, and no null or default value."""
    return schema(**{field.name: _large(field) for field in fields(schema)})


def _large(field: Field[Any]) -> Any:
    kind: Any = field.type
    if NoneType in typing.get_args(kind):
        (kind,) = (one for one in typing.get_args(kind) if one is not NoneType)
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind = typing.get_args(kind)[0]
    value = (
        large(typing.cast("type[Any]", kind))
        if is_dataclass(kind)
        else LARGE[field.metadata["kafka_type"]]
    )
    return (value, value) if is_array else value


def request_kind(api_key: int) -> type[Message]:
    """The entity type of an API's requests."""
    return message_type(f"{APIS[api_key].name}Request")


def response_kind(api_key: int) -> type[Message]:
    """The entity type of an API's responses."""
    return message_type(f"{APIS[api_key].name}Response")


# Messages of any API and version from plain values; other fields are minimal

Values = Mapping[str, Any]
"""Values by field: structures are mappings, arrays sequences, durations may be milliseconds."""


def message(schema: Any, values: Values) -> Any:
    """Build a message; fields that this version lacks are left out."""
    least, known = _plan(schema)
    given = {
        name: _value(known[name], known[name].type, values[name])
        for name in known.keys() & values.keys()
    }
    return schema(**least | given)


@cache
def _plan(schema: Any) -> tuple[dict[str, Any], dict[str, Field[Any]]]:
    """Values of fields without a default, and all fields."""
    known = {field.name: field for field in fields(schema)}
    return {name: _small(one) for name, one in known.items() if one.default is MISSING}, known


def _value(field: Field[Any], kind: Any, given: Any) -> Any:
    if given is None:
        return None
    if NoneType in typing.get_args(kind):
        (kind,) = (one for one in typing.get_args(kind) if one is not NoneType)
    if typing.get_origin(kind) is tuple:
        return tuple(_value(field, typing.get_args(kind)[0], one) for one in given)
    if isinstance(given, Mapping):
        return message(kind, given)
    if isinstance(given, int) and field.metadata["kafka_type"].startswith("timedelta"):
        return timedelta(milliseconds=given)
    if isinstance(given, int) and field.metadata["kafka_type"] == "error_code":
        return ErrorCode(given)
    return given


def request(api_key: int, version: int, /, **values: Any) -> Any:
    return message(request_type(api_key, version), values)


def response(api_key: int, version: int, /, **values: Any) -> Any:
    return message(response_type(api_key, version), values)


def request_body(api_key: int, version: int, /, **values: Any) -> bytes:
    """The bytes of a request without its header."""
    return written(request(api_key, version, **values))


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)


# Encoding with kio


def written(entity: Any) -> bytes:
    """A message without its header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def response_bytes(entity: Any, correlation_id: int) -> bytes:
    """A response with its header."""
    return written(entity.__header_schema__(correlation_id=correlation_id)) + written(entity)


def read_request(api_key: int, version: int, body: bytes) -> Any:
    """Decode a request without its header; trailing bytes are ignored."""
    return entity_reader(request_type(api_key, version))(body, 0)[0]


def read_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Decode a response; return correlation id and message. Trailing bytes are an error."""
    schema: Any = response_type(api_key, version)
    header, start = entity_reader(schema.__header_schema__)(frame, 0)
    found, size = entity_reader(schema)(frame, start)
    if start + size != len(frame):
        raise ValueError(f"{len(frame) - start - size} bytes behind the response")
    return header.correlation_id, found


# Produce, Fetch and Metadata

TOPIC_ID = uuid.UUID(int=1)


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def produce_body(
    version: int,
    topics: list[tuple[str, list[int]]],
    *,
    transactional_id: str | None = None,
    acks: int = -1,
    records: bytes | None = bytes(80),
) -> bytes:
    """A Produce request for partitions of topics."""
    return request_body(
        PRODUCE,
        version,
        transactional_id=transactional_id,
        acks=acks,
        topic_data=[
            {
                "name": name,
                "topic_id": topic_id(name),
                "partition_data": [{"index": index, "records": records} for index in partitions],
            }
            for name, partitions in topics
        ],
    )


def fetch_body(version: int, topics: list[tuple[str, list[int]]], **more: Any) -> bytes:
    """A Fetch request for partitions of topics, within a fetch session."""
    return request_body(
        FETCH,
        version,
        topics=[
            {
                "topic": name,
                "topic_id": topic_id(name),
                "partitions": [
                    {"partition": index, "fetch_offset": 9, "partition_max_bytes": 99}
                    for index in partitions
                ],
            }
            for name, partitions in topics
        ],
        **{"replica_id": -1, "min_bytes": 1, "max_bytes": 2, "session_id": 5, "session_epoch": 6}
        | more,
    )


def metadata_request(
    version: int, *names: str | None, ids: tuple[uuid.UUID, ...] = (), **more: Any
) -> Any:
    """A Metadata request for topics; a single None requests all topics."""
    topics: Any = [{"name": name, "topic_id": None} for name in names]
    if names == (None,):
        topics = None if version else ()
    if ids:
        topics = [{"name": None, "topic_id": one} for one in ids]
    return request(
        METADATA, version, **{"topics": topics, "allow_auto_topic_creation": True} | more
    )


def metadata_response(version: int, *topics: tuple[str, int], operations: int = -(2**31)) -> Any:
    """A Metadata response with names and error codes and one partition per topic."""
    partition = {"leader_id": 1, "replica_nodes": range(200), "isr_nodes": (1,)}
    return response(
        METADATA,
        version,
        cluster_id="c",
        controller_id=1,
        cluster_authorized_operations=operations,
        topics=[
            {
                "name": name,
                "topic_id": TOPIC_ID,
                "error_code": ErrorCode(error),
                "topic_authorized_operations": operations,
                "partitions": [partition],
            }
            for name, error in topics
        ],
    )
