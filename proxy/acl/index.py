"""Index of all ACLs of one version, with decisions of constant cost up to 100,000 ACLs.

Semantics are those of Kafka's `StandardAuthorizer`: super users may do everything; one applicable
DENY outweighs every ALLOW; an ALLOW for READ, WRITE, DELETE or ALTER includes DESCRIBE, and an
ALLOW for ALTER_CONFIGS includes DESCRIBE_CONFIGS (a DENY does not); everyone may access a resource
without ACLs only with `allow.everyone.if.no.acl.found`. `proxy.acl.matching` documents how hosts
are compared.

A client that is a member of groups has several principals (KIP-257). ACLs for its groups count as
if they named the client itself, and it is a super user if any of its principals is one.

Structure: rules are stored per holder, which is a principal and a host. Each holder has patterns by
resource type, permission and operation. A client without groups has a handful of holders, whose
rules are collected once (`_Client`). For a client with many groups, and so many holders, the search
is reversed: one look-up finds all holders of a rule whose pattern matches the name, and the result
is compared with the client's holders (`_GroupRules`).

An index is immutable, and shares its unchanged parts with the next version. Any thread may use it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Final, NamedTuple

from proxy.acl import index_tables
from proxy.acl.matching import Patterns, client_host_keys
from proxy.acl.model import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    Permission,
    ResourceType,
)
from sasl.identity import GROUP_TYPE

_Codes = Mapping[int, tuple[int, ...]]
"""Codes of the rules that apply to a check, keyed by `_question`."""

_REBUILD_BELOW: Final = 8
"""Number of ACLs per change below which building a new index is faster than updating the old
one."""
_ANY_NAME: Final = "hardcode"
"""Name that Kafka's `Authorizer.authorizeByResourceType` tries first."""
_MAX_CLIENTS: Final = 4096
"""Maximum number of clients whose rules are collected; beyond it, all are dropped."""
_MAX_ANSWERS: Final = 4096
"""Maximum number of cached results of `decide_any`, each of which may require all rules of a
principal."""
_SEPARATELY: Final = 4
"""Maximum number of groups for which searching one group after the other is faster."""
_IMPLYING: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Operations whose ALLOW includes another operation, keyed by the included one."""


def _question(operation: Operation, resource_type: ResourceType) -> int:
    return resource_type << 4 | operation


def _codes(permission: Permission, implying: Mapping[Operation, tuple[Operation, ...]]) -> _Codes:
    return {
        _question(operation, resource_type): tuple(
            index_tables.rule_code(resource_type, permission, one)
            for one in (operation, Operation.ALL, *implying.get(operation, ()))
        )
        for resource_type in ResourceType
        for operation in Operation
    }


_DENYING: Final = _codes(Permission.DENY, {})
_ALLOWING: Final = _codes(Permission.ALLOW, _IMPLYING)
_ALLOWING_EXACTLY: Final = _codes(Permission.ALLOW, {})


class Decision(NamedTuple):
    """Result of a check, with the reason. A tuple, because creating a dataclass takes longer."""

    allowed: bool
    rule: Acl | None = None
    """ACL that decided; None for super users and for the default."""
    super_user: bool = False


_SUPER_USER: Final = Decision(allowed=True, super_user=True)
_ALLOWED_BY_DEFAULT: Final = Decision(allowed=True)
DENIED_BY_DEFAULT: Final = Decision(allowed=False)


_PatternsOfRules = Patterns[index_tables.Rule]
_RulesOfHolders = Mapping[index_tables.Holder, index_tables.Rules]


class _GroupRules:
    """Rules with one code for the groups of a client, found by the name of the resource."""

    __slots__ = ("_code", "_everything", "_literals", "_mine", "_prefixes", "_rules")

    def __init__(
        self,
        code: int,
        holders: index_tables.Holders,
        mine: frozenset[index_tables.Holder],
        rules: _RulesOfHolders,
    ) -> None:
        """`holders` has the holders of all rules with this code; `mine` and `rules` are the
        client's own."""
        self._code = code
        self._literals = holders.literals
        self._prefixes = holders.prefixes
        self._mine = mine
        self._rules = rules
        everything = holders.literals.get(WILDCARD, frozenset())
        self._everything = None if mine.isdisjoint(everything) else self._first(everything)

    def find(self, name: str) -> index_tables.Rule | None:
        """Return a rule whose pattern matches this name; None if no pattern matches."""
        if self._everything is not None:
            return self._everything.find(name)
        mine = self._mine
        holders = self._literals.get(name)
        if holders is not None and not mine.isdisjoint(holders):
            return self._first(holders).find(name)
        if self._prefixes is not None:
            for holders in self._prefixes.find_all(name):
                if not mine.isdisjoint(holders):
                    return self._first(holders).find(name)
        return None

    def _first(self, holders: Set[index_tables.Holder]) -> _PatternsOfRules:
        """Return the rules of the first of the client's groups that is among the holders."""
        if len(holders) == 1:
            (first,) = holders
        else:
            first = next(one for one in self._rules if one in holders)
        return self._rules[first][self._code]


_NamedRules = _PatternsOfRules | _GroupRules


class _Client:
    """Rules for one set of principals at one address, collected when they are needed."""

    __slots__ = (
        "_allowing",
        "_denying",
        "_groups",
        "_holders",
        "_mine",
        "_own",
        "identity",
        "is_super",
    )

    def __init__(
        self,
        own: Mapping[index_tables.Holder, index_tables.Rules],
        groups: _RulesOfHolders,
        holders: Mapping[int, index_tables.Holders],
        *,
        is_super: bool,
    ) -> None:
        """Take the rules for the client itself, those for its groups, and the holders of all group
        rules."""
        self._own = list(own.values())
        self._groups = groups
        self._mine = frozenset(groups)
        self._holders = holders
        self.is_super = is_super
        """True if any of its principals is a super user."""
        self.identity = (is_super, *own, *groups)
        """Key of its permissions: clients with equal keys have the same ones, with the ACLs of one
        index."""
        self._denying: dict[int, list[_NamedRules]] = {}
        self._allowing: dict[int, list[_NamedRules]] = {}

    def denying(self, question: int) -> list[_NamedRules]:
        """Return the rules that deny the operation of `question`."""
        found = self._denying.get(question)
        if found is None:
            found = self._denying[question] = self._named(_DENYING[question])
        return found

    def allowing(self, question: int) -> list[_NamedRules]:
        """Return the rules that allow the operation of `question`."""
        found = self._allowing.get(question)
        if found is None:
            found = self._allowing[question] = self._named(_ALLOWING[question])
        return found

    def patterns(self, codes: Iterable[int]) -> list[_PatternsOfRules]:
        """Return the patterns of all rules with these codes."""
        rules = [*self._own, *self._groups.values()]
        return [found for code in codes for found in _with_code(rules, code)]

    def _named(self, codes: Iterable[int]) -> list[_NamedRules]:
        """Return the rules to search for a name; for groups, in the form that needs fewer
        look-ups."""
        found: list[_NamedRules] = []
        for code in codes:
            found += _with_code(self._own, code)
            holders = self._holders.get(code)
            if holders is None or not self._groups:
                continue
            depth = 0 if holders.prefixes is None else holders.prefixes.depth()
            if len(self._groups) <= _SEPARATELY + depth:
                found += _with_code(self._groups.values(), code)
            else:
                found.append(_GroupRules(code, holders, self._mine, self._groups))
        return found


class AclIndex:
    """Immutable snapshot of all ACLs, with decisions and queries."""

    __slots__ = (
        "_allow_everyone",
        "_any_answers",
        "_clients",
        "_shapes",
        "_super_users",
        "_tables",
        "version",
    )

    def __init__(
        self,
        acls: Iterable[Acl],
        *,
        allow_everyone_if_no_acl_found: bool = False,
        super_users: frozenset[str] = frozenset(),
        version: int,
    ) -> None:
        """Build the index. This is fastest if the ACLs are sorted."""
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._super_users = super_users
        self._publish(self._built(acls), version)

    def _built(self, acls: Iterable[Acl]) -> index_tables.Tables:
        return index_tables.build(index_tables.in_order(acls), with_named=self._allow_everyone)

    def _publish(self, tables: index_tables.Tables, version: int) -> None:
        self.version = version
        self._tables = tables
        self._shapes = frozenset(tables.shapes)
        self._any_answers: dict[tuple[tuple[str, ...], str, int], Decision] = {}
        self._clients: dict[tuple[tuple[str, ...], str], _Client] = {}

    def with_changes(
        self, *, created: Iterable[Acl] = (), deleted: Iterable[Acl] = (), version: int
    ) -> "AclIndex":
        """Return the index after the deletions, then the creations.

        Deleting a missing ACL, or creating an existing one, changes nothing.
        """
        new = frozenset(created)
        added = [acl for acl in new if acl not in self]
        removed = [acl for acl in frozenset(deleted) - new if acl in self]
        if (len(added) + len(removed)) * _REBUILD_BELOW > len(self):
            without = frozenset(removed)
            left = (acl for acl in self._tables.acls if acl not in without)
            tables = self._built(chain(left, added))
        else:
            tables = index_tables.rebuild(self._tables, created=added, deleted=removed)
        return self._with(tables, version, self._super_users)

    def with_super_users(self, super_users: frozenset[str]) -> "AclIndex":
        """Return the same ACLs with other super users, after a reload of the configuration."""
        return self._with(self._tables, self.version, super_users)

    def _with(
        self, tables: index_tables.Tables, version: int, super_users: frozenset[str]
    ) -> "AclIndex":
        index: AclIndex = AclIndex.__new__(AclIndex)
        index._allow_everyone = self._allow_everyone
        index._super_users = super_users
        index._publish(tables, version)
        return index

    def __len__(self) -> int:
        return len(self._tables.acls)

    def __contains__(self, acl: Acl) -> bool:
        return index_tables.position(self._tables.acls, acl)[1]

    def decide(
        self,
        principals: tuple[str, ...],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """Decide whether a client with these principals, at an address, may do this operation on
        the named resource."""
        client = self._clients.get((principals, host)) or self._client(principals, host)
        if client.is_super:
            return _SUPER_USER
        question = resource_type << 4 | operation  # `_question`, inlined
        for patterns in client.denying(question):
            if (found := patterns.find(name)) is not None:
                return Decision(False, found[0])
        for patterns in client.allowing(question):
            if (found := patterns.find(name)) is not None:
                return Decision(True, found[0])
        if self._tables.named is not None:
            named = self._tables.named.get(resource_type.value)
            if named is None or named.find(name) is None:
                return _ALLOWED_BY_DEFAULT
        return DENIED_BY_DEFAULT

    def decide_each(
        self,
        principals: tuple[str, ...],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        names: Sequence[str],
    ) -> list[bool]:
        """Return whether `decide` would allow the operation, for many names at once."""
        client, question = self._client(principals, host), _question(operation, resource_type)
        if client.is_super:
            return [True] * len(names)
        denying = bool(client.denying(question))
        allowing = [patterns.find for patterns in client.allowing(question)]
        open_to_all = self._tables.named is not None
        decided = []
        for name in names:
            allowed = False
            for find in allowing:
                if find(name) is not None:
                    allowed = True
                    break
            if denying if allowed else open_to_all:
                allowed = self.decide(principals, host, operation, resource_type, name).allowed
            decided.append(allowed)
        return decided

    def rights_of(self, principals: tuple[str, ...], host: str) -> Hashable:
        """Return a key of the client's rules: clients with equal keys have the same permissions."""
        return self._client(principals, host).identity

    def decide_any(
        self,
        principals: tuple[str, ...],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
    ) -> Decision:
        """Decide whether the operation is allowed on any resource of the type.

        As in Kafka's `Authorizer.authorizeByResourceType`, patterns are compared with patterns. A
        DENY counts only if it covers every name of an allowed pattern, and implied operations are
        ignored, except for one unlikely name.
        """
        key = (principals, host, _question(operation, resource_type))
        answer = self._any_answers.get(key)
        if answer is None:
            answer = self.decide(principals, host, operation, resource_type, _ANY_NAME)
            if not answer.allowed:
                answer = self._decide_by_patterns(self._client(principals, host), key[2])
            if len(self._any_answers) >= _MAX_ANSWERS:
                self._any_answers.clear()
            self._any_answers[key] = answer
        return answer

    def decide_every(
        self,
        principals: tuple[str, ...],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
    ) -> Decision:
        """Decide whether the operation is allowed on every resource whose name has this prefix,
        existing or not.

        An allowed result is certain. After a denied result, each single name may still be allowed:
        by several patterns together, or because some of the names have no ACL.
        """
        client, question = self._client(principals, host), _question(operation, resource_type)
        if client.is_super:
            return _SUPER_USER
        for patterns in client.patterns(_DENYING[question]):
            if (found := patterns.find_for_any(name_prefix)) is not None:
                return Decision(False, found[0])
        for patterns in client.patterns(_ALLOWING[question]):
            if (found := patterns.find_for_all(name_prefix)) is not None:
                return Decision(True, found[0])
        if self._tables.named is not None:
            named = self._tables.named.get(resource_type.value)
            if named is None or named.find_for_any(name_prefix) is None:
                return _ALLOWED_BY_DEFAULT
        return DENIED_BY_DEFAULT

    def matching(self, wanted: AclFilter) -> Iterator[Acl]:
        """Yield the ACLs that a filter matches, sorted, from this snapshot."""
        acls: Sequence[Acl] = self._tables.acls
        if wanted.principal is not None:
            acls = self._tables.of_principal.get(wanted.principal, ())
        return chain.from_iterable(index_tables.chunks(acls, wanted))

    def _client(self, principals: tuple[str, ...], host: str) -> _Client:
        """Return the rules for these principals or for every principal, at this address."""
        client = self._clients.get((principals, host))
        if client is None:
            if len(self._clients) >= _MAX_CLIENTS:
                self._clients.clear()
            keys = client_host_keys(host, self._shapes)
            own: dict[index_tables.Holder, index_tables.Rules] = {}
            groups: dict[index_tables.Holder, index_tables.Rules] = {}
            for principal in (*principals, WILDCARD_PRINCIPAL):
                for key in keys:
                    if (found := self._tables.rules.get((principal, key))) is None:
                        continue
                    if principal.startswith(GROUP_TYPE):
                        groups[principal, key] = found
                    else:
                        own[principal, key] = found
            client = self._clients[principals, host] = _Client(
                own,
                groups,
                self._tables.groups,
                is_super=not self._super_users.isdisjoint(principals),
            )
        return client

    def _decide_by_patterns(self, client: _Client, question: int) -> Decision:
        denied = client.patterns(_DENYING[question])
        for patterns in denied:
            if (found := patterns.literals.get(WILDCARD)) is not None:
                return Decision(False, found[0])
        for patterns in client.patterns(_ALLOWING_EXACTLY[question]):
            if (rule := _not_denied(patterns, denied)) is not None:
                return Decision(True, rule)
        return DENIED_BY_DEFAULT


def _with_code(rules: Iterable[index_tables.Rules], code: int) -> list[_PatternsOfRules]:
    return [patterns for one in rules if (patterns := one.get(code)) is not None]


def _not_denied(allowed: _PatternsOfRules, denied: list[_PatternsOfRules]) -> Acl | None:
    """Return an allowed pattern that no denied one covers.

    Of nested prefixes only the shortest is checked: a pattern that covers it covers the others.
    Only a denied wildcard covers the wildcard, and the caller has checked that.
    """
    for name, (rule, _) in allowed.literals.items():
        if name == WILDCARD or not any(one.covers_literal(name) for one in denied):
            return rule
    if allowed.prefixes is not None:
        for prefix in allowed.prefixes.shortest():
            if not any(one.covers_prefix(prefix) for one in denied):
                found = allowed.prefixes.get(prefix)
                return found and found[0]
    return None
