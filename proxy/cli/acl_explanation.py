"""Explanation of a decision: who asks for what, and which ACL decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

from proxy.acl.authorizer import SUPPORTED_OPERATIONS
from proxy.acl.index import AclIndex, Decision
from proxy.acl.model import Acl, AclFilter, Operation, PatternType
from proxy.cli.acl_options import (
    Pattern,
    PatternKind,
    Resources,
    operation_name,
    operation_of,
)
from proxy.cli.common import Misuse
from sasl.identity import Identity

if TYPE_CHECKING:
    from proxy.config import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerRules:
    """Settings of the authorizer that decide beside ACLs."""

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False

    @classmethod
    def of(cls, settings: "Authorizer") -> Self:
        """Return those of a configuration."""
        return cls(
            super_users=frozenset(settings.super_users),
            allow_everyone_if_no_acl_found=settings.allow_everyone_if_no_acl_found,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a principal at an address may do an operation on a resource."""

    identity: Identity
    host: str
    operation: Operation
    resource: Pattern

    def filters(self) -> list[AclFilter]:
        """Return the filter that finds all ACLs of the resource."""
        found = AclFilter(
            resource_type=self.resource.resource_type,
            pattern_type=PatternType.MATCH,
            name=self.resource.name,
        )
        return [found]

    def decide(self, acls: Sequence[Acl], rules: AuthorizerRules) -> Decision:
        """Return the decision of the authorizer itself."""
        index = AclIndex(
            acls,
            allow_everyone_if_no_acl_found=rules.allow_everyone_if_no_acl_found,
            super_users=rules.super_users,
            version=0,
        )
        return index.decide(
            self.identity.principals,
            self.host,
            self.operation,
            self.resource.resource_type,
            self.resource.name,
        )

    def alone(self, acls: Sequence[Acl], rules: AuthorizerRules) -> dict[str, Decision]:
        """Return what would be decided of each principal of a client with groups, if it were the
        only one; empty for a client without groups."""
        if not self.identity.groups:
            return {}
        return {
            one: replace(self, identity=Identity(one)).decide(acls, rules)
            for one in self.identity.principals
        }

    def sentence(self, decision: Decision) -> str:
        """Return the decision and its reason for a person."""
        may = "may" if decision.allowed else "may not"
        resource = f"{self.resource.resource_type.name} {self.resource.name}"
        return (
            f"{self.identity.principal} {may} {operation_name(self.operation)} {resource}:"
            f" {_reason(decision)}"
        )

    def document(
        self, decision: Decision, alone: Mapping[str, Decision], mode: str | None
    ) -> dict[str, Any]:
        """Return the same for programs; `mode` is that of the authorizer, None if not known."""
        return {
            "allowed": decision.allowed,
            "principal": self.identity.principal,
            "groups": list(self.identity.groups),
            "alone": {
                one: {"allowed": decided.allowed, "reason": _reason(decided)}
                for one, decided in alone.items()
            },
            "host": self.host,
            "operation": self.operation.name,
            "resource_type": self.resource.resource_type.name,
            "name": self.resource.name,
            "reason": _reason(decision),
            "acl": None if decision.rule is None else _text(decision.rule),
            "mode": mode,
        }


def sentence_alone(who: str, decision: Decision) -> str:
    """Return what would be decided of one of a client's principals."""
    return f"  {who} alone {'may' if decision.allowed else 'may not'}: {_reason(decision)}"


def question_of(identity: Identity, operation: str, resources: Resources, host: str) -> Question:
    """Return the question that options ask. Raises Misuse."""
    patterns = resources.patterns()
    if len(patterns) != 1 or resources.resource_pattern_type is not PatternKind.LITERAL:
        raise Misuse("give one resource: --topic, --group, --cluster, ...")
    try:
        ip_address(host)
    except ValueError:
        raise Misuse(f"--host {host}: must be an IP address") from None
    (resource,) = patterns
    wanted = operation_of(operation)
    if wanted not in SUPPORTED_OPERATIONS[resource.resource_type]:
        names = ", ".join(map(operation_name, SUPPORTED_OPERATIONS[resource.resource_type]))
        raise Misuse(f"a {resource.resource_type.name} supports the operations {names}")
    return Question(identity=identity, host=host, operation=wanted, resource=resource)


def _reason(decision: Decision) -> str:
    if decision.super_user:
        return "a super user"
    if decision.rule is not None:
        return f"the ACL {_text(decision.rule)}"
    if decision.allowed:
        return "no ACL names the resource, and allow.everyone.if.no.acl.found is true"
    return "no ACL allows it"


def _text(acl: Acl) -> str:
    return (
        f"{acl.resource_type.name} {acl.pattern_type.name} {acl.name} {acl.principal} {acl.host}"
        f" {acl.operation.name} {acl.permission.name}"
    )
