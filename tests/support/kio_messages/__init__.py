"""Messages as kio has them: a second reader and writer, beside `proxy.wire`.

kio has one frozen class per structure and version. For the versions that it lacks (those that Kafka
dropped, those that no Kafka has, and the newest ones), classes in its style are made of the
definitions in `proxy/wire/messages.txt`. `tests/proxy/wire/test_versions_kio_lacks.py` checks these
against bytes that come from elsewhere.
"""

import io
import uuid
from dataclasses import field, make_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1.header import RequestHeader as RequestHeader1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeader2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeader0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeader1
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import f64, i8, i16, i32, i32Timedelta, i64, u16

from proxy.wire.apis import APIS, is_flexible, response_header_version
from proxy.wire.schema import Field, Message, message_type

_TYPES: Final[dict[str, Any]] = {
    "int8": i8,
    "int16": i16,
    "uint16": u16,
    "int32": i32,
    "int64": i64,
    "float64": f64,
    "bool": bool,
    "string": str,
    "bytes": bytes,
    "uuid": uuid.UUID | None,
}


def is_of_kio(api_key: int, api_version: int) -> bool:
    """Whether kio itself knows the version."""
    return api_key in api_key_map and api_version in schema_name_map[api_key_map[api_key]]


@cache
def request_type(api_key: int, api_version: int) -> Any:
    if is_of_kio(api_key, api_version) or api_key not in APIS:
        return load_request_schema(api_key, api_version)
    header = RequestHeader2 if is_flexible(api_key, api_version) else RequestHeader1
    return _made(api_key, api_version, EntityType.request, header)


@cache
def response_type(api_key: int, api_version: int) -> Any:
    if is_of_kio(api_key, api_version) or api_key not in APIS:
        return load_response_schema(api_key, api_version)
    header = (ResponseHeader0, ResponseHeader1)[response_header_version(api_key, api_version)]
    return _made(api_key, api_version, EntityType.response, header)


def _made(api_key: int, version: int, kind: EntityType, header: type[Any]) -> Any:
    message = message_type(f"{APIS[api_key].name}{kind.name.capitalize()}")
    first, last = message.HEAD.versions
    if not first <= version <= last:
        raise LookupError(f"{message.HEAD.name} v{version}")
    facts = {
        "__version__": i16(version),
        "__api_key__": i16(api_key),
        "__flexible__": is_flexible(api_key, version),
        "__header_schema__": header,
    }

    @cache
    def struct(of: type[Message], kind: EntityType = EntityType.nested) -> Any:
        present = [_field(one) for one in of.FIELDS if one.versions.has(version)]
        namespace = {"__type__": kind, **facts}
        return make_dataclass(
            of.__name__, present, frozen=True, slots=True, kw_only=True, namespace=namespace
        )

    def _field(one: Field) -> tuple[str, Any, Any]:
        name, kafka_type = one.name, one.kind
        kind: Any = _TYPES.get(kafka_type)
        if name == "error_code":
            kind, kafka_type = ErrorCode, name
        elif name.endswith("_ms"):
            name, kind, kafka_type = name.removesuffix("_ms"), i32Timedelta, "timedelta_i32"
        if one.struct is not None:
            kind = struct(one.struct)
        metadata = {} if one.struct is not None else {"kafka_type": kafka_type}
        if one.is_array:
            kind = tuple[kind, ...]
        if one.null.has(version):
            kind |= None
        tag = {} if one.tag is None else {"tag": one.tag}
        return name, kind, field(metadata=metadata | tag, **_default(one, kafka_type))

    return struct(message, kind)


def _default(one: Field, kafka_type: str) -> dict[str, Any]:
    """The default of a field, if kio would have it: not that of the type, unless it is tagged."""
    if one.default is None or one.tag is not None:
        return {"default": one.default}
    if not isinstance(one.default, int) or not one.default:
        return {}
    is_time = kafka_type.startswith("timedelta")
    return {"default": timedelta(milliseconds=one.default) if is_time else one.default}


def encode(entity: Any) -> bytes:
    """A message without its header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decode(schema: Any, data: bytes, position: int = 0) -> Any:
    """A message without its header; what follows is ignored."""
    return entity_reader(schema)(data, position)[0]
