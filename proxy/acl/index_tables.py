"""Tables of an ACL index, and their update to the next version.

Laws: published tables are never changed; changed parts are copied first, and the rest is shared by
both versions. The cost of a change is that of the parts that it touches, and of copying a few long
lists.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, TypeVar

from proxy.acl.hosts import BlockShape, HostKey, acl_host_key, block_shape
from proxy.acl.listing import changed, grouped_by_principal, with_pattern
from proxy.acl.model import Acl, Operation, Permission, ResourceType
from proxy.acl.patterns import Patterns
from sasl.identity import GROUP_TYPE

Holder = tuple[str, HostKey]
"""Principal and the key of a host, as ACLs name them."""
Rule = tuple[Acl, int]
"""ACL, and the number of ACLs that differ from it only in the spelling of the host, itself
included."""
Rules = dict[int, Patterns[Rule]]
"""Rules of one holder: patterns by `rule_code`, none of them empty."""
Holders = Patterns[Set[Holder]]
"""Holders of the rules for groups that have one `rule_code`, by pattern."""

_OPERATION_BITS: Final = 4
_PERMISSION_BITS: Final = 2


def rule_code(resource_type: ResourceType, permission: Permission, operation: Operation) -> int:
    """Return one number for the three: as keys, Python's enumeration members are slow."""
    return (resource_type << _PERMISSION_BITS | permission) << _OPERATION_BITS | operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of an index."""

    acls: Sequence[Acl] = ()
    """All ACLs, sorted."""
    of_principal: Mapping[str, Sequence[Acl]] = field(default_factory=dict)
    """ACLs by principal, each list sorted."""
    rules: Mapping[Holder, Rules] = field(default_factory=dict)
    """Rules by holder, for decisions."""
    groups: Mapping[int, Holders] = field(default_factory=dict)
    """Holders of the rules for groups, by `rule_code`."""
    named: Mapping[int, Patterns[int]] | None = None
    """Number of ACLs per pattern, for all principals, by resource type; None without
    `allow.everyone.if.no.acl.found`, which alone needs it."""
    shapes: Counter[BlockShape] = field(default_factory=Counter)
    """Number of ACLs whose host is a block, by its shape."""


def build(acls: list[Acl], *, with_named: bool) -> Tables:
    """Return the tables of sorted ACLs."""
    draft = _Draft(Tables(named={} if with_named else None), acls)
    for acl in acls:
        draft.add(acl)
    return draft.publish(grouped_by_principal(acls))


def rebuild(base: Tables, *, created: Collection[Acl], deleted: Collection[Acl]) -> Tables:
    """Return the tables after a few changes; all of `deleted` exist, and none of `created`."""
    draft = _Draft(base, changed(base.acls, created, deleted))
    for acl in deleted:
        draft.remove(acl)
    for acl in created:
        draft.add(acl)
    return draft.publish(_regrouped(base.of_principal, created, deleted))


def _regrouped(
    base: Mapping[str, Sequence[Acl]], created: Collection[Acl], deleted: Collection[Acl]
) -> dict[str, Sequence[Acl]]:
    made = dict(base)
    new, old = grouped_by_principal(created), grouped_by_principal(deleted)
    for principal in {*new, *old}:
        left = changed(made.get(principal, ()), new.get(principal, ()), old.get(principal, ()))
        if left:
            made[principal] = left
        else:
            del made[principal]
    return made


_V = TypeVar("_V")


class _Draft:
    """Mutable copy of tables."""

    def __init__(self, base: Tables, acls: Sequence[Acl]) -> None:
        self._acls = acls
        self._rules = dict(base.rules)
        self._groups = dict(base.groups)
        self._named = None if base.named is None else dict(base.named)
        self._shapes = base.shapes.copy()
        self._own: set[int] = set()
        """Identities of the objects that were created here, and so may be changed."""
        self._alone: dict[Holder, Set[Holder]] = {}
        """Sets of one holder each, which all patterns share that only this one holds."""

    def publish(self, of_principal: Mapping[str, Sequence[Acl]]) -> Tables:
        """Return the tables; the draft must not be used again."""
        return Tables(
            acls=self._acls,
            of_principal=of_principal,
            rules=self._rules,
            groups=self._groups,
            named=self._named,
            shapes=+self._shapes,
        )

    def add(self, acl: Acl) -> None:
        """Add an ACL that does not exist yet."""
        if self._named is not None:
            self._count_name(self._named, acl, 1)
        key = acl_host_key(acl.host)
        if key is None:
            return
        holder = acl.principal, key
        patterns = self._own_patterns(self._own_rules(holder), _code(acl))
        rule, count = patterns.get(acl.pattern_type, acl.name) or (acl, 0)
        patterns.put(acl.pattern_type, acl.name, (rule, count + 1))
        if not count and acl.principal.startswith(GROUP_TYPE):
            self._add_holder(acl, holder)
        if (shape := block_shape(key)) is not None:
            self._shapes[shape] += 1

    def remove(self, acl: Acl) -> None:
        """Remove an existing ACL, which is no longer in `acls`."""
        if self._named is not None:
            self._count_name(self._named, acl, -1)
        if (key := acl_host_key(acl.host)) is not None:
            self._remove_rule(acl, key)
            if (shape := block_shape(key)) is not None:
                self._shapes[shape] -= 1

    def _count_name(self, named: dict[int, Patterns[int]], acl: Acl, by: int) -> None:
        patterns = self._own_patterns(named, acl.resource_type.value)
        count = (patterns.get(acl.pattern_type, acl.name) or 0) + by
        if count:
            patterns.put(acl.pattern_type, acl.name, count)
            return
        patterns.remove(acl.pattern_type, acl.name)
        if not patterns:
            del named[acl.resource_type.value]

    def _remove_rule(self, acl: Acl, key: HostKey) -> None:
        holder, code = (acl.principal, key), _code(acl)
        rules = self._own_rules(holder)
        patterns = self._own_patterns(rules, code)
        rule, count = patterns.get(acl.pattern_type, acl.name) or (acl, 1)
        if count > 1:
            rule_left = self._equivalent(acl, key) if rule == acl else rule
            patterns.put(acl.pattern_type, acl.name, (rule_left, count - 1))
            return
        patterns.remove(acl.pattern_type, acl.name)
        if acl.principal.startswith(GROUP_TYPE):
            self._remove_holder(acl, holder)
        if not patterns:
            del rules[code]
            if not rules:
                del self._rules[holder]

    def _add_holder(self, acl: Acl, holder: Holder) -> None:
        patterns = self._own_patterns(self._groups, _code(acl))
        if patterns.get(acl.pattern_type, acl.name) is None:
            alone = self._alone.setdefault(holder, frozenset((holder,)))
            patterns.put(acl.pattern_type, acl.name, alone)
        else:
            self._own_holders(patterns, acl).add(holder)

    def _remove_holder(self, acl: Acl, holder: Holder) -> None:
        code = _code(acl)
        patterns = self._own_patterns(self._groups, code)
        left = self._own_holders(patterns, acl)
        left.remove(holder)
        if not left:
            patterns.remove(acl.pattern_type, acl.name)
            if not patterns:
                del self._groups[code]

    def _own_holders(self, patterns: Holders, acl: Acl) -> set[Holder]:
        holders = patterns.get(acl.pattern_type, acl.name)
        if isinstance(holders, set) and id(holders) in self._own:
            return holders
        made = set(holders or ())
        patterns.put(acl.pattern_type, acl.name, made)
        self._own.add(id(made))
        return made

    def _equivalent(self, acl: Acl, key: HostKey) -> Acl:
        """Return another ACL that differs only in the spelling of the host."""
        code = _code(acl)
        for one in with_pattern(self._acls, acl):
            same = one.principal == acl.principal and _code(one) == code
            if same and acl_host_key(one.host) == key:
                return one
        return acl  # with several deletions, the count is right only after the last

    def _own_rules(self, holder: Holder) -> Rules:
        rules = self._rules.get(holder)
        if rules is not None and id(rules) in self._own:
            return rules
        rules = self._rules[holder] = {} if rules is None else rules.copy()
        self._own.add(id(rules))
        return rules

    def _own_patterns(self, patterns_of: dict[int, Patterns[_V]], key: int) -> Patterns[_V]:
        patterns = patterns_of.get(key)
        if patterns is not None and id(patterns) in self._own:
            return patterns
        patterns = patterns_of[key] = Patterns() if patterns is None else patterns.copy()
        self._own.add(id(patterns))
        return patterns


def _code(acl: Acl) -> int:
    return rule_code(acl.resource_type, acl.permission, acl.operation)
