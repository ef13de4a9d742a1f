"""Encoder of `resources` in DescribeAcls responses, v0 to v4."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter, eq
from sys import maxsize
from typing import Final

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.scheduling.steps import Steps
from proxy.wire.apis import APIS, DESCRIBE_ACLS
from proxy.wire.primitives import write_array_length, write_string

FIRST_WITH_PATTERN_TYPE: Final = 1
"""KIP-290; every pattern of older messages is literal."""
FIRST_FLEXIBLE: Final = APIS[DESCRIBE_ACLS].first_flexible
"""The same for all three ACL APIs."""
_AT_ONCE: Final = 128
"""Number of ACLs that are encoded in one step, which takes some tens of microseconds."""
_FEW: Final = 128
"""Number of array lengths that are encoded in advance."""
_LENGTHS: Final = {
    flexible: [write_array_length(size, flexible) for size in range(_FEW)]
    for flexible in (False, True)
}
_MAX_REMEMBERED: Final = 4 << 20
"""Bound on the encoded parts that are cached while one response is written, in bytes."""
_COST_OF_REMEMBERING: Final = 150
"""Overhead of a dictionary item and its key, in bytes."""
_Kind = tuple[ResourceType, PatternType]
_RESOURCE: Final = attrgetter("resource_type", "pattern_type", "name")


class TooLarge(Exception):
    """The response would exceed its bound in bytes."""


class Resources:
    """Encoder of the items of `resources`: adjacent ACLs of one resource form an item.

    Most resources have one ACL. So the cached parts are those of such an item: the resource and the
    count 1; the principal; and host, operation and permission with the end of the item. Each cache
    is a plain dictionary keyed by one field: tuples as keys, or `__missing__`, would take twice as
    long.
    """

    def __init__(self, api_version: int) -> None:
        flexible = api_version >= FIRST_FLEXIBLE
        self._end = b"\0" if flexible else b""
        self._lengths = _LENGTHS[flexible]
        self._one = self._lengths[1]
        self._flexible = flexible
        self._with_pattern_type = api_version >= FIRST_WITH_PATTERN_TYPE
        self._heads: dict[_Kind, dict[str, bytes]] = {}
        self._principals: dict[str, bytes] = {}
        self._rules: dict[Operation, dict[Permission, dict[str, bytes]]] = {}
        self._remembered = 0
        self._principal: bytes | None = None
        """Encoded principal of all ACLs being written; None if they have several, or it is
        unknown."""

    def write(
        self, acls: Iterable[Acl], principal: str | None, max_bytes: int = maxsize
    ) -> Steps[tuple[bytearray, int]]:
        """Return the encoded items, and their number. Raises TooLarge if they exceed `max_bytes`.

        `principal` is the principal of all the ACLs; None if they have several, or it is unknown.
        """
        written, count = bytearray(), 0
        self._principal = None if principal is None else self._string(principal)
        source = iter(acls)
        some = list(islice(source, _AT_ONCE))
        while some:
            more = list(islice(source, _AT_ONCE))
            last = _RESOURCE(some[-1])
            if more and _RESOURCE(more[0]) == last:
                cut = len(some) - 1
                while cut and _RESOURCE(some[cut - 1]) == last:
                    cut -= 1
                if cut:
                    count += self._items(some[:cut], written)
                some = yield from self._long_item(some[cut:], more, source, written, max_bytes)
                count += 1
            else:
                count += self._items(some, written)
                some = more
            if len(written) > max_bytes:
                raise TooLarge
            yield
        return written, count

    def _items(self, some: Sequence[Acl], written: bytearray) -> int:
        """Encode all items of these ACLs; return their number."""
        heads, principals, rules = self._parts_of(some)
        count = len(some)
        if not any(map(eq, heads, islice(heads, 1, None))):
            parts = [b""] * (3 * count)
            parts[::3], parts[1::3], parts[2::3] = heads, principals, rules
            written += b"".join(parts)
            return count
        count = at = 0
        for head, group in groupby(heads):
            end = at + len(list(group))
            written += head[: -len(self._one)] + self.length(end - at)
            self._add_members(principals[at:end], rules[at:end], written)
            written += self._end
            at = end
            count += 1
        return count

    def _add_members(
        self, principals: Sequence[bytes], rules: Sequence[bytes], written: bytearray
    ) -> None:
        """Append ACLs without the ends of items."""
        for principal, rule in zip(principals, rules, strict=True):
            written += principal
            written += rule[: len(rule) - len(self._end)]

    def _parts_of(self, some: Sequence[Acl]) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Return the three parts of each ACL, and cache them."""
        return (
            self._found(self._heads_of, self._remember_heads, some),
            self._found(self._principals_of, self._remember_principals, some),
            self._found(self._rules_of, self._remember_rules, some),
        )

    def _found(
        self,
        parts_of: Callable[[Sequence[Acl]], list[bytes]],
        remember: Callable[[Sequence[Acl]], None],
        some: Sequence[Acl],
    ) -> list[bytes]:
        try:
            return parts_of(some)
        except KeyError:
            if self._remembered > _MAX_REMEMBERED:
                self._heads, self._principals, self._rules = {}, {}, {}
                self._remembered = 0
            remember(some)
            return parts_of(some)

    def _heads_of(self, some: Sequence[Acl]) -> list[bytes]:
        first, last = some[0], some[-1]
        kind = first.resource_type, first.pattern_type
        if (last.resource_type, last.pattern_type) == kind:  # true of all between: they are sorted
            names = self._heads[kind]
            return [names[acl.name] for acl in some]
        return [self._heads[acl.resource_type, acl.pattern_type][acl.name] for acl in some]

    def _remember_heads(self, some: Sequence[Acl]) -> None:
        for acl in some:
            names = self._heads.setdefault((acl.resource_type, acl.pattern_type), {})
            if acl.name not in names:
                names[acl.name] = self._counted(self._head(acl))

    def _principals_of(self, some: Sequence[Acl]) -> list[bytes]:
        if self._principal is not None:
            return [self._principal] * len(some)
        principals = self._principals
        return [principals[acl.principal] for acl in some]

    def _remember_principals(self, some: Sequence[Acl]) -> None:
        for principal in {acl.principal for acl in some}:
            if principal not in self._principals:
                self._principals[principal] = self._counted(self._string(principal))

    def _rules_of(self, some: Sequence[Acl]) -> list[bytes]:
        rules = self._rules
        return [rules[acl.operation][acl.permission][acl.host] for acl in some]

    def _remember_rules(self, some: Sequence[Acl]) -> None:
        for acl in some:
            hosts = self._rules.setdefault(acl.operation, {}).setdefault(acl.permission, {})
            if acl.host not in hosts:
                hosts[acl.host] = self._counted(self._rule(acl))

    def _counted(self, written: bytes) -> bytes:
        self._remembered += len(written) + _COST_OF_REMEMBERING
        return written

    def _long_item(
        self,
        members: list[Acl],
        more: list[Acl],
        source: Iterator[Acl],
        written: bytearray,
        max_bytes: int,
    ) -> Steps[list[Acl]]:
        """Encode one item, of a resource with many ACLs; return the first ACLs after it."""
        resource = _RESOURCE(members[0])
        rest: list[Acl] = []
        while more and not rest:
            same = 0
            while same < len(more) and _RESOURCE(more[same]) == resource:
                same += 1
            members += more[:same]
            rest = more[same:]
            more = list(islice(source, _AT_ONCE - len(rest)))
            yield
        written += self._head(members[0])[: -len(self._one)] + self.length(len(members))
        for at in range(0, len(members), _AT_ONCE):
            _, principals, rules = self._parts_of(members[at : at + _AT_ONCE])
            self._add_members(principals, rules, written)
            if len(written) > max_bytes:
                raise TooLarge
            yield
        written += self._end
        return rest + more

    def length(self, size: int) -> bytes:
        """Return the encoded length of an array."""
        return self._lengths[size] if size < _FEW else write_array_length(size, self._flexible)

    def _head(self, acl: Acl) -> bytes:
        pattern = bytes((acl.pattern_type,)) if self._with_pattern_type else b""
        return bytes((acl.resource_type,)) + self._string(acl.name) + pattern + self._one

    def _rule(self, acl: Acl) -> bytes:
        codes = bytes((acl.operation, acl.permission))
        return self._string(acl.host) + codes + self._end + self._end

    def _string(self, text: str) -> bytes:
        encoded = text.encode()
        if self._flexible and len(encoded) < _FEW - 1:
            return self._lengths[len(encoded)] + encoded  # prefixed like an array
        return write_string(text, self._flexible)
