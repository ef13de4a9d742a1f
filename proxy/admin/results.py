"""Results of a request with several items: a value or an error each (KIP-140, KIP-888)."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.acl.model import Acl, AclFilter
from proxy.admin.errors import KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAcls:
    """Result of one filter. An empty result is no error."""

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


@dataclass(frozen=True, slots=True)
class CreateAclsResult:
    """Result of CreateAcls, by ACL."""

    errors: Mapping[Acl, KafkaError | None]
    """Error of each ACL; None if the ACL exists now, whether or not it did before."""

    def values(self) -> Mapping[Acl, KafkaError | None]:
        """Return the error of each ACL; None for success."""
        return self.errors

    def all(self) -> None:
        """Raise the first error, if there is one."""
        for error in self.errors.values():
            if error is not None:
                raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedAcl:
    """ACL that a filter matched."""

    acl: Acl
    error: KafkaError | None = None
    """Reason for which it could not be deleted; None if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Result of one filter. An empty result is no error."""

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
