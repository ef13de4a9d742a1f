"""The strict codec of `proxy.wire`, for entities of kio."""

import dataclasses
import typing
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from proxy.wire import codec
from proxy.wire.schema import NO_ID, Message
from tests.support import kio_messages
from tests.support.messages import request_kind, response_kind

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _kind(schema: Any) -> type[Message]:
    is_request = schema.__type__ is EntityType.request
    return (request_kind if is_request else response_kind)(int(schema.__api_key__))


def decode(schema: Any, data: bytes, position: int = 0) -> Any:
    """Raises Malformed; an error code that kio does not know is read, too."""
    version = int(schema.__version__)
    return _of_kio(schema, codec.decode(_kind(schema), version, data, position), version)


def encode(entity: Any) -> bytes:
    schema: Any = type(entity)
    version = int(schema.__version__)
    read = codec.decode(_kind(schema), version, kio_messages.encode(entity))
    return codec.encode(read, version)


def _of_kio(schema: Any, message: Message, version: int) -> Any:
    """The entity of kio, whose fields have the same order."""
    present = [one for one in message.FIELDS if one.versions.has(version)]
    pairs = zip(dataclasses.fields(schema), present, strict=True)
    return schema(
        **{one.name: _value(one, getattr(message, ours.name), version) for one, ours in pairs}
    )


def _value(field: Any, value: Any, version: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(field, one, version) for one in value)
    if isinstance(value, Message):
        return _of_kio(_entity_type(field.type), value, version)
    match field.metadata.get("kafka_type"):
        case "error_code":
            return ErrorCode(value) if value in iter(ErrorCode) else value
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + timedelta(milliseconds=value)
        case "uuid":
            return None if value in (None, NO_ID) else uuid.UUID(bytes=value)
    return value


def _entity_type(kind: Any) -> Any:
    """The class of an entity in an annotation."""
    if dataclasses.is_dataclass(kind):
        return kind
    found = (_entity_type(one) for one in typing.get_args(kind))
    return next((one for one in found if one is not None), None)
