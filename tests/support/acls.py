"""A store of ACLs in memory; cases, requests and responses of the ACL APIs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from kio.serial import entity_reader

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.handlers import acls as api
from proxy.handlers.acls import Acls
from proxy.store import Store
from proxy.store.interface import AclChanges, AclSnapshot
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import request_body
from tests.support.tables import table

# ACLs and their store


class MemoryAclStore:
    """An in-memory store that counts transactions."""

    def __init__(self, *acls: Acl) -> None:
        self.acls = set(acls)
        self.transactions = 0

    def acl_version(self) -> int:
        return self.transactions

    def acl_snapshot(self) -> AclSnapshot:
        return AclSnapshot(version=self.transactions, acls=sorted(self.acls))

    def acl_changes(self, since: int) -> AclChanges | None:  # noqa: ARG002 - keeps no log
        return None

    def create_acls(self, acls: Collection[Acl]) -> int:
        self.transactions += 1
        self.acls |= set(acls)
        return self.transactions

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        self.transactions += 1
        # indexed by name: ten thousand filters times ten thousand ACLs take minutes
        by_name: dict[str, list[Acl]] = {}
        for one in sorted(self.acls):
            by_name.setdefault(one.name, []).append(one)
        found = tuple(
            tuple(one for one in by_name.get(wanted.name or "", ()) if wanted.matches(one))
            for wanted in filters
        )
        self.acls.difference_update(*found)
        return found

    def administered(self) -> Acls:
        return Acls(
            store=cast(Store, self), current=lambda: AclIndex(self.acls, version=self.transactions)
        )


def acl(
    name: str = "t",
    principal: str = "User:alice",
    *,
    host: str = "*",
    pattern_type: PatternType = PatternType.LITERAL,
    resource_type: ResourceType = ResourceType.TOPIC,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(resource_type, pattern_type, name, principal, host, operation, permission)


# Creations and filters, and what Kafka 4.1.0 answers: tests/kafka/test_acl_administration.py asks

Result = tuple[str, str | None]
DONE: Result = ("none", "")
NO_NAME: Result = ("invalid_request", "Invalid empty resource name")


def unknown(field: str, value: str = "UNKNOWN") -> Result:
    return ("invalid_request", f"Invalid {field} {value}")


def creation(**changes: Any) -> dict[str, Any]:
    """Fields of a CreateAcls item, v1 to v3; by default alice may read a topic."""
    return {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    } | changes


def asking(**changes: Any) -> dict[str, Any]:
    """Fields of a DescribeAcls request or DeleteAcls filter; by default it matches everything."""
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    } | changes


def _seen(name: str) -> list[tuple[dict[str, Any], Result]]:
    return [(changes, (error, message)) for changes, (error, message) in table(__file__, name)]


CREATIONS_SEEN = _seen("creations_seen")
CREATIONS_SEEN_SINCE_4_4 = _seen("creations_seen_since_4_4")
FILTERS_SEEN = _seen("filters_seen")
"""As deletions that match nothing; DescribeAcls answers all of them with an empty result."""

UNKNOWN_PATTERN: Result = ("invalid_request", "Unknown patternFilter.")
UNKNOWN_ENTRY: Result = ("invalid_request", "Unknown entryFilter.")
APPLIED: Result = ("none", None)

FILTERS_BETTER: list[tuple[dict[str, Any], Result]] = [
    # Kafka closes the connection
    ({"resource_type_filter": 0}, UNKNOWN_PATTERN),
    ({"pattern_type_filter": 0}, UNKNOWN_PATTERN),
    ({"operation": 0}, UNKNOWN_ENTRY),
    ({"permission_type": 0}, UNKNOWN_ENTRY),
]
"""DescribeAcls answers these with the same error."""


# The ACL APIs as seen by a client

DESCRIBE, CREATE, DELETE = 29, 30, 31
VERSIONS = range(4)


def whole(found: bytes | Callable[[], bytes]) -> bytes:
    """Return the body, computing it if it is lazy."""
    return found if isinstance(found, bytes) else found()


def answer(
    api_key: int, version: int, body: bytes, store: MemoryAclStore | None, **rights: bool
) -> bytes:
    acls = None if store is None else store.administered()
    return whole(api.answer(api_key, version, body, acls, **rights))


def asked(
    api_key: int,
    version: int,
    body: bytes,
    store: MemoryAclStore | None,
    *,
    authorized: bool = True,
) -> Any:
    """Decode the response, also with kio if it has the version."""
    found = answer(api_key, version, body, store, authorized=authorized)
    schema = response_type(api_key, version)
    ours = decode(schema, found)
    assert encode(ours) == found, "and no bytes behind it"
    if version:
        kios, size = entity_reader(schema)(found, 0)
        assert (kios, size) == (ours, len(found))
    return ours


def create_body(version: int, creations: Sequence[dict[str, Any]]) -> bytes:
    return request_body(CREATE, version, creations=creations)


def delete_body(version: int, filters: Sequence[dict[str, Any]]) -> bytes:
    return request_body(DELETE, version, filters=filters)


def describe_body(version: int, fields: dict[str, Any]) -> bytes:
    return request_body(DESCRIBE, version, **fields)


def reported(result: Any) -> Result:
    return result.error_code.name, result.error_message


def created(
    store: MemoryAclStore | None, *creations: dict[str, Any], version: int = 3, **rights: bool
) -> list[Result]:
    response = asked(CREATE, version, create_body(version, creations), store, **rights)
    return [reported(one) for one in response.results]


def deleted(
    store: MemoryAclStore | None, *filters: dict[str, Any], version: int = 3, **rights: bool
) -> list[Any]:
    return list(
        asked(DELETE, version, delete_body(version, filters), store, **rights).filter_results
    )


def described(
    store: MemoryAclStore | None, fields: dict[str, Any], *, version: int = 3, **rights: bool
) -> Any:
    return asked(DESCRIBE, version, describe_body(version, fields), store, **rights)
