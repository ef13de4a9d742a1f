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

from proxy.wire.apis import DESCRIBE_ACLS, DESCRIBE_CLIENT_QUOTAS
from tests.support.kio_messages.flexible_parts import InRequest, InResponse

ACLS_BATCHED: Final = 4
QUOTAS_BATCHED: Final = 2


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


REQUESTS: Final = (DescribeAclsRequest, DescribeClientQuotasRequest)
RESPONSES: Final = (DescribeAclsResponse, DescribeClientQuotasResponse)
