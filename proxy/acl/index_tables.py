"""Tables of an ACL index, and their update to the next version.

Rules: published tables are never changed; changed parts are copied first, and both versions share
the rest. A change costs as much as the parts that it touches, plus the copies of a few long lists.
A sorted list of ACLs is never changed in place, so a generator can continue on the list with which
it began.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import attrgetter, lt
from typing import Any, Final, TypeVar

from proxy.acl.matching import BlockShape, HostKey, Patterns, acl_host_key, block_shape
from proxy.acl.model import (
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.scheduling.steps import pause
from sasl.identity import GROUP_TYPE

AclKey = tuple[Any, ...]
"""First fields of an ACL, in sort order."""
_sort_key = attrgetter(*Acl.__dataclass_fields__)
_pattern_key = attrgetter("resource_type", "pattern_type", "name")
_KEYS: Final[dict[int, Callable[[Acl], AclKey]]] = {
    1: lambda acl: (acl.resource_type,),
    2: attrgetter("resource_type", "pattern_type"),
    3: _pattern_key,
}
"""Functions that return the first fields of an ACL, by the number of fields."""
_CHUNK: Final = 100
"""Number of ACLs between two pauses, about a tenth of a millisecond."""
_RESOURCE_TYPES: Final = [one for one in ResourceType if one > ResourceType.ANY]


def in_order(acls: Iterable[Acl]) -> list[Acl]:
    """Return the ACLs sorted, without duplicates. This is fast if they are already sorted."""
    given = list(acls)
    keys: list[AclKey] = list(map(_sort_key, given))
    if all(map(lt, keys, islice(keys, 1, None))):
        return given
    by_key = dict(zip(keys, given, strict=True))
    return [by_key[key] for key in sorted(by_key)]


def position(acls: Sequence[Acl], acl: Acl) -> tuple[int, bool]:
    """Return the position of an ACL, or its insertion point, and whether it exists."""
    at = bisect_left(acls, _sort_key(acl), key=_sort_key)
    return at, at < len(acls) and acls[at] == acl


def changed(acls: Sequence[Acl], created: Iterable[Acl], deleted: Iterable[Acl]) -> list[Acl]:
    """Return the list after a few changes. All of `deleted` must exist, and `created` must be
    new."""
    new = {_sort_key(acl): acl for acl in created}
    old = {_sort_key(acl) for acl in deleted}
    made: list[Acl] = []
    at = 0
    for key in sorted(new.keys() | old):
        place = bisect_left(acls, key, at, key=_sort_key)
        made += acls[at:place]
        at = place
        if key in old:
            at += 1
        else:
            made.append(new[key])
    made += acls[at:]
    return made


def with_pattern(acls: Sequence[Acl], acl: Acl) -> Iterator[Acl]:
    """Yield the ACLs with the same resource pattern as this one."""
    start, end = _range(acls, (acl.resource_type, acl.pattern_type, acl.name))
    return islice(acls, start, end)


def chunks(acls: Sequence[Acl], wanted: AclFilter) -> Iterator[list[Acl]]:
    """Yield lists of the ACLs that the filter matches, sorted, with pauses. Lists may be empty."""
    for start, end in ranges(acls, wanted):
        for at in range(start, end, _CHUNK):
            pause()
            yield [acl for acl in acls[at : min(at + _CHUNK, end)] if wanted.matches(acl)]


def ranges(acls: Sequence[Acl], wanted: AclFilter) -> Iterator[tuple[int, int]]:
    """Yield the ranges that can hold matches of the filter, in order and without overlap."""
    if wanted.resource_type is ResourceType.ANY:
        if wanted.name is None:
            yield 0, len(acls)
            return
        resource_types = _RESOURCE_TYPES
    else:
        resource_types = [wanted.resource_type]
    for resource_type in resource_types:
        if wanted.name is None:
            yield _range(acls, (resource_type,))
        elif wanted.pattern_type is PatternType.MATCH:
            yield from _matching_ranges(acls, resource_type, wanted.name)
        else:
            for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
                yield _range(acls, (resource_type, pattern_type, wanted.name))


def _matching_ranges(
    acls: Sequence[Acl], resource_type: ResourceType, name: str
) -> Iterator[tuple[int, int]]:
    for literal in sorted({WILDCARD, name}):
        yield _range(acls, (resource_type, PatternType.LITERAL, literal))
    yield from reversed([*_prefix_ranges(acls, resource_type, name)])


def _prefix_ranges(
    acls: Sequence[Acl], resource_type: ResourceType, name: str
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the prefixes of a name, the longest first.

    Each step finds the greatest prefix that is not greater than the rest of the name. If it is not
    a prefix of the name, no prefix is longer than the common prefix of the two.
    """
    prefixed = resource_type, PatternType.PREFIXED
    first, end = _range(acls, prefixed)
    while first < end:
        end = bisect_right(acls, (*prefixed, name), first, end, key=_pattern_key)
        if end == first:
            return
        found = acls[end - 1].name
        if not name.startswith(found):
            name = _common_prefix(name, found)
            continue
        start = bisect_left(acls, (*prefixed, found), first, end, key=_pattern_key)
        yield start, end
        end = start


def _common_prefix(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)]


def _range(acls: Sequence[Acl], partial_key: AclKey) -> tuple[int, int]:
    """Return the range of the ACLs whose first fields are these."""
    key = _KEYS[len(partial_key)]
    start = bisect_left(acls, partial_key, key=key)
    return start, bisect_right(acls, partial_key, start, key=key)


def grouped_by_principal(acls: Iterable[Acl]) -> dict[str, list[Acl]]:
    """Return the ACLs by principal, each list in the same order."""
    groups: dict[str, list[Acl]] = {}
    for acl in acls:
        groups.setdefault(acl.principal, []).append(acl)
    return groups


Holder = tuple[str, HostKey]
"""Principal and the key of a host, as ACLs name them."""
Rule = tuple[Acl, int]
"""ACL, and the number of ACLs that are equal except for the spelling of the host, including this
one."""
Rules = dict[int, Patterns[Rule]]
"""Rules of one holder: patterns by `rule_code`, without empty ones."""
Holders = Patterns[Set[Holder]]
"""Holders of the rules for groups that have one `rule_code`, by pattern."""

_OPERATION_BITS: Final = 4
_PERMISSION_BITS: Final = 2


def rule_code(resource_type: ResourceType, permission: Permission, operation: Operation) -> int:
    """Return one number for the three values: Python's enumeration members are slow as keys."""
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
    `allow.everyone.if.no.acl.found`."""
    shapes: Counter[BlockShape] = field(default_factory=Counter)
    """Number of ACLs whose host is a block, by its shape."""


def build(acls: list[Acl], *, with_named: bool) -> Tables:
    """Return the tables of sorted ACLs."""
    draft = _Draft(Tables(named={} if with_named else None), acls)
    for acl in acls:
        draft.add(acl)
    return draft.publish(grouped_by_principal(acls))


def rebuild(base: Tables, *, created: Collection[Acl], deleted: Collection[Acl]) -> Tables:
    """Return the tables after a few changes. All of `deleted` must exist, and `created` must be
    new."""
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
        """Identities of the objects that this draft created and may change."""
        self._alone: dict[Holder, Set[Holder]] = {}
        """Sets of one holder, shared by all patterns with no other holder."""

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
