"""DescribeAcls v4 and DescribeClientQuotas v2 (KIP-888), in kio's style.

No Kafka serves them, and kio does not know them. A request is a list of filters, and a response a
list with one result for each, in their order, each with its own error.

They lack the fields of the older versions ("will only be accepted in requests/responses for older
versions"), except for `strict` of DescribeClientQuotas, which applies to all filters.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import f64, i8, i16, i32Timedelta

from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import DESCRIBE_ACLS, DESCRIBE_CLIENT_QUOTAS
from proxy.wire.flexible_parts import InRequest, InResponse
from proxy.wire.primitives import Malformed, nullable_string, uvarint

ACLS_BATCHED: Final = 4
"""First version of DescribeAcls with many filters."""
QUOTAS_BATCHED: Final = 2
"""First version of DescribeClientQuotas with many filters."""
MAX_FILTERS: Final = 100_000
"""Maximum number of filters per request; a bound of this proxy, as the specification sets none."""
MAX_RESULT_BYTES: Final = 64 << 20
"""Maximum size of all results of one response, in bytes; a bound of this proxy, well below what
clients read, such as librdkafka's `receive.message.max.bytes` (100,000,000)."""


class _OfAcls:
    """Base of all parts of DescribeAcls."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(ACLS_BATCHED)
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ACLS)


class _OfQuotas:
    """Base of all parts of DescribeClientQuotas."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(QUOTAS_BATCHED)
    __api_key__: ClassVar[i16] = i16(DESCRIBE_CLIENT_QUOTAS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsFilter(_OfAcls, InRequest):
    """Filter of the ACLs to list; null and ANY match every value."""

    __type__: ClassVar = EntityType.nested
    resource_type_filter: i8 = field(metadata={"kafka_type": "int8"})
    resource_name_filter: str | None = field(metadata={"kafka_type": "string"})
    pattern_type_filter: i8 = field(metadata={"kafka_type": "int8"}, default=i8(3))
    principal_filter: str | None = field(metadata={"kafka_type": "string"})
    host_filter: str | None = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(_OfAcls, InRequest):
    """DescribeAcls request: the filters."""

    __type__: ClassVar = EntityType.request
    filters: tuple[DescribeAclsFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDescription(_OfAcls, InResponse):
    """Access control entry of a resource."""

    __type__: ClassVar = EntityType.nested
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResource(_OfAcls, InResponse):
    """Resource with its ACLs that the filter matches."""

    __type__: ClassVar = EntityType.nested
    resource_type: i8 = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    pattern_type: i8 = field(metadata={"kafka_type": "int8"}, default=i8(3))
    acls: tuple[AclDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsFilterResult(_OfAcls, InResponse):
    """Result of one filter."""

    __type__: ClassVar = EntityType.nested
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    resources: tuple[DescribeAclsResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse(_OfAcls, InResponse):
    """DescribeAcls response: one result per filter, in their order."""

    __type__: ClassVar = EntityType.response
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    filter_results: tuple[DescribeAclsFilterResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentData(_OfQuotas, InRequest):
    """Component that an entity must have: a name, the default, or any name."""

    __type__: ClassVar = EntityType.nested
    entity_type: str = field(metadata={"kafka_type": "string"})
    match_type: i8 = field(metadata={"kafka_type": "int8"})
    match: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasFilter(_OfQuotas, InRequest):
    """Filter of the entities to list."""

    __type__: ClassVar = EntityType.nested
    components: tuple[ComponentData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasRequest(_OfQuotas, InRequest):
    """DescribeClientQuotas request: the filters. `strict` excludes entities with components that
    their filter does not name."""

    __type__: ClassVar = EntityType.request
    strict: bool = field(metadata={"kafka_type": "bool"})
    filters: tuple[DescribeClientQuotasFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData(_OfQuotas, InResponse):
    """Component of an entity; a null name is the default."""

    __type__: ClassVar = EntityType.nested
    entity_type: str = field(metadata={"kafka_type": "string"})
    entity_name: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueData(_OfQuotas, InResponse):
    """Quota of an entity."""

    __type__: ClassVar = EntityType.nested
    key: str = field(metadata={"kafka_type": "string"})
    value: f64 = field(metadata={"kafka_type": "float64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryData(_OfQuotas, InResponse):
    """Entity with its quotas."""

    __type__: ClassVar = EntityType.nested
    entity: tuple[EntityData, ...]
    values: tuple[ValueData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasFilterResult(_OfQuotas, InResponse):
    """Result of one filter; entries are null, not empty, if it has an error."""

    __type__: ClassVar = EntityType.nested
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    entries: tuple[EntryData, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponse(_OfQuotas, InResponse):
    """DescribeClientQuotas response: one result per filter, in their order."""

    __type__: ClassVar = EntityType.response
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    filter_results: tuple[DescribeClientQuotasFilterResult, ...]


AclFilterParts = tuple[int, str | None, int, str | None, str | None, int, int]
"""Fields of a `DescribeAclsFilter`, in their order; negative codes are increased by 256."""


def acl_filters(body: bytes) -> list[AclFilterParts]:
    """Read the filters of DescribeAcls v4 without one object each. Raises Malformed.

    Accepts and rejects the same bytes as `proxy.wire.codec`.
    """
    length, at = uvarint(body, 0)
    filters: list[AclFilterParts] = []
    try:
        for _ in pausing(range(length - 1)):
            resource_type = body[at]
            name, at = nullable_string(body, at + 1, flexible=True)
            pattern_type = body[at]
            principal, at = nullable_string(body, at + 1, flexible=True)
            host, at = nullable_string(body, at, flexible=True)
            codes = body[at], body[at + 1]
            at = at + 3 if body[at + 2] == 0 else _after_tags(body, at + 2)
            filters.append((resource_type, name, pattern_type, principal, host, *codes))
        if body[at] != 0:
            _after_tags(body, at)
    except IndexError:
        raise Malformed("ends inside a filter") from None
    return filters


def _after_tags(body: bytes, position: int) -> int:
    """Return the position after a section of tagged fields, all of them unknown."""
    count, position = uvarint(body, position)
    for _ in pausing(range(count)):
        _, position = uvarint(body, position)
        size, position = uvarint(body, position)
        position += size
        if position > len(body):
            raise Malformed("ends inside a tagged field")
    return position


def acl_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeAcls v4, before any object is made of them.

    Raises Malformed.
    """
    return _count(body, 0, min_size=8)  # four codes, three strings, tags


def quota_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeClientQuotas v2, before any object is made of them.

    Raises Malformed.
    """
    return _count(body, 1, min_size=2)  # no components, tags


def _count(body: bytes, position: int, *, min_size: int) -> int:
    length, position = uvarint(body, position)
    if length == 0:
        raise Malformed("null instead of filters")
    if (length - 1) * min_size > len(body) - position:
        raise Malformed("more filters than bytes for them")
    return length - 1


REQUESTS: Final = (DescribeAclsRequest, DescribeClientQuotasRequest)
RESPONSES: Final = (DescribeAclsResponse, DescribeClientQuotasResponse)
