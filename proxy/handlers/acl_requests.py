"""ACLs and filters of requests, v0 to v4; unknown codes become UNKNOWN."""

from typing import Any, Final

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import Refusal, filter_refusal
from proxy.handlers.acl_resources import FIRST_WITH_PATTERN_TYPE
from proxy.wire.batch_describe import AclFilterParts

_RESOURCE_TYPES: Final = {one.value: one for one in ResourceType}
_PATTERN_TYPES: Final = {one.value: one for one in PatternType}
_OPERATIONS: Final = {one.value: one for one in Operation}
_PERMISSIONS: Final = {one.value: one for one in Permission}


def acl_of(creation: Any, api_version: int) -> Acl:
    """Return the ACL that a client wants."""
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


def acl_filter(asked: Any, api_version: int) -> AclFilter:
    """Return what a client asks for; before pattern types, it cannot ask for prefixed ACLs."""
    older = api_version < FIRST_WITH_PATTERN_TYPE
    pattern_type = PatternType.LITERAL if older else asked.pattern_type_filter
    return AclFilter(
        resource_type=_RESOURCE_TYPES.get(asked.resource_type_filter, ResourceType.UNKNOWN),
        pattern_type=_PATTERN_TYPES.get(pattern_type, PatternType.UNKNOWN),
        name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_OPERATIONS.get(asked.operation, Operation.UNKNOWN),
        permission=_PERMISSIONS.get(asked.permission_type, Permission.UNKNOWN),
    )


def describe_refusal(asked: Any, api_version: int) -> Refusal | None:
    """Return why DescribeAcls refuses a filter: for a code 0. None: it does not.

    It has no quarrel with a code of a later Kafka: there can be no such ACLs.
    """
    codes = [asked.resource_type_filter, asked.operation, asked.permission_type]
    if api_version >= FIRST_WITH_PATTERN_TYPE:
        codes.append(asked.pattern_type_filter)
    return filter_refusal(acl_filter(asked, api_version)) if 0 in codes else None


def filter_of(parts: AclFilterParts) -> AclFilter:
    """Return what one filter of DescribeAcls v4 asks for."""
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
    """Whether DescribeAcls refuses a filter of v4, as `describe_refusal` does those before."""
    resource_type, _, pattern_type, _, _, operation, permission = parts
    return 0 in (resource_type, pattern_type, operation, permission)
