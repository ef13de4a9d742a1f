"""ACLs and filters in requests, v0 to v4; unknown codes become UNKNOWN.

A version without pattern types has literal patterns, the default of the field.
"""

from typing import Final

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.wire.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

_RESOURCE_TYPES: Final = {one.value: one for one in ResourceType}
_PATTERN_TYPES: Final = {one.value: one for one in PatternType}
_OPERATIONS: Final = {one.value: one for one in Operation}
_PERMISSIONS: Final = {one.value: one for one in Permission}


AclFilterParts = tuple[int, str | None, int, str | None, str | None, int, int]
"""Fields of a filter, in their order."""


def acl_of(creation: CreateAclsRequest.AclCreation) -> Acl:
    """Return the ACL of one creation."""
    return Acl(
        _RESOURCE_TYPES.get(creation.resource_type, ResourceType.UNKNOWN),
        _PATTERN_TYPES.get(creation.resource_pattern_type, PatternType.UNKNOWN),
        creation.resource_name,
        creation.principal,
        creation.host,
        _OPERATIONS.get(creation.operation, Operation.UNKNOWN),
        _PERMISSIONS.get(creation.permission_type, Permission.UNKNOWN),
    )


def filter_parts(
    queried: DescribeAclsRequest
    | DescribeAclsRequest.DescribeAclsFilter
    | DeleteAclsRequest.DeleteAclsFilter,
) -> AclFilterParts:
    """Return the fields of a filter."""
    return (
        queried.resource_type_filter,
        queried.resource_name_filter,
        queried.pattern_type_filter,
        queried.principal_filter,
        queried.host_filter,
        queried.operation,
        queried.permission_type,
    )


def filter_of(parts: AclFilterParts) -> AclFilter:
    """Return the filter of these fields."""
    resource_type, name, pattern_type, principal, host, operation, permission = parts
    return AclFilter(
        resource_type=_RESOURCE_TYPES.get(resource_type, ResourceType.UNKNOWN),
        pattern_type=_PATTERN_TYPES.get(pattern_type, PatternType.UNKNOWN),
        name=name,
        principal=principal,
        host=host,
        operation=_OPERATIONS.get(operation, Operation.UNKNOWN),
        permission=_PERMISSIONS.get(permission, Permission.UNKNOWN),
    )


def has_code_0(parts: AclFilterParts) -> bool:
    """Return whether a filter has the code 0, which DescribeAcls refuses.

    It accepts other unknown codes, which may be those of a later Kafka: no stored ACL has them.
    """
    resource_type, _, pattern_type, _, _, operation, permission = parts
    return 0 in (resource_type, pattern_type, operation, permission)
