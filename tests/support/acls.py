"""A store of ACLs in memory; cases, requests and responses of the ACL APIs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from kio.serial import entity_reader

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.handlers import acls as api
from proxy.handlers.acls import Acls
from proxy.store import AclChanges, AclSnapshot, Store
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import request_body

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
NOT_THE_CLUSTER: Result = (
    "invalid_request",
    "The only valid name for the CLUSTER resource is kafka-cluster",
)
NO_NAME: Result = ("invalid_request", "Invalid empty resource name")
NO_HOST: Result = ("invalid_request", "Host pattern cannot be null or empty")
NO_BLOCK: Result = ("invalid_request", "Invalid CIDR notation '10.0/8': Could not parse [10.0/8]")


def unknown(field: str, value: str = "UNKNOWN") -> Result:
    return ("invalid_request", f"Invalid {field} {value}")


def no_colon(principal: str) -> Result:
    return (
        "invalid_request",
        f"Could not parse principal from `{principal}` (no colon is present separating the"
        " principal type from the principal name)",
    )


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


CREATIONS_SEEN: list[tuple[dict[str, Any], Result]] = [
    ({}, DONE),
    # codes that later Kafka versions may define
    *[({"resource_type": code}, unknown("resourceType")) for code in (-1, 8, 99)],
    *[({"resource_pattern_type": code}, unknown("patternType")) for code in (-3, 5)],
    *[({"operation": code}, unknown("operation")) for code in (-1, 16, 99)],
    *[({"permission_type": code}, unknown("permissionType")) for code in (-5, 4)],
    # names
    ({"resource_name": ""}, NO_NAME),
    ({"resource_name": "n" * 300}, DONE),
    ({"resource_type": 4}, NOT_THE_CLUSTER),
    ({"resource_type": 4, "resource_name": ""}, NOT_THE_CLUSTER),
    ({"resource_type": 4, "resource_name": "kafka", "resource_pattern_type": 4}, NOT_THE_CLUSTER),
    ({"resource_type": 4, "resource_name": "kafka-cluster"}, DONE),
    ({"resource_type": 4, "resource_name": "kafka-cluster", "resource_pattern_type": 4}, DONE),
    ({"resource_type": 8, "resource_name": ""}, NO_NAME),
    ({"resource_type": 7}, DONE),
    # principals: anything with a colon
    *[({"principal": text}, no_colon(text)) for text in ("", "alice", "*")],
    *[({"principal": text}, DONE) for text in (":", "User:", ":x", "a:b:c")],
    # hosts: anything but an empty one
    *[({"host": text}, DONE) for text in ("not an ip", "10.0.0.0/8", "*" * 300)],
    # every operation on every resource type
    *[({"operation": code}, DONE) for code in range(2, 16)],
    # which of several errors is reported
    ({"operation": 99, "principal": "alice"}, unknown("operation")),
    ({"resource_type": 4, "operation": 99}, NOT_THE_CLUSTER),
    (
        {
            "resource_type": 99,
            "resource_pattern_type": 9,
            "operation": 99,
            "permission_type": 9,
            "principal": "alice",
        },
        unknown("resourceType"),
    ),
]


CREATIONS_SEEN_SINCE_4_4: list[tuple[dict[str, Any], Result]] = [
    ({"host": ""}, NO_HOST),
    ({"host": "10.0/8"}, NO_BLOCK),
    ({"host": "", "resource_type": 4}, NOT_THE_CLUSTER),
    ({"host": "", "resource_name": ""}, NO_NAME),
    ({"host": "", "permission_type": 4}, unknown("permissionType")),
    ({"host": "", "principal": "alice"}, no_colon("alice")),
]


UNKNOWN_PATTERN: Result = ("invalid_request", "Unknown patternFilter.")
UNKNOWN_ENTRY: Result = ("invalid_request", "Unknown entryFilter.")
APPLIED: Result = ("none", None)

FILTERS_SEEN: list[tuple[dict[str, Any], Result]] = [
    ({"resource_type_filter": 99}, UNKNOWN_PATTERN),
    ({"pattern_type_filter": 9}, UNKNOWN_PATTERN),
    ({"operation": 99}, UNKNOWN_ENTRY),
    ({"permission_type": 9}, UNKNOWN_ENTRY),
    ({"resource_type_filter": 99, "operation": 99}, UNKNOWN_PATTERN),
    ({"resource_type_filter": 4, "resource_name_filter": "x"}, APPLIED),
    ({"resource_name_filter": ""}, APPLIED),
    ({"principal_filter": ""}, APPLIED),
    ({"principal_filter": "x"}, APPLIED),
]
"""As deletions that match nothing; DescribeAcls answers all of them with an empty result."""

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
