"""Hosts and resource patterns of ACLs, and the look-ups that match them.

Kafka compares hosts as texts. Here all spellings of an address are equal (RFC 5952; as in Java, an
IPv4-mapped IPv6 address equals the IPv4 address), and an ACL may name a CIDR block (RFC 4632, RFC
4291). As in Kafka, other texts are stored unchanged and never apply.

Resource patterns (KIP-290) are found by the names that they match. The time to find a pattern does
not depend on the number of patterns or on their nesting. A published object is never changed; it is
copied first. Of nested prefixes only the shortest is needed to decide whether a name matches. The
shortest prefixes do not begin with one another, so only the greatest of them that is not greater
than a name can be its prefix.
"""

import socket
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, Generic, TypeVar

from proxy.acl.model import WILDCARD, PatternType

BlockShape = tuple[int, int]
"""Shape of a block: bytes of the address (4 or 16) and bits of the prefix."""
HostKey = str | bytes | tuple[int, int, int]
"""Key of an ACL's host: `*`, an address, or a block as its shape and number. Equivalent spellings
have equal keys."""

_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""First bytes of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""
_BITS_BEFORE_MAPPED: Final = 96
_MAX_BITS: Final = {4: 32, 16: 128}
"""Bits of an address, by its number of bytes."""
_CACHED_CLIENTS: Final = 4096
"""Maximum number of client addresses whose keys are cached."""


def acl_host_key(host: str) -> HostKey | None:
    """Return the key of an ACL's host; None if it can never apply."""
    if host == WILDCARD:
        return WILDCARD
    address, slash, length = host.partition("/")
    if slash:
        return _block(address, length)
    return None if (found := _address(address)) is None else b"".join(found)


def block_shape(key: HostKey) -> BlockShape | None:
    """Return the shape of a block; None for other keys."""
    return key[:2] if isinstance(key, tuple) else None


@lru_cache(maxsize=_CACHED_CLIENTS)
def client_host_keys(host: str, shapes: frozenset[BlockShape]) -> tuple[HostKey, ...]:
    """Return the keys of all ACLs that apply to a client at this address.

    `shapes` contains the shapes of all existing blocks. An ACL for a link-local address without a
    zone applies in every zone.
    """
    found = _address(host)
    if found is None:
        return (WILDCARD,)
    address, zone = found
    zoned = (address + zone,) if zone else ()
    return (WILDCARD, address, *zoned, *_blocks_around(address, shapes))


def _blocks_around(address: bytes, shapes: Iterable[BlockShape]) -> Iterable[HostKey]:
    number = int.from_bytes(address, "big")
    size = len(address)
    for bytes_, bits in sorted(shapes):
        if bytes_ == size:
            yield size, bits, number >> (8 * size - bits)


def _address(text: str) -> tuple[bytes, bytes] | None:
    """Return the bytes of an address, and the zone of a link-local one (RFC 4007) with its `%`;
    None if it is not an address."""
    bare, percent, zone = text.partition("%")
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in bare else socket.AF_INET, bare)
    except (OSError, ValueError):  # ValueError: a NUL, or text that cannot be encoded
        return None
    if packed.startswith(_MAPPED):
        packed = packed[len(_MAPPED) :]
    return packed, percent.encode() + zone.encode(errors="surrogatepass")


def _block(text: str, length: str) -> HostKey | None:
    """Return the key of a block. Bits after its prefix are ignored."""
    # Without this check, a megabyte of digits would be parsed as a number
    if not (length.isascii() and length.isdigit() and len(length) <= len("128")):
        return None
    found, bits = _address(text), int(length)
    if found is None or found[1]:
        return None
    address = found[0]
    if ":" in text and len(address) == _MAX_BITS[4] // 8:
        bits -= _BITS_BEFORE_MAPPED
    max_bits = _MAX_BITS[len(address)]
    if not 0 <= bits <= max_bits:
        return None
    return len(address), bits, int.from_bytes(address, "big") >> (max_bits - bits)


_V = TypeVar("_V")


_Level = tuple[int, dict[str, list[str]]]
"""Prefixes that do not begin with one another: the length of the shortest, and sorted lists of the
prefixes, keyed by their first characters up to that length. Most searches end at the keys, without
a bisection."""


def _level(prefixes: list[str]) -> _Level:
    length, alike = min(map(len, prefixes)), dict[str, list[str]]()
    for prefix in prefixes:
        alike.setdefault(prefix[:length], []).append(prefix)
    return length, alike


class Prefixes(Generic[_V]):
    """Prefixes, each with a value."""

    __slots__ = ("_levels", "_nested", "_shortest", "_values")

    def __init__(self) -> None:
        self._values: dict[str, _V] = {}
        self._shortest: list[str] = []
        """Prefixes that begin with no other, sorted."""
        self._nested: list[str] = []
        """All other prefixes, sorted."""
        self._levels: list[_Level] | None = None
        """Result of `_in_levels`; None until it is needed. Every thread computes the same
        result."""

    def copy(self) -> "Prefixes[_V]":
        """Return a copy that may be changed."""
        made: Prefixes[_V] = Prefixes()
        made._values = self._values.copy()
        made._shortest = self._shortest.copy()
        made._nested = self._nested.copy()
        return made

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, prefix: str) -> _V | None:
        """Return the value of exactly this prefix; None if it does not exist."""
        return self._values.get(prefix)

    def put(self, prefix: str, value: _V) -> None:
        """Add a prefix, or replace its value."""
        if prefix not in self._values:
            self._levels = None
            self._insert(prefix)
        self._values[prefix] = value

    def remove(self, prefix: str) -> None:
        """Remove an existing prefix."""
        del self._values[prefix]
        self._levels = None
        position = bisect_left(self._shortest, prefix)
        if position == len(self._shortest) or self._shortest[position] != prefix:
            del self._nested[bisect_left(self._nested, prefix)]
            return
        del self._shortest[position]
        self._promote(prefix)

    def find(self, name: str) -> _V | None:
        """Return the value of the shortest prefix of `name`; None if no prefix matches."""
        position = bisect_right(self._shortest, name)
        if position and name.startswith(prefix := self._shortest[position - 1]):
            return self._values[prefix]
        return None

    def find_within(self, name_prefix: str) -> _V | None:
        """Return the value of a prefix that begins with `name_prefix`; None if it does not
        exist."""
        position = bisect_left(self._shortest, name_prefix)
        if position == len(self._shortest):
            return None
        prefix = self._shortest[position]
        return self._values[prefix] if prefix.startswith(name_prefix) else None

    def shortest(self) -> Iterator[str]:
        """Return the prefixes that begin with no other, sorted."""
        return iter(self._shortest)

    def depth(self) -> int:
        """Return the maximum depth of nested prefixes."""
        return len(self._in_levels())

    def find_all(self, name: str) -> list[_V]:
        """Return the values of all prefixes of `name`, the shortest first."""
        found: list[_V] = []
        for length, alike in self._levels or self._in_levels():
            prefixes = alike.get(name[:length])
            if prefixes is None:
                break
            position = bisect_right(prefixes, name)
            if not position or not name.startswith(prefix := prefixes[position - 1]):
                break
            found.append(self._values[prefix])
        return found

    def _in_levels(self) -> list[_Level]:
        """Return the prefixes by the number of other prefixes that each begins with.

        At most one prefix per level is a prefix of a name, and only if all earlier levels have one.
        """
        if self._levels is None:
            levels: list[list[str]] = [self._shortest]
            around: list[str] = []
            for prefix in self._nested:
                while around and not prefix.startswith(around[-1]):
                    around.pop()
                around.append(prefix)
                if len(around) == len(levels):
                    levels.append([])
                levels[len(around)].append(prefix)
            self._levels = [_level(one) for one in levels]
        return self._levels

    def _insert(self, prefix: str) -> None:
        position = bisect_right(self._shortest, prefix)
        if position and prefix.startswith(self._shortest[position - 1]):
            insort(self._nested, prefix)
            return
        end = position
        while end < len(self._shortest) and self._shortest[end].startswith(prefix):
            end += 1
        if end > position:
            at = bisect_left(self._nested, prefix)
            self._nested[at:at] = self._shortest[position:end]
            self._nested.sort()  # fast: two sorted runs
        self._shortest[position:end] = [prefix]

    def _promote(self, removed: str) -> None:
        """Move the prefixes that were nested only in the removed one to `_shortest`."""
        start = end = bisect_left(self._nested, removed)
        raised: list[str] = []
        left: list[str] = []
        while end < len(self._nested) and (one := self._nested[end]).startswith(removed):
            covered = raised and one.startswith(raised[-1])
            (left if covered else raised).append(one)
            end += 1
        self._nested[start:end] = left
        at = bisect_left(self._shortest, removed)
        self._shortest[at:at] = raised


class Patterns(Generic[_V]):
    """Literal and prefixed patterns, each with a value."""

    __slots__ = ("_sorted", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: dict[str, _V] = {}
        self.prefixes: Prefixes[_V] | None = None
        self._sorted: list[str] | None = None
        """Names of the literal patterns, sorted; None until they are needed. Every thread computes
        the same list."""

    def copy(self) -> "Patterns[_V]":
        """Return a copy that may be changed."""
        made: Patterns[_V] = Patterns()
        made.literals = self.literals.copy()
        made.prefixes = self.prefixes and self.prefixes.copy()
        return made

    def __bool__(self) -> bool:
        return bool(self.literals or self.prefixes)

    def get(self, pattern_type: PatternType, name: str) -> _V | None:
        """Return the value of exactly this pattern; None if it does not exist."""
        if pattern_type is PatternType.LITERAL:
            return self.literals.get(name)
        return self.prefixes.get(name) if self.prefixes is not None else None

    def put(self, pattern_type: PatternType, name: str, value: _V) -> None:
        """Add a pattern, or replace its value."""
        if pattern_type is PatternType.LITERAL:
            self._sorted = None
            self.literals[name] = value
            return
        if self.prefixes is None:
            self.prefixes = Prefixes()
        self.prefixes.put(name, value)

    def remove(self, pattern_type: PatternType, name: str) -> None:
        """Remove an existing pattern."""
        if pattern_type is PatternType.LITERAL:
            self._sorted = None
            del self.literals[name]
            return
        assert self.prefixes is not None
        self.prefixes.remove(name)
        self.prefixes = self.prefixes or None

    def find(self, name: str) -> _V | None:
        """Return the value of a pattern that matches this name; None if no pattern matches."""
        literals = self.literals
        found = literals.get(name)
        if found is None:
            found = literals.get(WILDCARD)
        if found is None and self.prefixes is not None:
            found = self.prefixes.find(name)
        return found

    def find_for_all(self, name_prefix: str) -> _V | None:
        """Return the value of a pattern that matches every name with this prefix; None if no
        pattern does."""
        found = self.literals.get(WILDCARD)
        if found is None and self.prefixes is not None:
            found = self.prefixes.find(name_prefix)
        return found

    def find_for_any(self, name_prefix: str) -> _V | None:
        """Return the value of a pattern that matches a name with this prefix; None if no pattern
        does."""
        found = self.find_for_all(name_prefix)
        if found is None and self.prefixes is not None:
            found = self.prefixes.find_within(name_prefix)
        if found is None and self.literals:
            names = self._sorted = self._sorted or sorted(self.literals)
            position = bisect_left(names, name_prefix)
            if position < len(names) and names[position].startswith(name_prefix):
                found = self.literals[names[position]]
        return found

    def covers_literal(self, name: str) -> bool:
        """Return whether a pattern other than `*` covers this literal one."""
        return name in self.literals or self.covers_prefix(name)

    def covers_prefix(self, prefix: str) -> bool:
        """Return whether a prefix covers this prefix."""
        return self.prefixes is not None and self.prefixes.find(prefix) is not None
