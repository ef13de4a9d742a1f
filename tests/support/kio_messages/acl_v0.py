"""Version 0 of DescribeAcls, CreateAcls and DeleteAcls (KIP-140), in kio's style.

Kafka 4 dropped it, and kio with it; Kafka 0.11 to 3.9 serve it, and old clients send it. It is
version 1 without pattern types: every pattern of a request is literal, and only literal patterns
are answered.

Where the KIP's text and what Kafka 0.11 released differ, this is what was released: responses
begin with throttle_time_ms, and DescribeAcls names the resource before the principal, as the other
two do (`DescribeAclsRequest.json` and its siblings up to Kafka 3.9).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader
from kio.schema.response_header.v0.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32Timedelta

from proxy.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS


class _Part:
    """Base of all parts of these messages."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = False


class _InRequest(_Part):
    __slots__ = ()
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader


class _InResponse(_Part):
    __slots__ = ()
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(_InRequest):
    """DescribeAcls request: the filter of the ACLs to list; null and ANY match every value."""

    __type__: ClassVar = EntityType.request
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ACLS)
    resource_type_filter: i8 = field(metadata={"kafka_type": "int8"})
    resource_name_filter: str | None = field(metadata={"kafka_type": "string"})
    principal_filter: str | None = field(metadata={"kafka_type": "string"})
    host_filter: str | None = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDescription(_InResponse):
    """Access control entry of a resource."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ACLS)
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResource(_InResponse):
    """Resource with its matching ACLs."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ACLS)
    resource_type: i8 = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    acls: tuple[AclDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse(_InResponse):
    """DescribeAcls response: the ACLs, by resource."""

    __type__: ClassVar = EntityType.response
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ACLS)
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    resources: tuple[DescribeAclsResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreation(_InRequest):
    """ACL to be created."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(CREATE_ACLS)
    resource_type: i8 = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest(_InRequest):
    """CreateAcls request: the ACLs to create."""

    __type__: ClassVar = EntityType.request
    __api_key__: ClassVar[i16] = i16(CREATE_ACLS)
    creations: tuple[AclCreation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreationResult(_InResponse):
    """Result of one creation."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(CREATE_ACLS)
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponse(_InResponse):
    """CreateAcls response: one result per creation, in their order."""

    __type__: ClassVar = EntityType.response
    __api_key__: ClassVar[i16] = i16(CREATE_ACLS)
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    results: tuple[AclCreationResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilter(_InRequest):
    """Filter of the ACLs to delete."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(DELETE_ACLS)
    resource_type_filter: i8 = field(metadata={"kafka_type": "int8"})
    resource_name_filter: str | None = field(metadata={"kafka_type": "string"})
    principal_filter: str | None = field(metadata={"kafka_type": "string"})
    host_filter: str | None = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest(_InRequest):
    """DeleteAcls request: the filters of the ACLs to delete."""

    __type__: ClassVar = EntityType.request
    __api_key__: ClassVar[i16] = i16(DELETE_ACLS)
    filters: tuple[DeleteAclsFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsMatchingAcl(_InResponse):
    """ACL that a filter matched."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(DELETE_ACLS)
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    resource_type: i8 = field(metadata={"kafka_type": "int8"})
    resource_name: str = field(metadata={"kafka_type": "string"})
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    permission_type: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilterResult(_InResponse):
    """Result of one filter."""

    __type__: ClassVar = EntityType.nested
    __api_key__: ClassVar[i16] = i16(DELETE_ACLS)
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    matching_acls: tuple[DeleteAclsMatchingAcl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse(_InResponse):
    """DeleteAcls response: one result per filter, in their order."""

    __type__: ClassVar = EntityType.response
    __api_key__: ClassVar[i16] = i16(DELETE_ACLS)
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    filter_results: tuple[DeleteAclsFilterResult, ...]


REQUESTS: Final = (DescribeAclsRequest, CreateAclsRequest, DeleteAclsRequest)
RESPONSES: Final = (DescribeAclsResponse, CreateAclsResponse, DeleteAclsResponse)
