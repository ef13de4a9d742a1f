"""Items of a large array in a response, found in its bytes without an entity for each.

A response about all topics or groups of a large cluster is megabytes long, and most clients may see
only some of its items, which are cut out of the bytes. An item is read up to its first string,
which names it. The rest is matched with a regular expression that is compiled from the schema; in
it, each length is an alternative with as many bytes. An item that it does not match (a long array,
a tagged field, the end of the bytes) is read by `codec`, which decides whether it is malformed.
"""

import re
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from proxy.scheduling.steps import free_in_steps, pause
from proxy.wire.codec import FORMATS, Read, codec, encode, field_codec
from proxy.wire.primitives import (
    Malformed,
    array_length,
    write_array_length,
    write_null_string,
    write_string,
)
from proxy.wire.schema import Field, Message

_MOST: Final = 32
"""Maximum length of a string or array that is matched: more replicas than most partitions, and more
partitions than most topics have."""
_UNROLLED: Final = 8
"""Maximum number of structures whose patterns follow one another, which is faster than to repeat
one pattern."""
_AT_ONCE: Final = 64
"""Number of items that are read between two pauses, in some hundred microseconds."""
_COMPACT: Final = 0x80
"""First length of a compact type that takes two bytes."""


class Items:
    """Items of an array field of a response, in their order."""

    def __init__(self, kind: type[Message], version: int, array: str, body: bytes) -> None:
        """Read the items of a response's body. Raises Malformed."""
        self.flexible = version >= kind.HEAD.first_flexible
        """True if the version has compact types and tagged fields."""
        self.names: list[str | None] = []
        """First string of each item; None if it is null."""
        self._ends: list[int] = []
        self._rewritten: dict[int, bytes] = {}
        self._body = body
        self._start = array_position(kind, version, array, body)
        (struct,) = (one.struct for one in kind.FIELDS if one.name == array)
        assert struct is not None
        free_in_steps(self.names)
        free_in_steps(self._ends)
        self._shape = _shape_of(struct, version)
        count, self._first = array_length(body, self._start, self.flexible)
        self.end = self._first
        """Position after the array."""
        for read_before in range(0, count, _AT_ONCE):
            pause()
            self._fill(min(_AT_ONCE, count - read_before))

    def content(self, place: int) -> bytes:
        """Return the bytes of an item, without unknown tagged fields."""
        if place in self._rewritten:
            return self._rewritten[place]
        start = self._ends[place - 1] if place else self._first
        return self._body[start : self._ends[place]]

    def name_end(self, place: int) -> int:
        """Return the position after the name in an item's bytes."""
        name, flexible = self.names[place], self.flexible
        text = write_null_string(flexible) if name is None else write_string(name, flexible)
        return self._shape.head + len(text)

    def _fill(self, count: int) -> None:
        shape, body, at = self._shape, self._body, self.end
        head, before, width, matches = shape.head, shape.before, shape.width, shape.matches
        flexible, names, ends = self.flexible, self.names, self._ends
        prefix = 1 if flexible else 2
        size = len(body)
        for _ in range(count):
            text = at + head + prefix
            if text >= size or (not flexible and body[text - 2]):
                at = self._add_unusual(at)
                continue
            length = body[text - 1]
            name_end = text + length - flexible
            key = body[name_end + before : name_end + before + width]
            found = (matches.get(key) or shape.match(key))(body, name_end)
            if found is None or length >= _COMPACT or name_end < text:
                at = self._add_unusual(at)
                continue
            try:
                names.append(str(body[text:name_end], "utf-8"))
            except UnicodeDecodeError:
                raise Malformed("a string that is not UTF-8") from None
            at = found.end()
            ends.append(at)
        self.end = at

    def _add_unusual(self, at: int) -> int:
        shape = self._shape
        entity, end = _read(codec(shape.kind, shape.version).read, self._body, at)
        self._rewritten[len(self.names)] = encode(entity, shape.version)
        self.names.append(getattr(entity, shape.name))
        self._ends.append(end)
        return end

    def replaced(self, contents: Sequence[bytes]) -> bytes:
        """Return the response with these items in place of its own."""
        length = write_array_length(len(contents), self.flexible)
        return b"".join((self._body[: self._start], length, *contents, self._body[self.end :]))


def array_position(
    kind: type[Message], version: int, array: str, body: bytes, position: int = 0
) -> int:
    """Return the position of an array field, with its length, in a message that begins at
    `position`. Raises Malformed."""
    flexible = version >= kind.HEAD.first_flexible
    for field in kind.FIELDS:
        if field.name == array:
            break
        if field.tag is None and field.versions.has(version):
            _, position = _read(field_codec(field, version, flexible).read, body, position)
    return position


def _read(read: Read, body: bytes, position: int) -> tuple[Any, int]:
    try:
        return read(body, position)
    except (struct.error, IndexError):
        raise Malformed("ends inside a response") from None


# ---------------------------------------------------------------------- patterns


Match = Callable[[bytes, int], "re.Match[bytes] | None"]


class _Shape:
    """Layout of an item in a version: fields of fixed size, a string, and the rest."""

    def __init__(self, kind: type[Message], version: int) -> None:
        fields = [one for one in kind.FIELDS if one.tag is None and one.versions.has(version)]
        place = [one.kind for one in fields].index("string")
        self.kind = kind
        self.version = version
        self._flexible = version >= kind.HEAD.first_flexible
        self._rest = fields[place + 1 :]
        inner = [one for one in self._rest if one.kind == "struct"]
        self._inner = inner[0] if inner else None
        self.name = fields[place].name
        self.head = _size(fields[:place])
        """Size of the fields before the string."""
        self.before = _size(self._rest[: self._rest.index(inner[0])]) if inner else 0
        """Size of the fields between the string and the array of structures."""
        self.width = (1 if self._flexible else 4) if inner else 0
        """Size of the length of that array; 0 if the item has no such array."""
        self.matches: dict[bytes, Match] = {}
        """Matches of the rest of an item, by the bytes of that length."""

    def match(self, key: bytes) -> Match:
        """Return the match of the rest of an item, whose array has this length."""
        count = int.from_bytes(key) - int(self._flexible)
        if len(key) < self.width or (self.width and not 0 <= count <= _MOST):
            return lambda *_: None
        parts = [self._pattern(one, key, count) for one in self._rest]
        tags = b"\\x00" if self._flexible else b""
        found = re.compile(b"".join((*parts, tags)), re.DOTALL).match
        self.matches[key] = found
        return found

    def _pattern(self, field: Field, key: bytes, count: int) -> bytes:
        if field is not self._inner:
            return _pattern(field, self._flexible)
        assert field.struct is not None
        fields = [one for one in field.struct.FIELDS if one.versions.has(self.version)]
        parts = [_pattern(one, self._flexible) for one in fields if one.tag is None]
        tags = b"\\x00" if self._flexible else b""
        item = b"".join((*parts, tags))
        if count <= _UNROLLED:
            return re.escape(key) + item * count
        return b"%b(?>%b){%d}" % (re.escape(key), item, count)


_shape_of: Callable[[Any, int], _Shape] = cache(_Shape)


def _size(fields: Sequence[Field]) -> int:
    return struct.calcsize(">" + "".join(FORMATS[one.kind] for one in fields))


def _pattern(field: Field, flexible: bool) -> bytes:
    """Return the pattern of a field of fixed size, a string, or an array of such fields."""
    size = 1 if field.kind == "string" else struct.calcsize(f">{FORMATS[field.kind]}")
    if not field.is_array and field.kind != "string":
        return b".{%d}" % size
    width = 4 if field.is_array else 2
    lengths = (
        re.escape(bytes([length + 1]) if flexible else length.to_bytes(width))
        + b".{%d}" % (length * size)
        for length in (3, 1, 0, 2, *range(4, _MOST))  # common numbers of replicas first
    )
    return b"(?>%b)" % b"|".join(lengths)
