"""DescribeAcls v4 (KIP-888): the answers to many filters at once, from the store.

- Each filter has the result that it would have had alone, in v3, its own error included.
- Where v3 refuses the request, each filter of v4 is refused: a response has no error of its own.
- A request that does not parse, whose list of filters is null, or that has more than `MAX_FILTERS`
  is answered with a single result, INVALID_REQUEST, and the connection stays open. (In v0 to v3 a
  request that does not parse closes it, as in Kafka.)
- Results come in the order of the filters until they would exceed `MAX_RESULT_BYTES`. The filter
  that would exceed it, and all after it, have POLICY_VIOLATION; a client sends them again.

`answer` uses the store and must run in a thread; the function that it returns needs no store.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from proxy.acl.index import AclIndex
from proxy.acl.validation import (
    DISABLED_TO_DESCRIBE,
    UNAUTHORIZED,
    Refusal,
    filter_refusal,
    invalid,
)
from proxy.handlers.acl_changes import Acls
from proxy.handlers.acl_requests import AclFilterParts, filter_of, filter_parts, has_code_0
from proxy.handlers.acl_responses import DescribeBatch, Place, refusal_of_all
from proxy.scheduling.stepped_thread import pause
from proxy.wire.batch_describe import (
    ACLS_BATCHED,
    MAX_FILTERS,
    MAX_RESULT_BYTES,
    acl_filter_count,
)
from proxy.wire.codec import decode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import DescribeAclsRequest
from proxy.wire.primitives import Malformed

_MALFORMED: Final = invalid("The request cannot be read.")
_TOO_MANY: Final = invalid(f"More than {MAX_FILTERS} filters.")


def answer(
    body: bytes, acls: Acls | None, *, authorized: bool, max_bytes: int = MAX_RESULT_BYTES
) -> bytes | Callable[[], bytes]:
    """Return the response body, or the function that makes it in a long time.

    `acls` is None if the authorizer is off. Raises StoreError.
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
    # a refused one has a code of a later Kafka: no stored ACL can have it
    found = () if filter_refusal(wanted) else index.matching(wanted)
    if (place := made.add(found)) is None:
        return False
    places[queried] = place
    return True
