"""Access control list entry, with the codes of its parts on the wire and in the store.

Sources: KIP-140 (codes, filters), KIP-290 (prefixed patterns), and the operations and resource
types that Kafka has added since. A resource pattern and an entry of the specification are one flat
`Acl` here: they are never needed apart.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class AuthorizerMode(StrEnum):
    """What becomes of a denial (`authorizer.mode`)."""

    OFF = "off"
    """Nothing is asked: everybody may do everything."""
    AUDIT = "audit"
    """It is counted and logged, and everything passes."""
    ENFORCE = "enforce"


class ResourceType(IntEnum):
    """What an ACL is about (`ResourceType`)."""

    UNKNOWN = 0
    ANY = 1
    """Of filters only."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL's name is compared with a resource's (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    """Of filters only: patterns of any type."""
    MATCH = 2
    """Of filters only: all patterns that apply to a resource of this name."""
    LITERAL = 3
    """The name itself; `*` stands for every name."""
    PREFIXED = 4
    """Every name that begins so; here `*` is a letter like others."""


class Operation(IntEnum):
    """What somebody wants to do (`AclOperation`)."""

    UNKNOWN = 0
    ANY = 1
    """Of filters only."""
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an ACL says of it (`AclPermissionType`)."""

    UNKNOWN = 0
    ANY = 1
    """Of filters only."""
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
"""The literal name of every resource, and the host of everybody."""
WILDCARD_PRINCIPAL: Final = "User:*"
"""Every principal of the type User."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of the type CLUSTER."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One entry: `principal` from `host` may, or may not, do `operation` to what matches.

    The order of the fields is the order in which lists are shown.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    """As `User:alice`; `User:*` is everybody."""
    host: str
    """An address, a CIDR block (which Kafka lacks), or `*`."""
    operation: Operation
    permission: Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """What DescribeAcls and DeleteAcls ask for. None and ANY mean: whatever it is."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether `acl` is among what is asked for (KIP-140, KIP-290)."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._pattern_matches(acl)
        )

    def _pattern_matches(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if acl.pattern_type is PatternType.LITERAL:
            return acl.name == WILDCARD
        return self.name.startswith(acl.name)


def exactly(acl: Acl) -> AclFilter:
    """Return what finds this ACL alone."""
    return AclFilter(
        resource_type=acl.resource_type,
        pattern_type=acl.pattern_type,
        name=acl.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )
