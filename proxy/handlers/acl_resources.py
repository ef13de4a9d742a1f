"""Encoder of `resources` in DescribeAcls responses, v0 to v4."""

from collections.abc import Iterable
from sys import maxsize
from typing import Final

from proxy.acl.model import Acl, PatternType, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import APIS, DESCRIBE_ACLS
from proxy.wire.primitives import write_array_length, write_string

FIRST_WITH_PATTERN_TYPE: Final = 1
"""KIP-290; every pattern of older messages is literal."""
FIRST_FLEXIBLE: Final = APIS[DESCRIBE_ACLS].first_flexible
"""The same for all three ACL APIs."""
_MAX_CACHED: Final = 10_000
"""Maximum number of cached strings."""
_MAX_CACHED_BYTES: Final = 256
"""Maximum size of a cached string, in bytes."""

Resource = tuple[ResourceType, PatternType, str]
"""Type, pattern type and name of the resources of an ACL."""


class TooLarge(Exception):
    """The response would exceed its bound in bytes."""


class EncodedStrings(dict[str, bytes]):
    """Cache of encoded strings: the same principals, hosts and names recur."""

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
    """Encoder of the items of `resources`: adjacent ACLs of one resource form an item."""

    def __init__(self, api_version: int) -> None:
        self._flexible = api_version >= FIRST_FLEXIBLE
        self._end = b"\0" if self._flexible else b""
        self._with_pattern_type = api_version >= FIRST_WITH_PATTERN_TYPE
        self._strings = EncodedStrings(self._flexible)

    def write(self, acls: Iterable[Acl], max_bytes: int = maxsize) -> tuple[bytearray, int]:
        """Return the encoded items, and their number.

        Raises TooLarge once they have exceeded `max_bytes`.
        """
        strings, end = self._strings, self._end
        written, count = bytearray(), 0
        entries, size = bytearray(), 0  # of the item that is being read
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
