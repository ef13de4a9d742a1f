"""Messages and results of the ACL APIs: v0 to v3, and DescribeAcls v4 (KIP-140, KIP-888)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import filter_refusal
from proxy.admin.errors import (
    ChangeResult,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
    kafka_error,
)
from proxy.wire import messages
from proxy.wire.apis import ACLS_BATCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAcls:
    """Result of one filter. An empty result is valid."""

    acls: tuple[Acl, ...] = ()
    error: KafkaError | None = None
    """Reason for which the filter could not be applied, so that there are no ACLs; None if it was
    applied."""

    def values(self) -> tuple[Acl, ...]:
        """Return the ACLs. Raises the filter's error."""
        if self.error is not None:
            raise self.error
        return self.acls


@dataclass(frozen=True, slots=True)
class DescribeAclsResult:
    """Results of all filters, as KIP-888 defines them."""

    results: Mapping[AclFilter, DescribedAcls]

    def values(self) -> tuple[Acl, ...]:
        """Return the ACLs of the only filter. Raises its error.

        With several filters, see `all_values` or `all`.
        """
        if len(self.results) != 1:
            raise ValueError(f"values() needs one filter, and there are {len(self.results)}")
        (result,) = self.results.values()
        return result.values()

    def all_values(self) -> Mapping[AclFilter, DescribedAcls]:
        """Return the result of each filter."""
        return self.results

    def all(self) -> Mapping[AclFilter, tuple[Acl, ...]]:
        """Return the ACLs of each filter. Raises the first error, if there is one."""
        return {wanted: result.values() for wanted, result in self.results.items()}


CreateAclsResult = ChangeResult[Acl]
"""Result of CreateAcls; an ACL has no error if it exists now, whether or not it did before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedAcl:
    """ACL that a filter matched."""

    acl: Acl
    error: KafkaError | None = None
    """Reason for which it could not be deleted; None if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Result of one filter. An empty result is valid."""

    matches: tuple[DeletedAcl, ...] = ()
    error: KafkaError | None = None
    """Reason for which the filter could not be applied, so that there are no matches; None if it
    was applied."""

    def values(self) -> tuple[Acl, ...]:
        """Return the deleted ACLs. Raises the filter's error, or the first of a match."""
        if self.error is not None:
            raise self.error
        for match in self.matches:
            if match.error is not None:
                raise match.error
        return tuple(match.acl for match in self.matches)


@dataclass(frozen=True, slots=True)
class DeleteAclsResult:
    """Results of all filters of DeleteAcls."""

    results: Mapping[AclFilter, FilterResult]

    def values(self) -> Mapping[AclFilter, FilterResult]:
        """Return the result of each filter."""
        return self.results

    def all(self) -> tuple[Acl, ...]:
        """Return all deleted ACLs, each once. Raises the first error, if there is one."""
        deleted: dict[Acl, None] = {}
        for result in self.results.values():
            deleted |= dict.fromkeys(result.values())
        return tuple(deleted)


VERSIONS: Final = (0, 3)
"""Lowest and highest version of CreateAcls and DeleteAcls that this module understands."""
DESCRIBE_VERSIONS: Final = (0, ACLS_BATCHED)
"""Lowest and highest version of DescribeAcls that this module understands."""

_FIRST_WITH_PATTERN_TYPE: Final = 1
_LITERAL_ONLY: Final = "the broker supports literal patterns only"


def describe_request(api_version: int, wanted: AclFilter) -> messages.DescribeAclsRequest:
    """Return a DescribeAcls request, v0 to v3. Raises UnsupportedVersion."""
    return messages.DescribeAclsRequest(**_filter_fields(api_version, wanted))


def batch_request(filters: Iterable[AclFilter]) -> messages.DescribeAclsRequest:
    """Return a DescribeAcls request for many filters, v4."""
    item = messages.DescribeAclsRequest.DescribeAclsFilter
    items = (item(**_filter_fields(ACLS_BATCHED, one)) for one in filters)
    return messages.DescribeAclsRequest(filters=tuple(items))


def invalid_filter(wanted: AclFilter) -> DescribedAcls | None:
    """Return the error of a filter that must not be sent, because a part is UNKNOWN; else None."""
    if refusal := filter_refusal(wanted):
        return DescribedAcls(error=InvalidRequest(refusal.message))
    return None


def described(
    response: messages.DescribeAclsResponse
    | messages.DescribeAclsResponse.DescribeAclsFilterResult,
) -> DescribedAcls:
    """Return the ACLs in a response of v0 to v3, or in a filter's result of v4, or its error."""
    if error := kafka_error(response.error_code, response.error_message):
        return DescribedAcls(error=error)
    return DescribedAcls(
        acls=tuple(_acl(resource, acl) for resource in response.resources for acl in resource.acls)
    )


def create_request(api_version: int, acls: list[Acl]) -> messages.CreateAclsRequest:
    """Return a CreateAcls request. Raises UnsupportedVersion."""
    older = api_version < _FIRST_WITH_PATTERN_TYPE
    if older and any(acl.pattern_type is not PatternType.LITERAL for acl in acls):
        raise UnsupportedVersion(_LITERAL_ONLY)
    creations = (
        messages.CreateAclsRequest.AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    )
    return messages.CreateAclsRequest(creations=tuple(creations))


def delete_request(api_version: int, filters: list[AclFilter]) -> messages.DeleteAclsRequest:
    """Return a DeleteAcls request. Raises UnsupportedVersion."""
    item = messages.DeleteAclsRequest.DeleteAclsFilter
    items = (item(**_filter_fields(api_version, one)) for one in filters)
    return messages.DeleteAclsRequest(filters=tuple(items))


def filter_result(result: messages.DeleteAclsResponse.DeleteAclsFilterResult) -> FilterResult:
    """Return the result of one filter of DeleteAcls."""
    return FilterResult(
        error=kafka_error(result.error_code, result.error_message),
        matches=tuple(
            DeletedAcl(
                acl=_acl(match, match), error=kafka_error(match.error_code, match.error_message)
            )
            for match in result.matching_acls
        ),
    )


def _filter_fields(api_version: int, wanted: AclFilter) -> dict[str, Any]:
    pattern_type = wanted.pattern_type
    if api_version < _FIRST_WITH_PATTERN_TYPE:
        if pattern_type not in (PatternType.LITERAL, PatternType.ANY):
            raise UnsupportedVersion(_LITERAL_ONLY)
        pattern_type = PatternType.LITERAL
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _acl(
    resource: messages.DescribeAclsResponse.DescribeAclsResource
    | messages.DeleteAclsResponse.DeleteAclsMatchingAcl,
    entry: messages.DescribeAclsResponse.AclDescription
    | messages.DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> Acl:
    return Acl(
        ResourceType(resource.resource_type),
        PatternType(resource.pattern_type),
        resource.resource_name,
        entry.principal,
        entry.host,
        Operation(entry.operation),
        Permission(entry.permission_type),
    )
