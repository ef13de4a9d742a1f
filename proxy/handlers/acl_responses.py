"""Bodies of DescribeAcls, CreateAcls and DeleteAcls responses.

Encoded by hand rather than with schema classes, because a response may hold 100,000 ACLs: one
object per ACL would take more memory than the bytes, and garbage collection would stall the relay.
The encoders of ACLs pause, so that other work can run in between. Tests compare the bytes with
those of the schema classes.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from sys import maxsize
from typing import Final

from proxy.acl.model import Acl, PatternType, ResourceType
from proxy.acl.validation import Refusal
from proxy.scheduling.steps import pause, pausing
from proxy.wire.apis import ACLS_BATCHED, APIS, DESCRIBE_ACLS
from proxy.wire.primitives import INT16, INT32, write_array_length, write_null_string, write_string

FIRST_WITH_PATTERN_TYPE: Final = 1
"""First version with pattern types (KIP-290); in older messages every pattern is literal."""
FIRST_FLEXIBLE: Final = APIS[DESCRIBE_ACLS].first_flexible
"""First flexible version, the same for all three ACL APIs."""
_MAX_CACHED: Final = 10_000
"""Maximum number of cached strings."""
_MAX_CACHED_BYTES: Final = 256
"""Maximum size of a cached string, in bytes."""

Resource = tuple[ResourceType, PatternType, str]
"""Type, pattern type and name of the resources of an ACL."""


class TooLarge(Exception):
    """The response would exceed its bound in bytes."""


class EncodedStrings(dict[str, bytes]):
    """Cache of encoded strings, because the same principals, hosts and names recur."""

    def __init__(self, flexible: bool) -> None:
        super().__init__()
        self._flexible = flexible

    def __missing__(self, text: str) -> bytes:
        encoded = write_string(text, self._flexible)
        if len(self) >= _MAX_CACHED:
            self.clear()
        if len(encoded) <= _MAX_CACHED_BYTES:
            self[text] = encoded
        return encoded


class Resources:
    """Encoder of the items of `resources`. Adjacent ACLs of one resource form an item."""

    def __init__(self, api_version: int) -> None:
        self._flexible = api_version >= FIRST_FLEXIBLE
        self._end = b"\0" if self._flexible else b""
        self._with_pattern_type = api_version >= FIRST_WITH_PATTERN_TYPE
        self._strings = EncodedStrings(self._flexible)

    def write(self, acls: Iterable[Acl], max_bytes: int = maxsize) -> tuple[bytearray, int]:
        """Return the encoded items, and their number.

        Raises TooLarge when they exceed `max_bytes`.
        """
        strings, end = self._strings, self._end
        written, count = bytearray(), 0
        entries, size = bytearray(), 0  # of the current item
        current: Resource | None = None
        for acl in pausing(acls):
            if len(written) + len(entries) > max_bytes:
                raise TooLarge
            resource = acl.resource_type, acl.pattern_type, acl.name
            if resource != current:
                if current is not None:
                    self._add_item(written, current, size, entries)
                entries.clear()
                current, size = resource, 0
                count += 1
            entries += strings[acl.principal]
            entries += strings[acl.host]
            entries += bytes((acl.operation, acl.permission)) + end
            size += 1
        if current is not None:
            self._add_item(written, current, size, entries)
        return written, count

    def _add_item(
        self, written: bytearray, resource: Resource, size: int, entries: bytearray
    ) -> None:
        resource_type, pattern_type, name = resource
        written.append(resource_type)
        written += write_string(name, self._flexible)
        if self._with_pattern_type:
            written.append(pattern_type)
        written += write_array_length(size, self._flexible)
        written += entries
        written += self._end


Place = tuple[int, int]
"""Beginning and end of a result, in bytes."""

_THROTTLE_TIME_MS: Final = INT32.pack(0)
_NO_ERROR: Final = INT16.pack(0)
_MIN_RESULT: Final = 2 + 1 + 5 + 1
"""Minimum size of a result in bytes: no error, no message, the longest encoding of an array's
length, no tags."""
_STEP: Final = 1 << 17
"""Number of bytes that are copied between two pauses, some tens of microseconds."""
_FOUND: Final = _NO_ERROR + write_string("", flexible=True)
"""Encoded beginning of a result without an error."""


def describe_body(api_version: int, acls: Iterable[Acl]) -> bytes:
    """Return the body with ACLs, v0 to v3."""
    flexible = api_version >= FIRST_FLEXIBLE
    resources, count = Resources(api_version).write(acls)
    head = _THROTTLE_TIME_MS + _NO_ERROR + write_string("", flexible)
    end = b"\0" if flexible else b""
    return b"".join((head, write_array_length(count, flexible), resources, end))


class DescribeBatch:
    """Builder of a DescribeAcls v4 response body, one result after the other.

    All results together take `max_bytes` at most, plus the refusals after them.
    """

    def __init__(self, count: int, *, max_bytes: int) -> None:
        self._resources = Resources(ACLS_BATCHED)
        self._out = BytesIO()
        self._out.write(_THROTTLE_TIME_MS + write_array_length(count, flexible=True))
        self._max_size = self._out.tell() + max_bytes

    def add(self, acls: Iterable[Acl]) -> Place | None:
        """Add a result and return its place, or return None without adding it if it would exceed
        the bound."""
        start = self._out.tell()
        max_bytes = self._max_size - start - _MIN_RESULT
        try:
            resources, count = self._resources.write(acls, max_bytes)
        except TooLarge:
            return None
        head = _FOUND + write_array_length(count, flexible=True)
        if start + len(head) + len(resources) + 1 > self._max_size:
            return None
        if len(resources) <= _STEP:
            self._out.write(b"".join((head, resources, b"\0")))
            return start, self._out.tell()
        self._out.write(head)
        with memoryview(resources) as view:
            for at in range(0, len(view), _STEP):
                self._out.write(view[at : at + _STEP])
                pause()
        self._out.write(b"\0")
        return start, self._out.tell()

    def repeat(self, place: Place) -> bool:
        """Add an earlier result again; return False if it would exceed the bound."""
        start, end = place
        at = self._out.tell()
        if at + end - start > self._max_size:
            return False
        while start < end:
            self._out.seek(start)
            piece = self._out.read(min(_STEP, end - start))
            self._out.seek(at)
            at += self._out.write(piece)
            start += len(piece)
            pause()
        return True

    def refuse(self, refusal: Refusal) -> None:
        """Add an error in place of a result."""
        self._out.write(_error(refusal, flexible=True) + write_array_length(0, True) + b"\0")

    def body(self) -> bytes:
        """Return the complete body."""
        self._out.write(b"\0")
        return self._out.getvalue()


def describe_refusal(api_version: int, refusal: Refusal) -> bytes:
    """Return the body with an error."""
    flexible = api_version >= FIRST_FLEXIBLE
    nothing = write_array_length(0, flexible) + (b"\0" if flexible else b"")
    return _THROTTLE_TIME_MS + _error(refusal, flexible) + nothing


def create_body(api_version: int, results: Sequence[Refusal | None]) -> bytes:
    """Return the body with one result per creation; None stands for success."""
    flexible = api_version >= FIRST_FLEXIBLE
    end = b"\0" if flexible else b""
    done = _NO_ERROR + write_string("", flexible) + end
    items = [_error(one, flexible) + end if one else done for one in results]
    return _items(items, len(items), flexible)


def delete_body(api_version: int, results: Sequence[Refusal | Sequence[Acl]]) -> bytes:
    """Return the body with one result per filter: the ACLs that it matched, which were all deleted,
    or an error."""
    flexible = api_version >= FIRST_FLEXIBLE
    string = EncodedStrings(flexible)
    end = b"\0" if flexible else b""
    no_error = _NO_ERROR + write_null_string(flexible)
    items = bytearray()
    for result in results:
        if isinstance(result, Refusal):
            items += _error(result, flexible) + write_array_length(0, flexible) + end
            continue
        items += no_error + write_array_length(len(result), flexible)
        for acl in result:
            items += no_error
            items.append(acl.resource_type)
            items += string[acl.name]
            if api_version >= FIRST_WITH_PATTERN_TYPE:
                items.append(acl.pattern_type)
            items += string[acl.principal] + string[acl.host]
            items += bytes((acl.operation, acl.permission)) + end
        items += end
    return _items((items,), len(results), flexible)


def refusal_of_all(
    api_version: int,
    count: int,
    refusal: Refusal,
    *,
    lists_matches: bool,
    with_message: bool = True,
) -> bytes:
    """Return the body that gives all `count` items of a request the same error.

    `lists_matches` is True if results have a list of ACLs: results of filters do, those of
    creations do not. `with_message` repeats the error message for each item.
    """
    flexible = api_version >= FIRST_FLEXIBLE
    item = _error(refusal, flexible, with_message=with_message)
    if lists_matches:
        item += write_array_length(0, flexible)
    if flexible:
        item += b"\0"
    return _items((item * count,), count, flexible)


def _items(items: Iterable[bytes | bytearray], count: int, flexible: bool) -> bytes:
    head = _THROTTLE_TIME_MS + write_array_length(count, flexible)
    return b"".join((head, *items, b"\0" if flexible else b""))


def _error(refusal: Refusal, flexible: bool, *, with_message: bool = True) -> bytes:
    text = write_string(refusal.message, flexible) if with_message else write_null_string(flexible)
    return INT16.pack(refusal.code) + text
