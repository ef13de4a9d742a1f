"""ACLs and an index of them, with as little said as a question needs."""

from collections.abc import Sequence

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALL, READ, WRITE, DESCRIBE = Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, ADDRESS = "User:alice", "10.0.0.1"


def acl(
    name: str = "orders",
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    resource_type: ResourceType = TOPIC,
    pattern_type: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(resource_type, pattern_type, name, principal, host, operation, permission)


def index(*acls: Acl, everyone: bool = False, super_users: Sequence[str] = ()) -> AclIndex:
    return AclIndex(
        acls,
        allow_everyone_if_no_acl_found=everyone,
        super_users=frozenset(super_users),
        version=1,
    )


def may(
    acls: AclIndex, operation: Operation = READ, name: str = "orders", host: str = ADDRESS
) -> bool:
    return acls.decide(ALICE, host, operation, TOPIC, name).allowed
