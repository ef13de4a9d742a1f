"""DescribeAcls v0-v4, CreateAcls and DeleteAcls v0-v3 (KIP-140, 290, 888), from the store.

Responses and their messages are those of a running Kafka 4.1. Deliberate differences:

- Like unknown codes, the code 0 (UNKNOWN) is INVALID_REQUEST for its item; Kafka closes the
  connection.
- ANY and MATCH in a creation are INVALID_REQUEST for their item; Kafka fails the whole request.
- A creation with an empty host is INVALID_REQUEST, as in Kafka 4.4.
- A denial has one fixed message; Kafka's contains the server's internal objects.
- The work for the filters of one DeleteAcls is bounded: see the constants.

Pure except for the store, whose writes wait for the disk. Large requests take long, so call
`answer` in a thread. It never holds the interpreter lock for long: it avoids large sorts and
creates few objects.

DescribeAcls v4 answers many filters at once:

- Each filter has the same result, or error, as a v3 request with only this filter.
- Where v3 refuses the request, v4 refuses each filter, because its response has no error of its
  own.
- A request that does not parse, whose list of filters is null, or that has more than `MAX_FILTERS`
  is answered with a single result, INVALID_REQUEST, and the connection stays open. (In v0 to v3 a
  request that does not parse closes it, as in Kafka.)
- Results come in the order of the filters until they would exceed `MAX_RESULT_BYTES`. The filter
  that would exceed it and all later ones have POLICY_VIOLATION; the client must send them again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from proxy.acl.index import AclIndex
from proxy.acl.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    exactly,
)
from proxy.acl.validation import (
    DISABLED,
    DISABLED_TO_DESCRIBE,
    UNAUTHORIZED,
    Refusal,
    creation_refusal,
    filter_refusal,
    invalid,
)
from proxy.errors import ClientFault
from proxy.handlers import acl_responses
from proxy.handlers.acl_responses import FIRST_FLEXIBLE, DescribeBatch, Place, refusal_of_all
from proxy.scheduling.steps import pause
from proxy.store import Store
from proxy.store.interface import StoreError, refusal_of
from proxy.wire.apis import (
    ACLS_BATCHED,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    MAX_FILTERS,
    MAX_RESULT_BYTES,
    acl_filter_count,
)
from proxy.wire.codec import decode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from proxy.wire.primitives import Malformed, array_length

AclFilterParts = tuple[int, str | None, int, str | None, str | None, int, int]
"""Fields of a filter, in their order."""


def acl_of(creation: CreateAclsRequest.AclCreation) -> Acl:
    """Return the ACL of one creation."""
    return Acl(
        ResourceType(creation.resource_type),
        PatternType(creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        Operation(creation.operation),
        Permission(creation.permission_type),
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
        resource_type=ResourceType(resource_type),
        pattern_type=PatternType(pattern_type),
        name=name,
        principal=principal,
        host=host,
        operation=Operation(operation),
        permission=Permission(permission),
    )


def has_code_0(parts: AclFilterParts) -> bool:
    """Return whether a filter has the code 0, which DescribeAcls refuses.

    DescribeAcls accepts other unknown codes, which a later Kafka may define: no stored ACL has
    them.
    """
    resource_type, _, pattern_type, _, _, operation, permission = parts
    return 0 in (resource_type, pattern_type, operation, permission)


class Acls(NamedTuple):
    """Access to the ACLs of the store."""

    store: Store
    current: Callable[[], AclIndex]
    """Reads the ACLs from the store, puts them in force in this process, and returns them. Raises
    StoreError."""

    def create(self, acls: Sequence[Acl]) -> Refusal | None:
        """Add the missing ACLs. Return the reason if some are still missing, otherwise None."""
        return self._change(lambda: self.store.create_acls(acls))

    def delete(self, acls: Iterable[Acl]) -> Refusal | None:
        """Remove the existing ACLs. Return the reason if some remain, otherwise None."""
        return self._change(lambda: self.store.delete_acls([exactly(acl) for acl in acls]))

    def _change(self, change: Callable[[], object]) -> Refusal | None:
        refusal = None
        try:
            change()
        except StoreError as problem:
            refusal = Refusal(*refusal_of(problem))
        # The change is stored, and takes effect when the store can be read again
        with suppress(StoreError):
            self.current()
        return refusal


_MALFORMED: Final = invalid("The request cannot be read.")
_TOO_MANY: Final = invalid(f"More than {MAX_FILTERS} filters.")


def answer_batch(
    body: bytes, acls: Acls | None, *, authorized: bool, max_bytes: int = MAX_RESULT_BYTES
) -> bytes | Callable[[], bytes]:
    """Return the response body, or a function that returns it but may take long.

    Pass None for `acls` if the authorizer is off. Raises StoreError.
    """
    try:
        count = acl_filter_count(body)
    except Malformed:
        return _refusal(1, _MALFORMED)
    if count > MAX_FILTERS:
        return _refusal(1, _TOO_MANY)
    if acls is None or not authorized:
        return _refusal(count, DISABLED_TO_DESCRIBE if acls is None else UNAUTHORIZED)
    return partial(_described, body, acls.current(), max_bytes)


def _refusal(count: int, refusal: Refusal) -> bytes:
    return refusal_of_all(ACLS_BATCHED, count, refusal, lists_matches=True)


def _described(body: bytes, index: AclIndex, max_bytes: int) -> bytes:
    try:
        filters = decode(DescribeAclsRequest, ACLS_BATCHED, body).filters
    except Malformed:
        return _refusal(1, _MALFORMED)
    made = DescribeBatch(len(filters), max_bytes=max_bytes)
    too_large = Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"The results would take more than {max_bytes} bytes. Ask for fewer at once.",
    )
    places: dict[AclFilterParts, Place] = {}
    is_full = False
    for one in filters:
        pause()
        queried = filter_parts(one)
        refusal = filter_refusal(filter_of(queried)) if has_code_0(queried) else None
        if refusal is None:
            is_full = is_full or not _added(made, queried, index, places)
            refusal = too_large if is_full else None
        if refusal is not None:
            made.refuse(refusal)
    return made.body()


def _added(
    made: DescribeBatch,
    queried: AclFilterParts,
    index: AclIndex,
    places: dict[AclFilterParts, Place],
) -> bool:
    """Add a result if it fits; return whether it did."""
    if queried in places:
        return made.repeat(places[queried])
    wanted = filter_of(queried)
    # a refused filter has a code of a later Kafka, which no stored ACL can have
    found = () if filter_refusal(wanted) else index.matching(wanted)
    if (place := made.add(found)) is None:
        return False
    places[queried] = place
    return True


MAX_ITEMS: Final = 10_000
"""Maximum number of creations, filters, or ACLs deleted per request: Kafka's limit of records per
operation (`QuorumController.MAX_RECORDS_PER_USER_OP`)."""
MAX_REPORTED: Final = 100_000
"""Maximum number of matches in one DeleteAcls response. Several filters may match the same ACL."""
MAX_SEARCHES: Final = 100
"""Maximum number of filters of one DeleteAcls that do not name a resource, and may therefore search
very many ACLs."""

_TOO_LARGE: Final = Refusal(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)
_TOO_MANY_DELETED: Final = invalid(
    f"Cannot remove more than {MAX_ITEMS} acls in a single delete operation."
)


def answer(
    api_key: int, api_version: int, body: bytes, acls: Acls | None, *, authorized: bool
) -> bytes | Callable[[], bytes]:
    """Return the response body for a request to one of the three APIs, or a function that returns
    it but may take long. The function does not use the store, raises no errors, and may run on
    another thread.

    Pass None for `acls` if the authorizer is off. `authorized` is True if the principal has
    Describe or Alter, as the API requires, on the cluster. Raises ClientFault, and StoreError for
    requests that only read; then nothing was changed. Changes are in force in this process on
    return.
    """
    try:
        if api_key == DESCRIBE_ACLS:
            return _describe(api_version, body, acls, authorized=authorized)
        count = _item_count(api_version, body)
        if acls is None:
            refusal = DISABLED
        elif not authorized:
            refusal = UNAUTHORIZED
        elif count > MAX_ITEMS:
            refusal = _TOO_LARGE
        elif api_key == CREATE_ACLS:
            return _create(api_version, body, acls)
        else:
            assert api_key == DELETE_ACLS
            return _delete(api_version, body, acls)
        return refusal_of_all(
            api_version,
            count,
            refusal,
            lists_matches=api_key == DELETE_ACLS,
            with_message=count <= MAX_ITEMS,
        )
    except Malformed as error:
        raise ClientFault("the request does not parse") from error


def _describe(
    api_version: int, body: bytes, acls: Acls | None, *, authorized: bool
) -> bytes | Callable[[], bytes]:
    if api_version >= ACLS_BATCHED:
        return answer_batch(body, acls, authorized=authorized)
    request = decode(DescribeAclsRequest, api_version, body)
    if acls is None:
        return acl_responses.describe_refusal(api_version, DISABLED_TO_DESCRIBE)
    if not authorized:
        return acl_responses.describe_refusal(api_version, UNAUTHORIZED)
    parts = filter_parts(request)
    wanted = filter_of(parts)
    if refusal := filter_refusal(wanted):
        if has_code_0(parts):
            return acl_responses.describe_refusal(api_version, refusal)
        return acl_responses.describe_body(api_version, ())
    found = acls.current().matching(wanted)
    return partial(acl_responses.describe_body, api_version, found)


def _create(api_version: int, body: bytes, acls: Acls) -> bytes:
    request = decode(CreateAclsRequest, api_version, body)
    wanted = [acl_of(creation) for creation in request.creations]
    results = [creation_refusal(acl) for acl in wanted]
    accepted = [acl for acl, wrong in zip(wanted, results, strict=True) if wrong is None]
    if accepted and (refusal := acls.create(accepted)):
        results = [wrong or refusal for wrong in results]
    return acl_responses.create_body(api_version, results)


def _delete(api_version: int, body: bytes, acls: Acls) -> bytes:
    request = decode(DeleteAclsRequest, api_version, body)
    try:
        deletion = _Deletion(acls.current())
    except StoreError as problem:
        unread = Refusal(*refusal_of(problem))
        return refusal_of_all(api_version, len(request.filters), unread, lists_matches=True)
    wanted = (filter_of(filter_parts(item)) for item in request.filters)
    results = [deletion.result(one) for one in wanted]
    if deletion.found and (refusal := acls.delete(deletion.found)):
        results = [
            refusal if found and not isinstance(found, Refusal) else found for found in results
        ]
    return acl_responses.delete_body(api_version, results)


def _item_count(api_version: int, body: bytes) -> int:
    """Return the number of items without creating objects for them. Raises Malformed."""
    count, position = array_length(body, 0, api_version >= FIRST_FLEXIBLE)
    if count * _MIN_ITEM_SIZE > len(body) - position:
        raise Malformed("more items than bytes for them")
    return count


_MIN_ITEM_SIZE: Final = 7
"""Minimum size of an item in bytes: three codes, three strings of at least one byte, and the end of
a flexible item."""


class _Deletion:
    """Filters of one DeleteAcls request, each applied to the ACLs as they were before the
    request."""

    def __init__(self, index: AclIndex) -> None:
        self._index = index
        self._reported = 0
        self._searches = 0
        self._results: dict[AclFilter, Refusal | Sequence[Acl]] = {}
        self.found: dict[Acl, None] = {}
        """ACLs to be deleted, as the keys of an ordered set."""

    def result(self, wanted: AclFilter) -> Refusal | Sequence[Acl]:
        """Return the ACLs that the filter matches, or the reason why it is refused."""
        if refusal := filter_refusal(wanted):
            return refusal
        result = self._results.get(wanted)
        if result is None:
            result = self._results[wanted] = self._search(wanted)
        if isinstance(result, Refusal):
            return result
        if self._reported + len(result) > MAX_REPORTED:
            return _TOO_LARGE
        self._reported += len(result)
        self.found |= dict.fromkeys(result)
        return result

    def _search(self, wanted: AclFilter) -> Refusal | Sequence[Acl]:
        if wanted.name is None:
            self._searches += 1
            if self._searches > MAX_SEARCHES:
                return _TOO_LARGE
        matches = tuple(self._index.matching(wanted))
        more = sum(acl not in self.found for acl in matches)
        return matches if len(self.found) + more <= MAX_ITEMS else _TOO_MANY_DELETED
