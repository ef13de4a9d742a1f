"""DescribeAcls, CreateAcls and DeleteAcls v0 to v3 (KIP-140, KIP-290), from the store.

`proxy.handlers.acl_batch` answers DescribeAcls v4.

Answers are Kafka's, seen on a running Kafka 4.1, down to its sentences. Deliberate differences:

- The code 0 (UNKNOWN) is INVALID_REQUEST for its item, as unknown codes are; Kafka closes the
  connection.
- ANY and MATCH in a creation are INVALID_REQUEST for their item; Kafka fails the whole request.
- A creation with an empty host is INVALID_REQUEST, as in Kafka 4.4.
- A denial has one fixed sentence; Kafka's prints the server's internal objects.
- The work that the filters of one DeleteAcls cause is bounded: see the constants.

Pure except for the store, whose writes wait for the disk; large requests take long, so `answer`
is called in a thread. It does not hold the interpreter lock for long: no large sort, few objects.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter
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
from proxy.handlers import acl_batch, acl_responses
from proxy.handlers.acl_changes import Acls
from proxy.handlers.acl_requests import acl_of, filter_of, filter_parts, has_code_0
from proxy.handlers.acl_resources import FIRST_FLEXIBLE
from proxy.store.interface import StoreError, refusal_of
from proxy.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from proxy.wire.batch_describe import ACLS_BATCHED
from proxy.wire.codec import decode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from proxy.wire.primitives import Malformed, array_length

MAX_ITEMS: Final = 10_000
"""Maximum number of creations, filters, or ACLs deleted per request: Kafka's limit of records per
operation (`QuorumController.MAX_RECORDS_PER_USER_OP`)."""
MAX_REPORTED: Final = 100_000
"""Maximum number of matches in one DeleteAcls response; several filters may report the same ACL."""
MAX_SEARCHES: Final = 100
"""Maximum number of filters of one DeleteAcls that name no resource, and so search very many
ACLs."""

_TOO_LARGE: Final = Refusal(
    ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
)
_TOO_MANY_DELETED: Final = invalid(
    f"Cannot remove more than {MAX_ITEMS} acls in a single delete operation."
)


def answer(
    api_key: int,
    api_version: int,
    body: bytes,
    acls: Acls | None,
    *,
    may_describe: bool,
    may_alter: bool,
) -> bytes | Callable[[], bytes]:
    """Return the response body to a request body of one of the three APIs, or the function that
    makes it in a long time; that one needs no store, raises nothing, and may run on another thread.

    `acls` is None if the authorizer is off. `may_describe` and `may_alter` say whether the
    principal may Describe, and Alter, the cluster. Raises ClientFault, and, for requests that only
    read, StoreError; then nothing was changed. Changes are in force in this process when it
    returns.
    """
    try:
        if api_key == DESCRIBE_ACLS:
            return _describe(api_version, body, acls, authorized=may_describe)
        if api_key == CREATE_ACLS:
            return _create(api_version, body, acls, authorized=may_alter)
        assert api_key == DELETE_ACLS
        return _delete(api_version, body, acls, authorized=may_alter)
    except Malformed as error:
        raise ClientFault("the request does not parse") from error


def _describe(
    api_version: int, body: bytes, acls: Acls | None, *, authorized: bool
) -> bytes | Callable[[], bytes]:
    if api_version >= ACLS_BATCHED:
        return acl_batch.answer(body, acls, authorized=authorized)
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


def _create(api_version: int, body: bytes, acls: Acls | None, *, authorized: bool) -> bytes:
    count = _item_count(api_version, body)
    if refusal := _refusal_of_all(count, acls, authorized=authorized):
        return acl_responses.refusal_of_all(
            api_version, count, refusal, lists_matches=False, with_message=count <= MAX_ITEMS
        )
    assert acls is not None
    request = decode(CreateAclsRequest, api_version, body)
    wanted = [acl_of(creation) for creation in request.creations]
    results = [creation_refusal(acl) for acl in wanted]
    accepted = [acl for acl, wrong in zip(wanted, results, strict=True) if wrong is None]
    if accepted and (refusal := acls.create(accepted)):
        results = [wrong or refusal for wrong in results]
    return acl_responses.create_body(api_version, results)


def _delete(api_version: int, body: bytes, acls: Acls | None, *, authorized: bool) -> bytes:
    count = _item_count(api_version, body)
    if refusal := _refusal_of_all(count, acls, authorized=authorized):
        return acl_responses.refusal_of_all(
            api_version, count, refusal, lists_matches=True, with_message=count <= MAX_ITEMS
        )
    assert acls is not None
    request = decode(DeleteAclsRequest, api_version, body)
    try:
        deletion = _Deletion(acls.current())
    except StoreError as problem:
        refusal = Refusal(*refusal_of(problem))
        return acl_responses.refusal_of_all(api_version, count, refusal, lists_matches=True)
    wanted = (filter_of(filter_parts(item)) for item in request.filters)
    results = [deletion.result(one) for one in wanted]
    if deletion.found and (refusal := acls.delete(deletion.found)):
        results = [
            refusal if found and not isinstance(found, Refusal) else found for found in results
        ]
    return acl_responses.delete_body(api_version, results)


def _item_count(api_version: int, body: bytes) -> int:
    """Return the number of items, before any object is made of them. Raises Malformed."""
    count, position = array_length(body, 0, api_version >= FIRST_FLEXIBLE)
    if count * _MIN_ITEM_SIZE > len(body) - position:
        raise Malformed("more items than bytes for them")
    return count


_MIN_ITEM_SIZE: Final = 7
"""Minimum size of an item in bytes: three codes, three strings of at least a byte, and the end of a
flexible item."""


def _refusal_of_all(count: int, acls: Acls | None, *, authorized: bool) -> Refusal | None:
    if acls is None:
        return DISABLED
    if not authorized:
        return UNAUTHORIZED
    return _TOO_LARGE if count > MAX_ITEMS else None


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
        """Return the ACLs that the filter matches, or the reason for which it is not applied."""
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
