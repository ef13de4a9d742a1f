"""DescribeAcls v4 (KIP-888): the answers to many filters at once, from the proxy's store.

- Each filter has the result that it would have had alone, in v3, its own error included.
- Where v3 refuses the request, each filter of v4 is refused: a response has no error of its own.
- A request that does not parse, whose list of filters is null, or that has more than `MOST_FILTERS`
  is answered with a single result, INVALID_REQUEST, and the connection lives on. (v0 to v3 close it
  for what does not parse, as Kafka does.)
- Results come in the order of the filters until they would exceed `MOST_RESULT_BYTES`. The filter
  with which they would, and all behind it, have POLICY_VIOLATION; a client asks for them again.

Call it in a thread, as `proxy.acl.api`: nothing in it holds Python's lock for long.
"""

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from proxy.acl.answers import DescribeBatch, Place, batch_refusal
from proxy.acl.asked import acl_filter, describe_refusal
from proxy.acl.checks import (
    DISABLED_TO_DESCRIBE,
    UNAUTHORIZED,
    Refusal,
    filter_refusal,
    invalid,
)
from proxy.acl.search import Found, find_each
from proxy.acl.stored import Acls
from proxy.wire.batch_describe import (
    ACLS_BATCHED,
    MOST_FILTERS,
    MOST_RESULT_BYTES,
    DescribeAclsFilter,
    DescribeAclsRequest,
    acl_filter_count,
)
from proxy.wire.codec import decode
from proxy.wire.primitives import Malformed

_MALFORMED: Final = invalid("The request cannot be read.")
_TOO_MANY: Final = invalid(f"More than {MOST_FILTERS} filters.")
_LEAST_ACL_SIZE: Final = 6
"""Bytes in a response: a principal, which has a colon, a host, two codes, no tags."""


def answer(
    body: bytes, acls: Acls | None, *, authorized: bool, most_bytes: int = MOST_RESULT_BYTES
) -> bytes:
    """Answer a request, from body to body. `acls`: None if the authorizer is off.

    Raises StoreError.
    """
    try:
        count = acl_filter_count(body)
        if count > MOST_FILTERS:
            return batch_refusal(1, _TOO_MANY)
        if acls is None or not authorized:
            return batch_refusal(count, DISABLED_TO_DESCRIBE if acls is None else UNAUTHORIZED)
        request = decode(DescribeAclsRequest, body)
    except Malformed:
        return batch_refusal(1, _MALFORMED)
    return _described(request, acls, most_bytes)


def _described(request: DescribeAclsRequest, acls: Acls, most_bytes: int) -> bytes:
    wanted = {asked: acl_filter(asked, ACLS_BATCHED) for asked in request.filters}
    valid = {asked: one for asked, one in wanted.items() if filter_refusal(one) is None}
    found: dict[DescribeAclsFilter, Found] = {
        asked: () for asked in wanted if asked not in valid
    }  # codes of a later Kafka, of which there can be no ACLs
    most = most_bytes // _LEAST_ACL_SIZE
    results = find_each(acls.current(), [*valid.values()], most)
    found |= zip(valid, results, strict=False)  # without those that cannot fit
    made = DescribeBatch(len(request.filters), most_bytes=most_bytes)
    too_large = Refusal(
        ErrorCode.policy_violation,
        f"The results would take more than {most_bytes} bytes. Ask for fewer at once.",
    )
    places: dict[DescribeAclsFilter, Place] = {}
    is_full = False
    for asked in request.filters:
        if refusal := describe_refusal(asked, ACLS_BATCHED):
            made.refuse(refusal)
            continue
        is_full = is_full or not _added(made, asked, found, places)
        if is_full:
            made.refuse(too_large)
    return made.body()


def _added(
    made: DescribeBatch,
    asked: DescribeAclsFilter,
    found: Mapping[DescribeAclsFilter, Found],
    places: dict[DescribeAclsFilter, Place],
) -> bool:
    """Whether there is room for a result, which is then added."""
    if asked in places:
        return made.repeat(places[asked])
    if asked not in found or (place := made.add(found[asked])) is None:
        return False
    places[asked] = place
    return True
