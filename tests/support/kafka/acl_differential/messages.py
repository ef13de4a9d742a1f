"""Requests and answers of every API and version, for programs that send them all.

A request is described once for all its versions: what a version does not have is left out, what
the description leaves out is zero, empty or null.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args, get_origin, get_type_hints

from proxy.acl.model import Operation
from proxy.wire.codec import encode, request_type

Fields = Mapping[str, Any]

_LITERAL_PATTERN = 3


def encoded(api_key: int, version: int, fields: Fields) -> bytes:
    """Encodes a request's body; durations are in milliseconds."""
    return encode(_entity(request_type(api_key, version), fields))


@functools.cache
def _plan(schema: Any) -> tuple[tuple[dataclasses.Field[Any], Any, Any], ...]:
    hints = get_type_hints(schema)
    return tuple(
        (field, hints[field.name], _zero(hints[field.name])) for field in dataclasses.fields(schema)
    )


def _zero(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    if get_origin(hint) is tuple:
        return ()
    kind = _base(hint)
    if issubclass(kind, timedelta):
        return timedelta()
    for zero in (False, 0, "", b""):
        if issubclass(kind, type(zero)):
            return zero
    return None


def _base(hint: Any) -> type[Any]:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint if isinstance(hint, type) else object


def _entity(schema: Any, fields: Fields) -> Any:
    values = {}
    for field, hint, zero in _plan(schema):
        if field.name in fields:
            values[field.name] = _value(hint, fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = zero
    return schema(**values)


def _value(hint: Any, given: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
    if given is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], item) for item in given)
    if isinstance(given, Mapping):
        return _entity(hint, given)
    if isinstance(given, int) and issubclass(_base(hint), timedelta):
        return timedelta(milliseconds=given)
    return given


# --- ACLs in one line each

RESOURCE_TYPES = {"topic": 2, "group": 3, "cluster": 4, "txn": 5, "token": 6, "user": 7}
OPERATIONS = {operation.name: operation.value for operation in Operation}


def creation(acl: str, principal: str, name: Callable[[str], str]) -> Fields:
    """One entry of CreateAcls from `+topic:one:READ`.

    `-` denies, `name^` is a prefix, `+*topic` is for everybody, `@host` ends it. `name` turns the
    short names of the resources into whole ones.
    """
    rule, _, host = acl[1:].partition("@")
    kind, resource, operation = rule.split(":")
    everybody, kind = kind.startswith("*"), kind.removeprefix("*")
    prefixed, resource = resource.endswith("^"), resource.removesuffix("^")
    return {
        "resource_type": RESOURCE_TYPES[kind],
        "resource_name": name(resource) if kind != "cluster" else "kafka-cluster",
        "resource_pattern_type": _LITERAL_PATTERN + prefixed,
        "principal": "User:*" if everybody else f"User:{principal}",
        "host": host or "*",
        "operation": OPERATIONS[operation],
        "permission_type": 3 if acl[0] == "+" else 2,
    }


def as_filter(entry: Fields) -> Fields:
    """The filter of DescribeAcls and DeleteAcls that finds just this entry."""
    return {
        "resource_type_filter": entry["resource_type"],
        "resource_name_filter": entry["resource_name"],
        "pattern_type_filter": entry["resource_pattern_type"],
        "principal_filter": entry["principal"],
        "host_filter": entry["host"],
        "operation": entry["operation"],
        "permission_type": entry["permission_type"],
    }
