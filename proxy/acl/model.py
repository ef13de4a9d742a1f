"""Access control list entry, with the codes of its parts on the wire and in the store.

Sources: KIP-140 (codes, filters), KIP-290 (prefixed patterns), and the operations and resource
types that Kafka has added since. Kafka's resource pattern and entry are one flat `Acl` here,
because they are always used together.
"""

from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple


class AuthorizerMode(StrEnum):
    """Modes of the authorizer (`authorizer.mode`)."""

    OFF = "off"
    """Checks nothing; every client may do everything."""
    AUDIT = "audit"
    """Counts and logs denials, but forwards every request."""
    ENFORCE = "enforce"


class Code(IntEnum):
    """Base of the codes; those of a later Kafka become UNKNOWN (KIP-140)."""

    @classmethod
    def _missing_(cls, value: object) -> "Code | None":
        return cls(0) if isinstance(value, int) else None


class ResourceType(Code):
    """Types of resources (`ResourceType`)."""

    UNKNOWN = 0
    ANY = 1
    """Code that only filters may have."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(Code):
    """Ways to match the name of an ACL with that of a resource (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    """Code that only filters may have: patterns of any type."""
    MATCH = 2
    """Code that only filters may have: all patterns that match a resource of this name."""
    LITERAL = 3
    """Pattern of exactly this name; `*` stands for every name."""
    PREFIXED = 4
    """Pattern of every name with this prefix; `*` is an ordinary character here."""


class Operation(Code):
    """Operations on resources (`AclOperation`)."""

    UNKNOWN = 0
    ANY = 1
    """Code that only filters may have."""
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


class Permission(Code):
    """Permissions of ACLs (`AclPermissionType`)."""

    UNKNOWN = 0
    ANY = 1
    """Code that only filters may have."""
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
"""Literal name that stands for every resource, and host that stands for every client."""
WILDCARD_PRINCIPAL: Final = "User:*"
"""Principal that stands for every principal of the type User."""
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of the type CLUSTER."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """Access control list entry: `principal` from `host` may, or may not, do `operation` on
    matching resources.

    ACLs are sorted by their fields in this order.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    """Name with its type, such as `User:alice`; `User:*` is every principal."""
    host: str
    """Address, CIDR block (which Kafka lacks), or `*`."""
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Filter of DescribeAcls and DeleteAcls. None and ANY match every value."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches `acl` (KIP-140, KIP-290)."""
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.resource_type in (ResourceType.ANY, acl.resource_type)
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
    """Return the filter that matches only this ACL."""
    return AclFilter(**asdict(acl))
