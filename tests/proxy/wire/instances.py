"""The least and a well filled instance of any of kio's schemas, made without chance."""

import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

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
