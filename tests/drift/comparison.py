"""Comparison of a release's messages with the table of APIs and the schemas that decode them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from proxy.wire.apis import APIS, Kind
from tests.drift.definitions import Definitions, Message


@dataclass(frozen=True, slots=True)
class Unknown:
    """What the proxy does not know of a message."""

    title: str
    fields: tuple[str, ...] = ()
    """A line for each field concerned."""


def unknown_apis(definitions: Definitions) -> Iterator[Unknown]:
    """Give the messages whose API key the table does not have."""
    for message in definitions.messages:
        if message.versions and message.api_key not in APIS:
            served = f", served by {' and '.join(message.listeners)}" if message.listeners else ""
            title = f"{_name(message)} {message.versions}{_unstable(message)}{served}"
            yield Unknown(title, tuple(_lines(message)))


def unknown_versions(definitions: Definitions) -> Iterator[Unknown]:
    """Give the messages that have versions above those of the table, and their new fields."""
    for message in definitions.messages:
        api = APIS.get(message.api_key)
        if api is None or message.versions is None or message.versions.last <= api.max_version:
            continue
        between = ", not offered to clients" if api.kind is Kind.NOT_OFFERED else ""
        title = (
            f"{_name(message)} {message.versions}{_unstable(message)};"
            f" the table ends with v{api.max_version}{between}"
        )
        yield Unknown(title, tuple(_lines(message, since=api.max_version + 1)))


def unknown_fields(definitions: Definitions) -> Iterator[Unknown]:
    """Give the fields of versions in the table that the schemas which decode them lack."""
    for message in definitions.messages:
        api = APIS.get(message.api_key)
        if api is None or message.versions is None:
            continue
        missing: dict[str, list[int]] = {}
        for version in sorted(schema_name_map[api_key_map[api.key]]):
            if version in message.versions and version <= api.max_version:
                known = _schema_fields(message, version)
                for one in message.fields:
                    if version in one.versions and _plain(one.path) not in known:
                        missing.setdefault(f"{one.path}  {one.type}", []).append(version)
        if missing:
            versions = (
                f"{line}  v{', v'.join(map(str, found))}" for line, found in missing.items()
            )
            yield Unknown(_name(message), tuple(versions))


def _name(message: Message) -> str:
    return f"{message.api_key} {message.name} {'request' if message.is_request else 'response'}"


def _unstable(message: Message) -> str:
    return " (the last is unstable)" if message.is_unstable else ""


def _lines(message: Message, since: int = 0) -> Iterator[str]:
    """Give a line for each field that begins with version `since` or later."""
    for one in message.fields:
        if one.versions.first >= since:
            yield f"{one.path}  {one.type}  {one.versions}"


def _schema_fields(message: Message, version: int) -> set[str]:
    load = load_request_schema if message.is_request else load_response_schema
    return set(_class_fields(load(message.api_key, version), ""))


def _class_fields(schema: type[Any], path: str) -> Iterator[str]:
    types = get_type_hints(schema)
    for one in dataclasses.fields(schema):
        name = path + _plain(one.name)
        yield name
        inner = _inner(types[one.name])
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            yield from _class_fields(inner, name + ".")


def _inner(annotation: Any) -> Any:
    """Return what an optional value, or the elements of a tuple, are."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return _inner(next(one for one in get_args(annotation) if one is not NoneType))
    return _inner(get_args(annotation)[0]) if origin is tuple else annotation


def _plain(name: str) -> str:
    """Return a path as a definition and a schema have it in common.

    Schemas write `throttle_time` where Kafka writes `ThrottleTimeMs`: their durations have a type.
    """
    parts = name.replace("_", "").lower().split(".")
    return ".".join(part.removesuffix("ms") for part in parts)
