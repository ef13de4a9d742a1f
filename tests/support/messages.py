"""Kafka messages of any version: made without chance, or from plain values."""

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from proxy.acl.guards.entities import item_type
from proxy.wire.apis import APIS
from proxy.wire.codec import request_type, response_type

# The least and a well filled instance of any of kio's schemas, made without chance

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
    "uuid": UUID(int=2**127 + 5),
    "float64": -1.5,
    "error_code": ErrorCode.topic_authorization_failed,
    "timedelta_i32": timedelta(milliseconds=1001),
    "timedelta_i64": timedelta(milliseconds=-1),
    "datetime_i64": datetime(2025, 9, 1, 12, tzinfo=UTC),
}


def small(schema: type[Any]) -> Any:
    """An instance with every array empty, everything nullable null, and every default kept."""
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
    """An instance with two items in each array, and nothing null or as it would be by default."""
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


# Messages of any version from plain values; what is not said is as small as can be

Values = Mapping[str, Any]


def message(schema: type[Any], values: Values) -> Any:
    """A field that this version lacks is left out."""
    names = {field.name for field in fields(schema)}
    return replace(
        small(schema),
        **{name: _field(schema, name, value) for name, value in values.items() if name in names},
    )


def _field(schema: type[Any], name: str, value: Any) -> Any:
    if isinstance(value, list):
        item = item_type(schema, name)
        return tuple(message(item, each) if is_dataclass(item) else each for each in value)
    if isinstance(value, dict):
        kind = next(field.type for field in fields(schema) if field.name == name)
        kinds = (kind, *getattr(kind, "__args__", ()))
        return message(next(one for one in kinds if is_dataclass(one)), value)  # type: ignore[arg-type]
    return value


def request(api_key: int, version: int, **values: Any) -> Any:
    return message(request_type(api_key, version), values)


def response(api_key: int, version: int, **values: Any) -> Any:
    return message(response_type(api_key, version), values)


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
