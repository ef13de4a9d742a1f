"""Comparison of a release's messages with the table of APIs and the schemas that decode them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, cast, get_args, get_origin

from proxy.wire.apis import APIS, Kind
from proxy.wire.codec import request_type, response_type
from tests.drift.definitions import Definitions, Field, Message

_PRIMITIVES: Final = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "float64",
        "string",
        "uuid",
        "bytes",
        "records",
    ]
)
_WIRE_TYPES: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
"""Kafka's types of what the schemas give a Python type."""
_NULL_OF_THEIR_OWN: Final = frozenset({"uuid", "records"})
"""Types whose null the schemas have in all versions."""

Fields = list[tuple[str, str]]
"""Paths of fields, as definitions and schemas have them in common, and their forms."""


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
    """Give the messages with known versions that the schemas would read otherwise than Kafka
    does: fields that they lack, or have with another type or at another place."""
    for message in definitions.messages:
        api = APIS.get(message.api_key)
        if api is None or message.versions is None:
            continue
        found: dict[str, list[int]] = {}
        for version in range(api.min_version, api.max_version + 1):
            if version in message.versions:
                for line in _differences(message, version):
                    found.setdefault(line, []).append(version)
        if found:
            versions = (f"{line}  v{', v'.join(map(str, each))}" for line, each in found.items())
            yield Unknown(_name(message), tuple(versions))


def _differences(message: Message, version: int) -> Iterator[str]:
    """Give a line for each field that differs. A field that only has another name does not."""
    fields = [one for one in message.fields if version in one.versions]
    theirs = [(_plain(one.path), _form_in(one, version)) for one in fields]
    load = request_type if message.is_request else response_type
    ours = list(_class_fields(load(message.api_key, version), ""))
    if _renamed(theirs, ours) == theirs:
        return
    known, differs = dict(ours), False
    for one, (path, form) in zip(fields, theirs, strict=True):
        if known.get(path) != form:
            differs = True
            here = f", here {known[path]}" if path in known else ""
            yield f"{one.path}  {one.type if path not in known else form}{here}"
    if not differs:
        yield "another order, or fields that only the schema has"


def _renamed(theirs: Fields, ours: Fields) -> Fields:
    """Return our fields; one whose name only we have is called as theirs at its place."""
    if len(theirs) != len(ours):
        return ours
    their_names, our_names = dict(theirs), dict(ours)
    return [
        (their_path, form)
        if their_path not in our_names and path not in their_names
        else (path, form)
        for (their_path, _), (path, form) in zip(theirs, ours, strict=True)
    ]


def _form_in(one: Field, version: int) -> str:
    item = one.type.removeprefix("[]")
    is_array = item != one.type
    return _form(
        item if item in _PRIMITIVES else "struct",
        is_array=is_array,
        nullable=one.nullable is not None and version in one.nullable,
        tag=one.tag,
    )


def _form(item: str, *, is_array: bool, nullable: bool, tag: int | None) -> str:
    """Return what decides how a field is read: type, whether it may be null, and tag."""
    return (
        ("[]" if is_array else "")
        + item
        + (" or null" if nullable and (is_array or item not in _NULL_OF_THEIR_OWN) else "")
        + ("" if tag is None else f", tag {tag}")
    )


def _name(message: Message) -> str:
    return f"{message.api_key} {message.name} {'request' if message.is_request else 'response'}"


def _unstable(message: Message) -> str:
    return " (the last is unstable)" if message.is_unstable else ""


def _lines(message: Message, since: int = 0) -> Iterator[str]:
    """Give a line for each field that begins with version `since` or later."""
    for one in message.fields:
        if one.versions.first >= since:
            yield f"{one.path}  {one.type}  {one.versions}"


def _class_fields(schema: type[Any], path: str) -> Iterator[tuple[str, str]]:
    """Give the fields of a schema, each before those of the structure that it holds."""
    for one in dataclasses.fields(schema):
        kind, nullable = _without_none(one.type)
        is_array = get_origin(kind) is tuple
        item, _ = _without_none(get_args(kind)[0]) if is_array else (kind, False)
        kafka_type = one.metadata.get("kafka_type", "struct")
        name = path + _plain(one.name)
        yield (
            name,
            _form(
                _WIRE_TYPES.get(kafka_type, kafka_type),
                is_array=is_array,
                nullable=nullable and kafka_type != "datetime_i64",
                tag=one.metadata.get("tag"),
            ),
        )
        if dataclasses.is_dataclass(item):
            yield from _class_fields(cast("type[Any]", item), name + ".")


def _without_none(annotation: Any) -> tuple[Any, bool]:
    rest = [one for one in get_args(annotation) if one is not NoneType]
    return (rest[0], True) if NoneType in get_args(annotation) else (annotation, False)


def _plain(name: str) -> str:
    """Return a path as a definition and a schema have it in common.

    Schemas write `throttle_time` where Kafka writes `ThrottleTimeMs`: their durations have a type.
    """
    parts = name.replace("_", "").lower().split(".")
    return ".".join(part.removesuffix("ms") for part in parts)
