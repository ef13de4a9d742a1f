"""Sorted lists of ACLs: changes, and selection by filters.

A list is never changed in place: a generator continues on the list with which it began.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from operator import attrgetter, lt
from typing import Any, Final

from proxy.acl.model import WILDCARD, Acl, AclFilter, PatternType, ResourceType
from proxy.scheduling.stepped_thread import pause

AclKey = tuple[Any, ...]
"""First fields of an ACL, which sort it."""
_sort_key = attrgetter(*Acl.__dataclass_fields__)
_pattern_key = attrgetter("resource_type", "pattern_type", "name")
_KEYS: Final[dict[int, Callable[[Acl], AclKey]]] = {
    1: lambda acl: (acl.resource_type,),
    2: attrgetter("resource_type", "pattern_type"),
    3: _pattern_key,
}
"""Functions that return the first fields of an ACL, by their number."""
_CHUNK: Final = 100
"""Number of ACLs between two pauses, about a tenth of a millisecond."""
_RESOURCE_TYPES: Final = [one for one in ResourceType if one > ResourceType.ANY]


def in_order(acls: Iterable[Acl]) -> list[Acl]:
    """Return the ACLs sorted, without duplicates; fast if they are sorted already."""
    given = list(acls)
    keys: list[AclKey] = list(map(_sort_key, given))
    if all(map(lt, keys, islice(keys, 1, None))):
        return given
    by_key = dict(zip(keys, given, strict=True))
    return [by_key[key] for key in sorted(by_key)]


def position(acls: Sequence[Acl], acl: Acl) -> tuple[int, bool]:
    """Return the position of an ACL, or where it would be inserted, and whether it exists."""
    at = bisect_left(acls, _sort_key(acl), key=_sort_key)
    return at, at < len(acls) and acls[at] == acl


def changed(acls: Sequence[Acl], created: Iterable[Acl], deleted: Iterable[Acl]) -> list[Acl]:
    """Return the list after a few changes; all of `deleted` exist, and none of `created`."""
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
    """Yield the ACLs that the filter matches, sorted, with pauses; some lists may be empty."""
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

    Each step looks at the greatest prefix that is not greater than the rest of the name: either it
    is a prefix of the name, or no longer one exists than their common prefix.
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
    """Return the ACLs by principal, in the same order."""
    groups: dict[str, list[Acl]] = {}
    for acl in acls:
        groups.setdefault(acl.principal, []).append(acl)
    return groups
