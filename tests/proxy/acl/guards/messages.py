"""Messages of any version from plain values; what is not said is as small as can be."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from proxy.acl.guards.entities import item_type
from proxy.wire.apis import APIS
from proxy.wire.codec import request_type, response_type
from tests.proxy.wire.instances import small

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
