"""Search of many filters at once: those that look in the same place share a pass.

Filters that look in the same place (a principal's ACLs or all, of a resource type or any, with a
name or any) share one pass over the ACLs there, which are found by their order. In the pass they
lie in tables under the other parts that they give, so an ACL asks each table once.

The time depends on the ACLs, on the number of places, and on what is found. Places overlap only
where names are matched: each MATCH filter looks at the wildcard's ACLs, and at its prefixes'.

All in small steps, which others may run between.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from proxy.acl import listing
from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission
from proxy.scheduling.steps import MASK, Steps, finish

Found = Sequence[Acl]
"""ACLs that a filter matches, sorted."""

_PATTERN_TYPES_OF_ACLS: Final = (PatternType.LITERAL, PatternType.PREFIXED)


def find_each(index: AclIndex, filters: Sequence[AclFilter], most: int) -> list[Found]:
    """Return what each filter finds; `filters` are valid, and each is there once.

    The list ends before the first filter with which it would hold more than `most` ACLs.
    """
    return finish(find_in_steps(index, filters, most))


def find_in_steps(index: AclIndex, filters: Sequence[AclFilter], most: int) -> Steps[list[Found]]:
    """Return what `find_each` does, in steps."""
    groups: dict[object, list[int]] = {}
    for number, wanted in enumerate(filters):
        groups.setdefault(_place(wanted), []).append(number)
        if not number & MASK:
            yield
    results = _Results(len(filters), most)
    for numbers in groups.values():
        yield
        one = filters[numbers[0]]
        acls = index.held_by(one.principal)
        if acls:
            tables = yield from _tables(filters, numbers)
            for start, end in listing.ranges(acls, one):
                yield from _pass(acls, range(start, end), tables, results)
    return results.in_order()


def _place(wanted: AclFilter) -> object:
    """Return the parts that say where to look: `listing.ranges` is the same for all with them."""
    is_match = wanted.name is not None and wanted.pattern_type is PatternType.MATCH
    return wanted.principal, wanted.resource_type, wanted.name, is_match


_Table = tuple[Callable[[Any], Any], dict[Any, list[int]]]
"""Function that returns some parts of an ACL, and the filters by these parts."""


def _tables(filters: Sequence[AclFilter], numbers: Iterable[int]) -> Steps[list[_Table]]:
    """Return tables of those of the filters that have these numbers."""
    tables: dict[tuple[str, ...], _Table] = {}
    for number in numbers:
        if not number & MASK:
            yield
        parts = _given(filters[number])
        if parts not in tables:
            tables[parts] = (attrgetter(*parts) if parts else lambda _: (), {})
        parts_of, table = tables[parts]
        table.setdefault(parts_of(filters[number]), []).append(number)
    return [*tables.values()]


def _given(wanted: AclFilter) -> tuple[str, ...]:
    """Return which parts, but for those of the place, an ACL must have as the filter gives them."""
    named = (
        ("pattern_type", wanted.pattern_type in _PATTERN_TYPES_OF_ACLS),
        ("host", wanted.host is not None),
        ("operation", wanted.operation is not Operation.ANY),
        ("permission", wanted.permission is not Permission.ANY),
    )
    return tuple(name for name, is_given in named if is_given)


def _pass(
    acls: Sequence[Acl], places: Iterable[int], tables: Sequence[_Table], results: "_Results"
) -> Steps[None]:
    """Find what the filters in the tables find in these places."""
    picked = 0
    for place in places:
        if not place & MASK:
            yield
        acl = acls[place]
        for parts_of, table in tables:
            for number in table.get(parts_of(acl), ()):
                results.pick(number, acls, place)
                picked += 1
                if not picked & MASK:
                    yield


class _Results:
    """Results so far, and their size. The last filters are given up when it is too much."""

    def __init__(self, count: int, most: int) -> None:
        self._found: list[Found] = [()] * count
        self._left = most
        self._end = count
        """Filters from here on are given up."""

    def pick(self, number: int, acls: Sequence[Acl], place: int) -> None:
        """Take one more of these that a filter finds."""
        if number < self._end:
            found = self._found[number]
            if not isinstance(found, _Picked):
                found = self._found[number] = _Picked(acls)
            found.places.append(place)
            self._left -= 1
            while self._left < 0:
                self._end -= 1
                self._left += len(self._found[self._end])
                self._found[self._end] = ()

    def in_order(self) -> list[Found]:
        """Return what each filter finds."""
        return self._found[: self._end]


@dataclass(frozen=True, slots=True)
class _Picked(Sequence[Acl]):
    """Some of a list, by their places in it: four bytes each."""

    acls: Sequence[Acl]
    places: "array[int]" = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Acl]:
        return map(self.acls.__getitem__, self.places)

    def __getitem__(self, at: Any) -> Any:
        return self.acls[self.places[at]]
