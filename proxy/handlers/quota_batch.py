"""DescribeClientQuotas v2 (KIP-888): the answers to many filters at once, from the store.

- Each filter has the result that it would have had alone, in v1, its own error included.
- Without the permission, each filter is refused: a response has no error of its own.
- A request that does not parse, whose list of filters is null, or that has more than `MAX_FILTERS`
  (or `MAX_ITEMS` in all) is answered with a single result, INVALID_REQUEST, and the connection
  stays open.
- Results come in the order of the filters until they would exceed `MAX_RESULT_BYTES`. The filter
  that would exceed it, and all after it, have POLICY_VIOLATION; a client sends them again.

The quotas are read once. Filters with the same entity types, and the same choice of names or any
name for each, share a table keyed by these names: each entity is looked up once per table.

Called in a thread, as `proxy.handlers.quotas`; it does not hold the interpreter lock for long.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from io import BytesIO
from operator import itemgetter
from sys import maxsize
from typing import Final, NamedTuple

from proxy.handlers.quota_requests import (
    UNAUTHORIZED,
    Filter,
    QuotaRefusal,
    entry_of,
    filter_of,
)
from proxy.quota.model import Default, EntityType, QuotaEntity, Quotas
from proxy.quota.store import QuotaStore
from proxy.wire.batch_describe import (
    MAX_FILTERS,
    MAX_RESULT_BYTES,
    QUOTAS_BATCHED,
    quota_filter_count,
)
from proxy.wire.codec import decode_bounded, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import DescribeClientQuotasRequest
from proxy.wire.primitives import (
    INT16,
    INT32,
    Malformed,
    write_array_length,
    write_null_string,
    write_string,
)

MAX_ITEMS: Final = 3 * MAX_FILTERS
"""Maximum number of filters, components and tagged fields together: enough for `MAX_FILTERS`
filters of two components."""
_RUN: Final = 1_000
"""Number of entities that are sorted in one step, which takes less than a millisecond."""
_NO_ERROR: Final = INT16.pack(0) + write_string("", flexible=True)
_NULL_ENTRIES: Final = b"\0"
_TAGS: Final = b"\0"
_MIN_RESULT: Final = len(_NO_ERROR) + 5 + len(_TAGS)
"""Minimum size of a result in bytes, with the longest encoding of an array's length."""
_HEAD: Final = INT32.pack(0)
"""Encoded beginning of the body: throttle_time_ms 0."""


def answer(
    body: bytes, store: QuotaStore, *, authorized: bool, max_bytes: int = MAX_RESULT_BYTES
) -> bytes:
    """Return the response body. `authorized` says whether the principal may DescribeConfigs on the
    cluster. Raises StoreError.
    """
    try:
        count = quota_filter_count(body)
        if count > MAX_FILTERS:
            return _all_alike(1, _refused(ErrorCode.INVALID_REQUEST, _TOO_MANY))
        if not authorized:
            return _all_alike(count, _refused(UNAUTHORIZED[0], None))
        request = decode_bounded(
            DescribeClientQuotasRequest,
            QUOTAS_BATCHED,
            body,
            max_bytes=maxsize,
            max_values=MAX_ITEMS,
        )
    except Malformed:
        return _all_alike(1, _refused(ErrorCode.INVALID_REQUEST, "The request cannot be read."))
    return _described(request, store.quota_snapshot().quotas, max_bytes)


_TOO_MANY: Final = f"More than {MAX_FILTERS} filters."


def _all_alike(count: int, result: bytes) -> bytes:
    return _HEAD + write_array_length(count, flexible=True) + result * count + _TAGS


def _refused(code: ErrorCode, message: str | None) -> bytes:
    encoded = write_null_string(True) if message is None else write_string(message, True)
    return INT16.pack(code) + encoded + _NULL_ENTRIES + _TAGS


def _described(request: DescribeClientQuotasRequest, quotas: Quotas, max_bytes: int) -> bytes:
    wanted: dict[DescribeClientQuotasRequest.DescribeClientQuotasFilter, Filter | QuotaRefusal] = {}
    for queried in request.filters:
        if queried not in wanted:
            try:
                wanted[queried] = filter_of(queried.components, strict=request.strict)
            except QuotaRefusal as refusal:
                wanted[queried] = refusal
    filters = {queried: one for queried, one in wanted.items() if isinstance(one, Filter)}
    results = _find_each(quotas, list(filters.values()), max_bytes)
    found = dict(zip(filters, results, strict=False))  # shorter if not all results fit
    too_large = _refused(
        ErrorCode.POLICY_VIOLATION,
        f"The results would take more than {max_bytes} bytes. Ask for fewer at once.",
    )
    made = BytesIO()
    made.write(_HEAD + write_array_length(len(request.filters), flexible=True))
    left = max_bytes
    for queried in request.filters:
        one = wanted[queried]
        if isinstance(one, QuotaRefusal):
            made.write(_refused(one.code, one.sentence))
            continue
        entries = found.get(queried)
        size = max_bytes if entries is None else sum(map(len, entries))
        left -= _MIN_RESULT + size
        if entries is None or left < 0:
            left = -1  # no later result fits either
            made.write(too_large)
            continue
        made.write(_NO_ERROR + write_array_length(len(entries), flexible=True))
        made.writelines(entries)
        made.write(_TAGS)
    made.write(_TAGS)
    return made.getvalue()


class _Kind(NamedTuple):
    """Kind of filters, which share one lookup table."""

    named: frozenset[EntityType]
    """Types that an entity must have."""
    exact: tuple[EntityType, ...]
    """Types for which the filters require a given name or the default."""


_Tables = dict[_Kind, dict[tuple[str | Default, ...], list[int]]]


def _find_each(quotas: Quotas, filters: Sequence[Filter], max_bytes: int) -> list[list[bytes]]:
    """Return the entries that each filter matches, in the order of their entities.

    The list ends before the first filter with which they would exceed `max_bytes`.
    """
    tables = _tables(filters)
    strict = any(one.strict for one in filters)
    found: list[list[bytes]] = [[] for _ in filters]
    left = max_bytes
    for entity in _in_order(quotas):
        entry = b""
        for number in _finders(tables, dict(entity.parts()), strict):
            if number >= len(found):
                continue
            entry = entry or encode(entry_of(entity, quotas[entity]), QUOTAS_BATCHED)
            found[number].append(entry)
            left -= len(entry)
            while left < 0:
                left += sum(map(len, found.pop()))
    return found


def _tables(filters: Sequence[Filter]) -> _Tables:
    tables: _Tables = {}
    for number, one in enumerate(filters):
        if one.strict and not one.names:
            continue  # matches nothing, as in Kafka
        exact = {kind: name for kind in EntityType if (name := one.names.get(kind)) is not None}
        table = tables.setdefault(_Kind(frozenset(one.names), tuple(exact)), {})
        table.setdefault(tuple(exact.values()), []).append(number)
    return tables


def _finders(
    tables: _Tables, parts: dict[EntityType, str | Default], strict: bool
) -> Iterator[int]:
    """Yield the positions of the filters that match an entity."""
    for kind, table in tables.items():
        if kind.named == parts.keys() if strict else kind.named <= parts.keys():
            yield from table.get(tuple(parts[one] for one in kind.exact), ())


def _in_order(quotas: Quotas) -> Iterator[QuotaEntity]:
    """Yield the entities by path; sorted in runs, because one large `sorted` would hold the
    interpreter lock."""
    paths = [(entity.path, entity) for entity in quotas]
    runs = [sorted(paths[at : at + _RUN], key=itemgetter(0)) for at in range(0, len(paths), _RUN)]
    for _, entity in merge(*runs, key=itemgetter(0)):
        yield entity
