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


def acl_filter(queried: Any, api_version: int) -> AclFilter:
    """Return the filter of a request; versions before pattern types cannot select prefixed ACLs."""
    older = api_version < FIRST_WITH_PATTERN_TYPE
    pattern_type = PatternType.LITERAL if older else queried.pattern_type_filter
    return AclFilter(
        resource_type=_RESOURCE_TYPES.get(queried.resource_type_filter, ResourceType.UNKNOWN),
        pattern_type=_PATTERN_TYPES.get(pattern_type, PatternType.UNKNOWN),
        name=queried.resource_name_filter,
        principal=queried.principal_filter,
        host=queried.host_filter,
        operation=_OPERATIONS.get(queried.operation, Operation.UNKNOWN),
        permission=_PERMISSIONS.get(queried.permission_type, Permission.UNKNOWN),
    )


def describe_refusal(queried: Any, api_version: int) -> Refusal | None:
    """Return the reason for which DescribeAcls refuses a filter, the code 0; None if it accepts it.

    Codes of a later Kafka are accepted: no stored ACL can have them.
    """
    codes = [queried.resource_type_filter, queried.operation, queried.permission_type]
    if api_version >= FIRST_WITH_PATTERN_TYPE:
        codes.append(queried.pattern_type_filter)
    return filter_refusal(acl_filter(queried, api_version)) if 0 in codes else None


def filter_of(parts: AclFilterParts) -> AclFilter:
    """Return one filter of DescribeAcls v4."""
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
    """Return whether a filter of v4 has a code 0, which `describe_refusal` refuses in older
    versions."""
    resource_type, _, pattern_type, _, _, operation, permission = parts
    return 0 in (resource_type, pattern_type, operation, permission)
