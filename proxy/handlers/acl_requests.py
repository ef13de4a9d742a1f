"""ACLs and filters in requests, v0 to v4; unknown codes become UNKNOWN."""

from typing import Any, Final

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.handlers.acl_resources import FIRST_WITH_PATTERN_TYPE
from proxy.wire.batch_describe import AclFilterParts

_RESOURCE_TYPES: Final = {one.value: one for one in ResourceType}
_PATTERN_TYPES: Final = {one.value: one for one in PatternType}
_OPERATIONS: Final = {one.value: one for one in Operation}
_PERMISSIONS: Final = {one.value: one for one in Permission}


def acl_of(creation: Any, api_version: int) -> Acl:
    """Return the ACL of one creation."""
    older = api_version < FIRST_WITH_PATTERN_TYPE
    pattern_type = PatternType.LITERAL if older else creation.resource_pattern_type
    return Acl(
        _RESOURCE_TYPES.get(creation.resource_type, ResourceType.UNKNOWN),
        _PATTERN_TYPES.get(pattern_type, PatternType.UNKNOWN),
        creation.resource_name,
        creation.principal,
        creation.host,
        _OPERATIONS.get(creation.operation, Operation.UNKNOWN),
        _PERMISSIONS.get(creation.permission_type, Permission.UNKNOWN),
    )


def filter_parts(queried: Any, api_version: int) -> AclFilterParts:
    """Return the fields of a filter of v0 to v3; those before pattern types select literal
    patterns."""
    older = api_version < FIRST_WITH_PATTERN_TYPE
    return (
        queried.resource_type_filter,
        queried.resource_name_filter,
        PatternType.LITERAL if older else queried.pattern_type_filter,
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
