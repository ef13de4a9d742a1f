"""Requests and responses of the ACL APIs: v0 to v3, and DescribeAcls v4 (KIP-140, KIP-888)."""

from collections.abc import Iterable
from typing import Any, Final, get_args

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import filter_refusal
from proxy.admin.errors import InvalidRequest, UnsupportedVersion, kafka_error
from proxy.admin.results import DeletedAcl, DescribedAcls, FilterResult
from proxy.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from proxy.wire.batch_describe import (
    ACLS_BATCHED,
    DescribeAclsFilter,
    DescribeAclsRequest,
)
from proxy.wire.codec import request_type

VERSIONS: Final = (0, 3)
"""Lowest and highest version of CreateAcls and DeleteAcls that this module understands."""
DESCRIBE_VERSIONS: Final = (0, ACLS_BATCHED)
"""Lowest and highest version of DescribeAcls that this module understands."""

_FIRST_WITH_PATTERN_TYPE: Final = 1

_RESOURCE_TYPES: Final = {one.value: one for one in ResourceType}
_PATTERN_TYPES: Final = {one.value: one for one in PatternType}
_OPERATIONS: Final = {one.value: one for one in Operation}
_PERMISSIONS: Final = {one.value: one for one in Permission}


def describe_request(api_version: int, wanted: AclFilter) -> Any:
    """Return a DescribeAcls request, v0 to v3. Raises UnsupportedVersion."""
    return request_type(DESCRIBE_ACLS, api_version)(**_filter_fields(api_version, wanted))


def batch_request(filters: Iterable[AclFilter]) -> DescribeAclsRequest:
    """Return a DescribeAcls request for many filters, v4."""
    items = (DescribeAclsFilter(**_filter_fields(ACLS_BATCHED, one)) for one in filters)
    return DescribeAclsRequest(filters=tuple(items))


def invalid_filter(wanted: AclFilter) -> DescribedAcls | None:
    """Return the error of a filter that must not be sent, because a part is UNKNOWN; else None."""
    if refusal := filter_refusal(wanted):
        return DescribedAcls(error=InvalidRequest(refusal.message))
    return None


def described(api_version: int, response: Any) -> DescribedAcls:
    """Return the ACLs in a response of v0 to v3, or in a filter's result of v4, or its error."""
    if error := kafka_error(response.error_code, response.error_message):
        return DescribedAcls(error=error)
    return DescribedAcls(
        acls=tuple(
            _acl(resource, acl, api_version)
            for resource in response.resources
            for acl in resource.acls
        )
    )


def create_request(api_version: int, acls: list[Acl]) -> Any:
    """Return a CreateAcls request. Raises UnsupportedVersion."""
    request = request_type(CREATE_ACLS, api_version)
    creation = _item_type(request, "creations")
    return request(creations=tuple(creation(**_creation_fields(api_version, acl)) for acl in acls))


def delete_request(api_version: int, filters: list[AclFilter]) -> Any:
    """Return a DeleteAcls request. Raises UnsupportedVersion."""
    request = request_type(DELETE_ACLS, api_version)
    item = _item_type(request, "filters")
    return request(filters=tuple(item(**_filter_fields(api_version, one)) for one in filters))


def filter_result(api_version: int, result: Any) -> FilterResult:
    """Return the result of one filter of DeleteAcls."""
    return FilterResult(
        error=kafka_error(result.error_code, result.error_message),
        matches=tuple(
            DeletedAcl(
                acl=_acl(match, match, api_version),
                error=kafka_error(match.error_code, match.error_message),
            )
            for match in result.matching_acls
        ),
    )


def _item_type(request: type[Any], name: str) -> Any:
    """Return the class of an array's items."""
    return get_args(request.__annotations__[name])[0]


def _filter_fields(api_version: int, wanted: AclFilter) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "resource_type_filter": wanted.resource_type.value,
        "resource_name_filter": wanted.name,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation.value,
        "permission_type": wanted.permission.value,
    }
    if api_version >= _FIRST_WITH_PATTERN_TYPE:
        fields["pattern_type_filter"] = wanted.pattern_type.value
    elif wanted.pattern_type not in (PatternType.LITERAL, PatternType.ANY):
        raise UnsupportedVersion("the broker supports literal patterns only")
    return fields


def _creation_fields(api_version: int, acl: Acl) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "resource_type": acl.resource_type.value,
        "resource_name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.value,
        "permission_type": acl.permission.value,
    }
    if api_version >= _FIRST_WITH_PATTERN_TYPE:
        fields["resource_pattern_type"] = acl.pattern_type.value
    elif acl.pattern_type is not PatternType.LITERAL:
        raise UnsupportedVersion("the broker supports literal patterns only")
    return fields


def _acl(resource: Any, entry: Any, api_version: int) -> Acl:
    """Return an ACL; codes of a newer broker become UNKNOWN (KIP-140)."""
    older = api_version < _FIRST_WITH_PATTERN_TYPE
    return Acl(
        _RESOURCE_TYPES.get(resource.resource_type, ResourceType.UNKNOWN),
        PatternType.LITERAL
        if older
        else _PATTERN_TYPES.get(resource.pattern_type, PatternType.UNKNOWN),
        resource.resource_name,
        entry.principal,
        entry.host,
        _OPERATIONS.get(entry.operation, Operation.UNKNOWN),
        _PERMISSIONS.get(entry.permission_type, Permission.UNKNOWN),
    )
