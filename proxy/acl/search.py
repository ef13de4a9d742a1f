"""Search of many filters at once in one pass over the ACLs.

Filters of one principal search its ACLs, filters without a principal search all. For each of these
lists:

A single filter, or a few narrow ones, are looked up by the order of the list, as long as that
visits fewer ACLs than the list has. Otherwise the list is read once: filters with the same fields
share a table keyed by the values of these fields, so each ACL is looked up once per table, however
many filters are in it.

So each ACL is visited twice at most, and the time depends on the number of ACLs, on the kinds of
filters (there are 80), and on the matches, but not on filters times ACLs.

Everything runs in small steps, between which other work can run: no large sort, no large copy.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

from proxy.acl import listing
from proxy.acl.index import AclIndex
from proxy.acl.model import (
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.scheduling.steps import MASK, Steps, finish

Found = Sequence[Acl]
"""ACLs that a filter matches, sorted."""

_LOOKUP: Final = 32
"""Cost of looking up a filter, in number of ACLs visited in the same time."""
_RUN: Final = 200
"""Number of names that are sorted at once."""
_PATTERN_TYPES_OF_ACLS: Final = (PatternType.LITERAL, PatternType.PREFIXED)


def find_each(index: AclIndex, filters: Sequence[AclFilter], most: int) -> list[Found]:
    """Return the matches of each filter; `filters` are valid and distinct.

    The list ends before the first filter with which it would hold more than `most` ACLs.
    """
    return finish(find_in_steps(index, filters, most))


def find_in_steps(index: AclIndex, filters: Sequence[AclFilter], most: int) -> Steps[list[Found]]:
    """Return the result of `find_each`, in steps."""
    groups: dict[str | None, list[int]] = {}
    for number, wanted in enumerate(filters):
        groups.setdefault(wanted.principal, []).append(number)
        if not number & MASK:
            yield
    results = _Results(len(filters), most)
    for principal, numbers in groups.items():
        yield
        acls = index.held_by(principal)
        if len(numbers) == 1 or (yield from _is_quick(acls, filters, numbers)):
            for number in numbers:
                results.put(number, (yield from _looked_up(acls, filters[number])))
        else:
            arranged = yield from _Pass.of(filters, numbers)
            yield from arranged.run(acls, results)
    return results.in_order()


class _Results:
    """Matches so far, and their number. The last filters are dropped when there are too many."""

    def __init__(self, count: int, most: int) -> None:
        self._found: list[Found] = [()] * count
        self._left = most
        self.end = count
        """Number of the first filter that is dropped."""

    def put(self, number: int, found: Found) -> None:
        """Store the matches of a filter."""
        if number < self.end:
            self._found[number] = found
            self._grown(len(found))

    def pick(self, number: int, acls: Sequence[Acl], place: int) -> None:
        """Add one more ACL of the list to the matches of a filter."""
        if number < self.end:
            found = self._found[number]
            if not isinstance(found, _Picked):
                found = self._found[number] = _Picked(acls)
            found.places.append(place)
            self._grown(1)

    def _grown(self, count: int) -> None:
        self._left -= count
        while self._left < 0:
            self.end -= 1
            self._left += len(self._found[self.end])
            self._found[self.end] = ()

    def in_order(self) -> list[Found]:
        """Return the matches of each filter."""
        return self._found[: self.end]


@dataclass(frozen=True, slots=True)
class _Picked(Sequence[Acl]):
    """Selection from a list by positions, which take four bytes each."""

    acls: Sequence[Acl]
    places: "array[int]" = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Acl]:
        return map(self.acls.__getitem__, self.places)

    def __getitem__(self, at: Any) -> Any:
        return self.acls[self.places[at]]


# ---------------------------------------------------------------------- one by one


def _is_quick(
    acls: Sequence[Acl], filters: Sequence[AclFilter], numbers: Iterable[int]
) -> Steps[bool]:
    """Return whether looking the filters up takes less time than reading the list."""
    left = len(acls)
    for number in numbers:
        left -= _LOOKUP
        if left >= 0:
            left -= sum(end - start for start, end in listing.ranges(acls, filters[number]))
        if left < 0:
            return False
        yield
    return True


def _looked_up(acls: Sequence[Acl], wanted: AclFilter) -> Steps[Found]:
    if _is_about_all(wanted):
        return acls
    found: list[Acl] = []
    for some in listing.chunks(acls, wanted):
        found += some
        yield
    return found


def _is_about_all(wanted: AclFilter) -> bool:
    """Return whether the filter names a principal only, or nothing."""
    return (
        wanted.name is None
        and wanted.host is None
        and wanted.resource_type is ResourceType.ANY
        and wanted.pattern_type not in _PATTERN_TYPES_OF_ACLS
        and wanted.operation is Operation.ANY
        and wanted.permission is Permission.ANY
    )


# ---------------------------------------------------------------------- all at once


def _given(wanted: AclFilter) -> tuple[str, ...]:
    """Return the fields, except principal and name, that must equal the filter's."""
    named = (
        ("resource_type", wanted.resource_type is not ResourceType.ANY),
        ("pattern_type", wanted.pattern_type in _PATTERN_TYPES_OF_ACLS),
        ("host", wanted.host is not None),
        ("operation", wanted.operation is not Operation.ANY),
        ("permission", wanted.permission is not Permission.ANY),
    )
    return tuple(name for name, is_given in named if is_given)


def _getter(parts: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function that gets these fields of an ACL, or of a filter."""
    return attrgetter(*parts) if parts else lambda _: ()


_Value = TypeVar("_Value")
_Table = tuple[Callable[[Any], Any], Callable[[Any], _Value | None]]
"""Function that gets the fields of an ACL by which a table is keyed, and the table's contents."""


class _Pass:
    """Filters arranged for one pass over a list of ACLs."""

    def __init__(self) -> None:
        self._tables: list[_Table[list[int]]] = []
        self._applying: list[_Table[_Names]] = []

    @classmethod
    def of(cls, filters: Sequence[AclFilter], numbers: Iterable[int]) -> Steps[Self]:
        """Arrange the filters with these numbers."""
        tables: dict[tuple[str, ...], dict[Any, list[int]]] = {}
        applying: dict[tuple[str, ...], dict[Any, _Names]] = {}
        for number in numbers:
            if not number & MASK:
                yield
            wanted = filters[number]
            parts = _given(wanted)
            if wanted.name is not None and wanted.pattern_type is PatternType.MATCH:
                by_parts = applying.setdefault(parts, {})
                by_parts.setdefault(_getter(parts)(wanted), _Names()).add(wanted.name, number)
                continue
            if wanted.name is not None:
                parts = (*parts, "name")
            table = tables.setdefault(parts, {})
            table.setdefault(_getter(parts)(wanted), []).append(number)
        for by_parts in applying.values():
            for names in by_parts.values():
                yield from names.sort()
        made = cls()
        made._tables = [(_getter(parts), table.get) for parts, table in tables.items()]
        made._applying = [(_getter(parts), by_parts.get) for parts, by_parts in applying.items()]
        return made

    def run(self, acls: Sequence[Acl], results: _Results) -> Steps[None]:
        """Find the matches of the filters in this list."""
        picked = 0
        for place, acl in enumerate(acls):
            if not place & MASK:
                yield
            for number in self._finders(acl):
                results.pick(number, acls, place)
                picked += 1
                if not picked & MASK:
                    yield

    def _finders(self, acl: Acl) -> Iterator[int]:
        """Yield the numbers of the filters that match an ACL."""
        for parts_of, get in self._tables:
            yield from get(parts_of(acl)) or ()
        for parts_of, names_of in self._applying:
            names = names_of(parts_of(acl))
            if names is not None:
                yield from names.to_which_applies(acl)


class _Names:
    """Names of MATCH filters that are alike in all other fields (KIP-290)."""

    def __init__(self) -> None:
        self._filters: dict[str, list[int]] = {}
        self._in_order: list[str] = []

    def add(self, name: str, number: int) -> None:
        """Add a filter's name."""
        self._filters.setdefault(name, []).append(number)

    def sort(self) -> Steps[None]:
        """Sort the names, before the first look-up."""
        names, runs = list(self._filters), list[list[str]]()
        for at in range(0, len(names), _RUN):
            runs.append(sorted(names[at : at + _RUN]))
            yield
        for number, name in enumerate(merge(*runs)):
            self._in_order.append(name)
            if not number & MASK:
                yield

    def to_which_applies(self, acl: Acl) -> Iterator[int]:
        """Yield the numbers of the filters whose name the pattern of an ACL matches."""
        if acl.pattern_type is PatternType.PREFIXED:
            for name in self._beginning_with(acl.name):
                yield from self._filters[name]
        elif acl.name == WILDCARD:
            for numbers in self._filters.values():
                yield from numbers
        else:
            yield from self._filters.get(acl.name, ())

    def _beginning_with(self, prefix: str) -> Iterator[str]:
        for at in range(bisect_left(self._in_order, prefix), len(self._in_order)):
            name = self._in_order[at]
            if not name.startswith(prefix):
                return
            yield name
