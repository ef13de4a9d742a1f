"""DescribeAcls v4 (KIP-888): the answers to many filters at once, from the store.

- Each filter has the result that it would have had alone, in v3, its own error included.
- Where v3 refuses the request, each filter of v4 is refused: a response has no error of its own.
- A request that does not parse, whose list of filters is null, or that has more than `MAX_FILTERS`
  is answered with a single result, INVALID_REQUEST, and the connection lives on. (v0 to v3 close it
  for what does not parse, as Kafka does.)
- Results come in the order of the filters until they would exceed `MAX_RESULT_BYTES`. The filter
  with which they would, and all behind it, have POLICY_VIOLATION; a client asks for them again.

What needs the store is done at once, and belongs in a thread; the rest are steps.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from proxy.acl.index import AclIndex
from proxy.acl.model import AclFilter
from proxy.acl.search import Found, find_in_steps
from proxy.acl.validation import (
    DISABLED_TO_DESCRIBE,
    UNAUTHORIZED,
    Refusal,
    filter_refusal,
    invalid,
)
from proxy.handlers.acl_changes import Acls
from proxy.handlers.acl_requests import filter_of, has_code_0
from proxy.handlers.acl_responses import DescribeBatch, Place, batch_refusal
from proxy.scheduling.steps import MASK, Steps
from proxy.wire.batch_describe import (
    MAX_FILTERS,
    MAX_RESULT_BYTES,
    PRINCIPAL,
    AclFilterParts,
    acl_filter_count,
    acl_filters,
)
from proxy.wire.primitives import Malformed

_MALFORMED: Final = invalid("The request cannot be read.")
_TOO_MANY: Final = invalid(f"More than {MAX_FILTERS} filters.")
_MIN_ACL_SIZE: Final = 6
"""Bytes in a response: a principal, which has a colon, a host, two codes, no tags."""


def begin(
    body: bytes, acls: Acls | None, *, authorized: bool, most_bytes: int = MAX_RESULT_BYTES
) -> bytes | Steps[bytes]:
    """Answer a request, from body to body, or return how. `acls`: None if the authorizer is off.

    Raises StoreError.
    """
    try:
        count = acl_filter_count(body)
    except Malformed:
        return batch_refusal(1, _MALFORMED)
    if count > MAX_FILTERS:
        return batch_refusal(1, _TOO_MANY)
    if acls is None or not authorized:
        return batch_refusal(count, DISABLED_TO_DESCRIBE if acls is None else UNAUTHORIZED)
    return _described(body, acls.current(), most_bytes)


def _described(body: bytes, index: AclIndex, most_bytes: int) -> Steps[bytes]:
    try:
        filters = yield from acl_filters(body)
    except Malformed:
        return batch_refusal(1, _MALFORMED)
    refused, found = yield from _results(index, filters, most_bytes // _MIN_ACL_SIZE)
    made = DescribeBatch(len(filters), most_bytes=most_bytes)
    too_large = Refusal(
        ErrorCode.policy_violation,
        f"The results would take more than {most_bytes} bytes. Ask for fewer at once.",
    )
    places: dict[AclFilterParts, Place] = {}
    is_full = False
    for asked in filters:
        yield
        if asked in refused:
            made.refuse(refused[asked])
            continue
        is_full = is_full or not (yield from _added(made, asked, found, places))
        if is_full:
            made.refuse(too_large)
    return made.body()


def _results(
    index: AclIndex, filters: Sequence[AclFilterParts], most: int
) -> Steps[tuple[Mapping[AclFilterParts, Refusal], Mapping[AclFilterParts, Found]]]:
    """Return why filters are refused, and what the others find, but for those that cannot fit."""
    refused: dict[AclFilterParts, Refusal] = {}
    valid: dict[AclFilterParts, AclFilter] = {}
    found: dict[AclFilterParts, Found] = {}
    for number, asked in enumerate(filters):
        if not number & MASK:
            yield
        if asked in valid:
            continue
        wanted = filter_of(asked)
        refusal = filter_refusal(wanted)
        if refusal is None:
            valid[asked] = wanted
        elif has_code_0(asked):
            refused[asked] = refusal
        else:
            found[asked] = ()  # a code of a later Kafka, of which there can be no ACLs
    results = yield from find_in_steps(index, [*valid.values()], most)
    for number, (asked, result) in enumerate(zip(valid, results, strict=False)):
        if not number & MASK:
            yield
        found[asked] = result
    return refused, found


def _added(
    made: DescribeBatch,
    asked: AclFilterParts,
    found: Mapping[AclFilterParts, Found],
    places: dict[AclFilterParts, Place],
) -> Steps[bool]:
    """Whether there is room for a result, which is then added."""
    if asked in places:
        return (yield from made.repeat(places[asked]))
    if asked not in found:
        return False
    principal = asked[PRINCIPAL]
    if (place := (yield from made.add(found[asked], principal))) is None:
        return False
    places[asked] = place
    return True
