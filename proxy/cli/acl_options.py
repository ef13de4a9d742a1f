"""Options of `reauth-proxy acls`, named as in kafka-acls.sh, and their ACLs and filters.

Two things that Kafka's tool accepts are refused here: `--remove --operation X` without a
principal, which removes every ACL of the resource there, and `--cluster` with a pattern type other
than literal, which it ignores there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import typer

from proxy.acl.authorizer import SUPPORTED_OPERATIONS
from proxy.acl.model import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    exactly,
)
from proxy.cli.common import option, principal_name, utf8
from sasl.identity import GROUP_TYPE, USER_TYPE

MAX_TEXT: Final = 8_000
"""Maximum length of a name in characters: in UTF-8 it fits into a STRING, of 32,767 bytes."""

Member = TypeVar("Member", bound=IntEnum)

_OPERATION_NAMES: Final = {
    one.name.replace("_", "").lower(): one for one in Operation if one > Operation.ANY
}


class PatternKind(StrEnum):
    """Values of `--resource-pattern-type`."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"
    MATCH = "match"

    @property
    def pattern_type(self) -> PatternType:
        """Pattern type of the protocol."""
        return PatternType[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Options that name resources."""

    topic: Annotated[list[str], option("NAME", "A topic; * is every topic.")] = field(
        default_factory=list
    )
    group: Annotated[list[str], option("NAME", "A consumer group; * is every group.")] = field(
        default_factory=list
    )
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster.")] = False
    transactional_id: Annotated[list[str], option("ID", "A transactional id; * is every.")] = field(
        default_factory=list
    )
    delegation_token: Annotated[list[str], option("ID", "A delegation token; * is every.")] = field(
        default_factory=list
    )
    user_principal: Annotated[
        list[str], option("PRINCIPAL", "A user as a resource: for its tokens.")
    ] = field(default_factory=list)
    resource_pattern_type: Annotated[
        PatternKind,
        option(
            "TYPE",
            "literal, prefixed, any or match: how names match. any and match are for list and"
            " remove: match finds all ACLs that apply to a resource of this name.",
            case_sensitive=False,
        ),
    ] = PatternKind.LITERAL

    def patterns(self) -> tuple["Pattern", ...]:
        """Return the patterns of the resources named, each once."""
        names = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.DELEGATION_TOKEN: self.delegation_token,
            ResourceType.USER: self.user_principal,
        }
        found = [
            Pattern(kind, self.resource_pattern_type.pattern_type, text(name))
            for kind, given in names.items()
            for name in given
        ]
        return tuple(dict.fromkeys([*found, *([CLUSTER] if self.cluster else [])]))


class Pattern(NamedTuple):
    """Resource pattern: one resource, or all that match."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    def filter(self) -> AclFilter:
        """Return the filter that finds all ACLs with this pattern."""
        return AclFilter(
            resource_type=self.resource_type, pattern_type=self.pattern_type, name=self.name
        )


CLUSTER: Final = Pattern(ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Resources):
    """Options that select the ACLs to show: those of these resources and principals, or all."""

    principal: Annotated[
        list[str], option("PRINCIPAL", "Only the ACLs of this one, as User:alice or alice.")
    ] = field(default_factory=list)

    def filters(self) -> tuple[AclFilter, ...]:
        """Return the filters that find these ACLs. Raises BadParameter."""
        wanted = [pattern.filter() for pattern in self.patterns()] or [AclFilter()]
        names: list[str | None] = [*map(principal, self.principal)] or [None]
        return tuple(one._replace(principal=name) for one in wanted for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRules:
    """Options for principals, hosts, operations and permission."""

    allow_principal: Annotated[
        list[str],
        option("PRINCIPAL", "Principal to allow, as User:alice or alice; User:* is every client."),
    ] = field(default_factory=list)
    deny_principal: Annotated[
        list[str], option("PRINCIPAL", "Principal to deny; a denial outweighs every permission.")
    ] = field(default_factory=list)
    allow_host: Annotated[
        list[str],
        option("ADDRESS", "Address to allow: one, a block such as 10.0.0.0/8, or * (the default)."),
    ] = field(default_factory=list)
    deny_host: Annotated[list[str], option("ADDRESS", "Address to deny.")] = field(
        default_factory=list
    )
    operation: Annotated[
        list[str], option("OPERATION", "Read, Write, Describe, ... By default All.")
    ] = field(default_factory=list)
    producer: Annotated[
        bool, typer.Option("--producer", help="Operations of a producer: Write, Describe, Create.")
    ] = False
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Operations of a consumer, on --topic and --group.")
    ] = False
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster.")
    ] = False

    @property
    def by_role(self) -> bool:
        """True if the operations are those that a producer or a consumer needs."""
        return self.producer or self.consumer

    def subjects(self) -> Iterator[tuple[str, str, Permission]]:
        """Return each principal, host and permission."""
        for principals, hosts, permission in (
            (self.allow_principal, self.allow_host, Permission.ALLOW),
            (self.deny_principal, self.deny_host, Permission.DENY),
        ):
            if hosts and not principals:
                word = permission.name.lower()
                raise typer.BadParameter(f"--{word}-host needs --{word}-principal")
            for given in principals:
                for host in hosts or (WILDCARD,):
                    yield principal(given), text(host), permission


def acls_to_add(resources: Resources, rules: AclRules) -> tuple[Acl, ...]:
    """Return the ACLs to add. Raises BadParameter."""
    if resources.resource_pattern_type.pattern_type < PatternType.LITERAL:
        raise typer.BadParameter("--resource-pattern-type must be literal or prefixed when adding")
    acls = _acls(resources, rules)
    if not acls:
        raise typer.BadParameter("give --allow-principal or --deny-principal")
    return acls


def doubt_about(acl: Acl) -> str | None:
    """Return a warning about a valid ACL that probably does not match the intended clients."""
    if acl.name == WILDCARD and acl.pattern_type is PatternType.PREFIXED:
        return "a prefixed '*' matches only names that begin with '*'; use literal for all names"
    if not acl.principal.startswith((USER_TYPE, GROUP_TYPE)):
        return f"{acl.principal!r} matches no client; principals are 'User:NAME' or 'Group:NAME'"
    return None


def filters_to_remove(resources: Resources, rules: AclRules) -> tuple[AclFilter, ...]:
    """Return the filters that find the ACLs to remove. Raises BadParameter.

    Without a principal, they find all ACLs of the resources.
    """
    acls = _acls(resources, rules)
    if acls:
        return tuple(map(exactly, acls))
    if rules.operation or rules.by_role:
        raise typer.BadParameter("give --allow-principal or --deny-principal: whose ACLs to remove")
    return tuple(pattern.filter() for pattern in resources.patterns())


def _acls(resources: Resources, rules: AclRules) -> tuple[Acl, ...]:
    """Return every combination of resource, subject and operation, each once."""
    _check_role(resources, rules)
    patterns = resources.patterns()
    if not patterns:
        raise typer.BadParameter(
            "give a resource: --topic, --group, --cluster, --transactional-id,"
            " --delegation-token or --user-principal"
        )
    if resources.cluster and resources.resource_pattern_type is PatternKind.PREFIXED:
        raise typer.BadParameter(
            "--cluster is one resource: it needs --resource-pattern-type literal"
        )
    wanted = list(_by_role(patterns, rules) if rules.by_role else _by_option(patterns, rules))
    return tuple(
        dict.fromkeys(
            Acl(*pattern, who, host, operation, permission)
            for pattern, operation in wanted
            for who, host, permission in rules.subjects()
        )
    )


def _check_role(resources: Resources, rules: AclRules) -> None:
    """Check the options that go with `--producer` and `--consumer`, as Kafka's tool does."""
    if rules.idempotent and not rules.producer:
        raise typer.BadParameter("--idempotent needs --producer")
    if not rules.by_role:
        return
    if rules.operation or rules.deny_principal or rules.deny_host:
        raise typer.BadParameter(
            "--producer and --consumer exclude --operation, --deny-principal and --deny-host"
        )
    if resources.delegation_token or resources.user_principal:
        raise typer.BadParameter(
            "--producer and --consumer exclude --delegation-token and --user-principal"
        )
    if not resources.topic:
        raise typer.BadParameter("--producer and --consumer need a --topic")
    if rules.consumer and not resources.group:
        raise typer.BadParameter("--consumer needs a --group")
    if not rules.producer and (resources.cluster or resources.transactional_id):
        raise typer.BadParameter("--cluster and --transactional-id need --producer")


_PRODUCER: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


def _by_role(patterns: Sequence[Pattern], rules: AclRules) -> Iterator[tuple[Pattern, Operation]]:
    roles = [*([_PRODUCER] if rules.producer else []), *([_CONSUMER] if rules.consumer else [])]
    for role in roles:
        for pattern in patterns:
            for operation in role.get(pattern.resource_type, ()):
                yield pattern, operation
    if rules.idempotent:
        yield CLUSTER, Operation.IDEMPOTENT_WRITE


def _by_option(patterns: Sequence[Pattern], rules: AclRules) -> Iterator[tuple[Pattern, Operation]]:
    operations = [operation_of(name) for name in rules.operation] or [Operation.ALL]
    for pattern in patterns:
        for operation in operations:
            possible = SUPPORTED_OPERATIONS[pattern.resource_type]
            if operation is not Operation.ALL and operation not in possible:
                names = ", ".join(operation_name(one) for one in sorted(possible))
                raise typer.BadParameter(
                    f"a {pattern.resource_type.name} supports the operations All, {names}"
                )
            yield pattern, operation


def operation_of(name: str) -> Operation:
    """Return an operation by its name as Kafka's tool or its API spells it. Raises BadParameter."""
    found = _OPERATION_NAMES.get(name.strip().replace("_", "").lower())
    if found is None:
        known = ", ".join(operation_name(one) for one in _OPERATION_NAMES.values())
        raise typer.BadParameter(f"--operation {name}: must be one of {known}")
    return found


def operation_name(operation: Operation) -> str:
    """Return an operation as Kafka's tool spells it, such as DescribeConfigs."""
    return operation.name.title().replace("_", "")


def principal(given: str) -> str:
    """Return a principal; a bare name is a user's. Raises BadParameter."""
    return principal_name(text(given))


def text(given: str) -> str:
    """Return text, stripped. Raises BadParameter if it cannot be sent or stored."""
    stripped = given.strip()
    if not utf8(stripped):
        raise typer.BadParameter("a name must not be empty")
    if len(stripped) > MAX_TEXT:
        raise typer.BadParameter(f"a name is longer than {MAX_TEXT} characters")
    return stripped


# ACLs in documents

_FIELDS: Final[Mapping[str, type]] = get_type_hints(Acl)
"""Types of an ACL's fields: text, or an enumeration, which is printed by name."""


def acl_fields(acl: Acl) -> dict[str, str]:
    """Return an ACL as `list` and `export` print it."""
    values = {field: getattr(acl, field) for field in _FIELDS}
    return {field: getattr(value, "name", value) for field, value in values.items()}


def acl_text(acl: Acl) -> str:
    """Return all of an ACL in one line."""
    return " ".join(acl_fields(acl).values())


def acl_of(item: Mapping[str, Any]) -> Acl:
    """Return an ACL from the fields of `acl_fields`. Raises BadParameter."""
    if item.keys() != _FIELDS.keys() or not all(isinstance(one, str) for one in item.values()):
        raise typer.BadParameter(f"must have {', '.join(_FIELDS)}, all of them text")
    values: dict[str, Any] = {
        field: _member(kind, item[field]) if issubclass(kind, IntEnum) else item[field]
        for field, kind in _FIELDS.items()
    }
    return Acl(**values)


def _member(kind: type[Member], name: str) -> Member:
    known = {one.name: one for one in kind if one.name not in ("UNKNOWN", "ANY", "MATCH")}
    if name not in known:
        raise typer.BadParameter(f"{name} is not one of {', '.join(known)}")
    return known[name]
