"""The ACL APIs as a client has them: requests from fields, responses read."""

from collections.abc import Sequence
from typing import Any

from kio.serial import entity_reader

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.handlers import acls as api
from proxy.wire.acl_v0 import request_type, response_type
from proxy.wire.codec import decode, encode
from tests.proxy.acl.api_cases import (
    Result,
)
from tests.proxy.acl.shelf import Shelf

DESCRIBE, CREATE, DELETE = 29, 30, 31
VERSIONS = range(4)


def answer(api_key: int, version: int, body: bytes, store: Shelf | None, **rights: bool) -> bytes:
    acls = None if store is None else store.administered()
    return api.answer(api_key, version, body, acls, **rights)


def entity(schema: Any, fields: dict[str, Any]) -> Any:
    known = {name: value for name, value in fields.items() if name in schema.__annotations__}
    return schema(**known)


def asked(
    api_key: int,
    version: int,
    body: bytes,
    store: Shelf | None,
    *,
    may_describe: bool = True,
    may_alter: bool = True,
) -> Any:
    """The response, read by kio where kio has the version."""
    found = answer(api_key, version, body, store, may_describe=may_describe, may_alter=may_alter)
    schema = response_type(api_key, version)
    ours = decode(schema, found)
    assert encode(ours) == found, "and no bytes behind it"
    if version:
        kios, size = entity_reader(schema)(found, 0)
        assert (kios, size) == (ours, len(found))
    return ours


def create_body(version: int, creations: Sequence[dict[str, Any]]) -> bytes:
    schema = request_type(CREATE, version)
    item = schema.__annotations__["creations"].__args__[0]
    return encode(schema(creations=tuple(entity(item, one) for one in creations)))


def delete_body(version: int, filters: Sequence[dict[str, Any]]) -> bytes:
    schema = request_type(DELETE, version)
    item = schema.__annotations__["filters"].__args__[0]
    return encode(schema(filters=tuple(entity(item, one) for one in filters)))


def describe_body(version: int, fields: dict[str, Any]) -> bytes:
    return encode(entity(request_type(DESCRIBE, version), fields))


def told(result: Any) -> Result:
    return result.error_code.name, result.error_message


def created(
    store: Shelf | None, *creations: dict[str, Any], version: int = 3, **rights: bool
) -> list[Result]:
    response = asked(CREATE, version, create_body(version, creations), store, **rights)
    return [told(one) for one in response.results]


def deleted(
    store: Shelf | None, *filters: dict[str, Any], version: int = 3, **rights: bool
) -> list[Any]:
    return list(
        asked(DELETE, version, delete_body(version, filters), store, **rights).filter_results
    )


def described(
    store: Shelf | None, fields: dict[str, Any], *, version: int = 3, **rights: bool
) -> Any:
    return asked(DESCRIBE, version, describe_body(version, fields), store, **rights)


def acls_of(response: Any) -> list[Acl]:
    return [
        Acl(
            ResourceType(resource.resource_type),
            PatternType(getattr(resource, "pattern_type", 3)),
            resource.resource_name,
            one.principal,
            one.host,
            Operation(one.operation),
            Permission(one.permission_type),
        )
        for resource in response.resources
        for one in resource.acls
    ]


def versioned(
    cases: Sequence[tuple[dict[str, Any], Result]], since_v1: str
) -> list[tuple[int, dict[str, Any], Result]]:
    """Each case in each version that has its fields."""
    return [
        (version, changes, expected)
        for version in VERSIONS
        for changes, expected in cases
        if version or since_v1 not in changes
    ]
