"""DescribeClientQuotas v0-v2 and AlterClientQuotas v0-v1 (KIP-546, KIP-888), from the store.

Responses are those of a running Kafka 4.1. Deliberate differences:

- Entities and keys are sorted; Kafka returns them in hash order.
- An entity type that occurs twice in one entity is INVALID_REQUEST; Kafka uses the last one.
- NaN and infinity are INVALID_REQUEST; Kafka stores them.
- An ip entity is an address; Kafka resolves host names while the request waits.
- Messages do not contain the server's internal objects, and are truncated to the length that Kafka
  can encode.
- The size of a request is bounded: see the constants.

Pure except for the store, whose writes wait for the disk: call `answer` in a thread.

DescribeClientQuotas v2 answers many filters at once:

- Each filter has the same result, or error, as a v1 request with only this filter.
- Without the permission, each filter is refused, because the response has no error of its own.
- A request that does not parse, whose list of filters is null, or that has more than `MAX_FILTERS`
  (or `MAX_BATCH_ITEMS` in all) is answered with a single result, INVALID_REQUEST, and the
  connection stays open.
- Results come in the order of the filters until they would exceed `MAX_RESULT_BYTES`. The filter
  that would exceed it and all later ones have POLICY_VIOLATION; the client must send them again.

The quotas are read once. Filters with the same entity types, of which the same have a name or the
default, share a table keyed by these names; each entity is looked up once per table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from io import BytesIO
from operator import itemgetter
from sys import maxsize
from typing import Final, NamedTuple, TypeVar

from proxy.acl.validation import UNAUTHORIZED
from proxy.errors import ClientFault
from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    Default,
    EntityType,
    QuotaEntity,
    QuotaKey,
    Quotas,
    QuotaStore,
    key_of,
    value_problem,
)
from proxy.store.interface import StoreError, refusal_of
from proxy.wire import messages
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    MAX_FILTERS,
    MAX_RESULT_BYTES,
    QUOTAS_BATCHED,
    quota_filter_count,
)
from proxy.wire.codec import decode_bounded, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from proxy.wire.primitives import (
    INT16,
    INT32,
    MAX_SENTENCE,
    Malformed,
    write_array_length,
    write_null_string,
    write_string,
)


class QuotaRefusal(Exception):
    """The request is refused, with an error code and a message for the client."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.sentence = message[:MAX_SENTENCE]
        """Message for the client, truncated to the maximum length that can be encoded."""
        self.code = code


class Filter(NamedTuple):
    """Filter of entities: for each type a name, the default, or None for any name."""

    names: dict[EntityType, str | Default | None]
    strict: bool

    def matches(self, entity: QuotaEntity) -> bool:
        """Return whether the filter matches an entity."""
        parts = dict(entity.parts())
        if self.strict and parts.keys() != self.names.keys():
            return False
        return all(
            kind in parts and wanted in (None, parts[kind]) for kind, wanted in self.names.items()
        )


def filter_of(
    components: Iterable[DescribeClientQuotasRequest.ComponentData], *, strict: bool
) -> Filter:
    """Return the filter of these components. Raises QuotaRefusal."""
    names: dict[EntityType, str | Default | None] = {}
    for component in components:
        kind = _entity_type(component.entity_type)
        if kind in names:
            raise QuotaRefusal(f"Entity type {kind} cannot appear more than once in the filter.")
        names[kind] = _match(component)
    if EntityType.IP in names and len(names) > 1:
        raise QuotaRefusal(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return Filter(names, strict)


def _entity_type(name: str) -> EntityType:
    if not name:
        raise QuotaRefusal("Invalid empty entity type.")
    try:
        return EntityType(name)
    except ValueError:
        raise QuotaRefusal(
            f"Unsupported entity type {name}", ErrorCode.UNSUPPORTED_VERSION
        ) from None


def _match(component: DescribeClientQuotasRequest.ComponentData) -> str | Default | None:
    match component.match_type, component.match:
        case 0, str(name):
            return name
        case 0, _:
            raise QuotaRefusal("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        case 1, None:
            return DEFAULT
        case 1, _:
            raise QuotaRefusal(
                "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."
            )
        case 2, None:
            return None
        case 2, _:
            raise QuotaRefusal(
                "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
            )
        case unknown, _:
            raise QuotaRefusal(f"Unknown match type {unknown}")


def entry_of(
    entity: QuotaEntity, limits: Mapping[QuotaKey, float]
) -> DescribeClientQuotasResponse.EntryData:
    """Return the entry of an entity in a response."""
    schema = DescribeClientQuotasResponse
    return schema.EntryData(
        entity=tuple(
            schema.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.named()
        ),
        values=tuple(
            schema.ValueData(key=key.value, value=value) for key, value in sorted(limits.items())
        ),
    )


MAX_BATCH_ITEMS: Final = 3 * MAX_FILTERS
"""Maximum number of filters, components and tagged fields together, enough for `MAX_FILTERS`
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


def answer_batch(
    body: bytes, store: QuotaStore, *, authorized: bool, max_bytes: int = MAX_RESULT_BYTES
) -> bytes:
    """Return the response body. `authorized` is True if the principal has DescribeConfigs on the
    cluster. Raises StoreError.
    """
    try:
        count = quota_filter_count(body)
        if count > MAX_FILTERS:
            return _all_alike(1, _refused(ErrorCode.INVALID_REQUEST, _TOO_MANY))
        if not authorized:
            return _all_alike(count, _refused(UNAUTHORIZED.code, None))
        request = decode_bounded(
            DescribeClientQuotasRequest,
            QUOTAS_BATCHED,
            body,
            max_bytes=maxsize,
            max_values=MAX_BATCH_ITEMS,
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
    """Kind of filters that share one lookup table."""

    named: frozenset[EntityType]
    """Types that an entity must have."""
    exact: tuple[EntityType, ...]
    """Types for which the filters require a given name or the default."""


_Tables = dict[_Kind, dict[tuple[str | Default, ...], list[int]]]


def _find_each(quotas: Quotas, filters: Sequence[Filter], max_bytes: int) -> list[list[bytes]]:
    """Return the entries that each filter matches, in the order of their entities.

    The list ends before the first filter whose entries would exceed `max_bytes` in total.
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
    """Yield the entities by path. They are sorted in runs, because one large `sorted` would hold
    the interpreter lock."""
    paths = [(entity.path, entity) for entity in quotas]
    runs = [sorted(paths[at : at + _RUN], key=itemgetter(0)) for at in range(0, len(paths), _RUN)]
    for _, entity in merge(*runs, key=itemgetter(0)):
        yield entity


_Request = TypeVar(
    "_Request", messages.DescribeClientQuotasRequest, messages.AlterClientQuotasRequest
)

MAX_ITEMS: Final = 40_000
"""Maximum number of entries, components of entities, changes, components of a filter, and tagged
fields together: enough for 10,000 entries of a user and a client id with one quota each. Kafka
accepts at most 10,000 changes in one operation (`QuorumController.MAX_RECORDS_PER_USER_OP`). An
item needs up to 1 KiB of memory, including its part of the response.
"""
MAX_BYTES: Final = 2_097_152
"""Maximum size of a request in bytes: 10,000 such quotas with names of 30 bytes need half of it. In
memory, a name can be four times as large as in the request."""


def answer(
    api_key: int, api_version: int, body: bytes, store: QuotaStore, *, authorized: bool
) -> bytes:
    """Return the response body for a request to either API. Raises ClientFault.

    `authorized` is True if the principal has DescribeConfigs or AlterConfigs, as the API requires,
    on the cluster.
    """
    if api_key == DESCRIBE_CLIENT_QUOTAS and api_version >= QUOTAS_BATCHED:
        return answer_batch(body, store, authorized=authorized)
    if api_key == DESCRIBE_CLIENT_QUOTAS and not authorized:  # even if the filter is invalid
        return encode(_undescribed(UNAUTHORIZED.code, None), api_version)
    if api_key == ALTER_CLIENT_QUOTAS:
        changes = _read(messages.AlterClientQuotasRequest, api_version, body)
        return encode(_alter(changes, store, authorized), api_version)
    return encode(
        _describe(_read(messages.DescribeClientQuotasRequest, api_version, body), store),
        api_version,
    )


def _read(kind: type[_Request], api_version: int, body: bytes) -> _Request:
    try:
        return decode_bounded(kind, api_version, body, max_bytes=MAX_BYTES, max_values=MAX_ITEMS)
    except Malformed as error:
        raise ClientFault("the request does not parse") from error


# ---------------------------------------------------------------------- Describe


def _describe(
    request: messages.DescribeClientQuotasRequest, store: QuotaStore
) -> messages.DescribeClientQuotasResponse:
    try:
        wanted = filter_of(request.components, strict=request.strict)
    except QuotaRefusal as refusal:
        return _undescribed(refusal.code, refusal.sentence)
    return messages.DescribeClientQuotasResponse(
        entries=_entries(store.quota_snapshot().quotas, wanted)
    )


def _undescribed(code: ErrorCode, message: str | None) -> messages.DescribeClientQuotasResponse:
    """Return the response without entries. As in Kafka, denials have no generic message."""
    return messages.DescribeClientQuotasResponse(
        error_code=code, error_message=message, entries=None
    )


def _entries(
    quotas: Quotas, wanted: Filter
) -> tuple[messages.DescribeClientQuotasResponse.EntryData, ...]:
    if wanted.strict and not wanted.names:
        return ()
    found = sorted((e for e in quotas if wanted.matches(e)), key=lambda entity: entity.path)
    return tuple(entry_of(entity, quotas[entity]) for entity in found)


# ---------------------------------------------------------------------- Alter


_Parts = Sequence[messages.AlterClientQuotasRequest.EntityData]
_Key = frozenset[tuple[str, str | None]]
"""Components of an entity as the request names them, valid or not."""


def _alter(
    request: messages.AlterClientQuotasRequest, store: QuotaStore, authorized: bool
) -> messages.AlterClientQuotasResponse:
    if not authorized:
        denied = (_altered(entry.entity, *UNAUTHORIZED) for entry in request.entries)
        return messages.AlterClientQuotasResponse(entries=tuple(denied))
    outcomes: dict[_Key, tuple[_Parts, QuotaRefusal | None]] = {}
    changes: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
    for entry in request.entries:
        key = frozenset((part.entity_type, part.entity_name) for part in entry.entity)
        if key in outcomes:
            # As in Kafka, the first of them is applied nevertheless
            outcomes[key] = entry.entity, QuotaRefusal("Ignoring duplicate entity")
            continue
        try:
            changes[_entity(entry.entity)] = _operations(_entity(entry.entity), entry.ops)
            outcomes[key] = entry.entity, None
        except QuotaRefusal as refusal:
            outcomes[key] = entry.entity, refusal
    if changes and not request.validate_only:
        try:
            store.alter_quotas(changes)
        except StoreError as problem:
            code, why = refusal_of(problem)
            undone = QuotaRefusal(why, code)
            outcomes = {key: (parts, known or undone) for key, (parts, known) in outcomes.items()}
    results = (
        _altered(parts, refusal.code, refusal.sentence)
        if refusal
        else _altered(parts, ErrorCode.NONE, None)
        for parts, refusal in outcomes.values()
    )
    return messages.AlterClientQuotasResponse(entries=tuple(results))


def _entity(parts: _Parts) -> QuotaEntity:
    named: dict[EntityType, str | Default] = {}
    for part in parts:
        try:
            kind = EntityType(part.entity_type)
        except ValueError:
            raise QuotaRefusal(f"Unhandled client quota entity type: {part.entity_type}") from None
        if kind in named:
            raise QuotaRefusal(f"Invalid client quota entity, duplicate entity entry {kind}")
        named[kind] = DEFAULT if part.entity_name is None else part.entity_name
    try:
        return QuotaEntity.of(named)
    except BadEntity as bad:
        raise QuotaRefusal(str(bad)) from None


def _operations(
    entity: QuotaEntity, ops: Iterable[messages.AlterClientQuotasRequest.OpData]
) -> dict[QuotaKey, float | None]:
    seen: set[str] = set()
    changes: dict[QuotaKey, float | None] = {}
    for op in ops:
        if op.key in seen:
            raise QuotaRefusal(f"Duplicate quota key {op.key}")
        seen.add(op.key)
        key = key_of(entity, op.key)
        if key is None:
            if op.remove:
                continue  # no entity has this key; removing it succeeds, as in Kafka
            raise QuotaRefusal(f"Invalid configuration key {op.key}")
        if not op.remove and (problem := value_problem(key, op.value)):
            raise QuotaRefusal(problem)
        changes[key] = None if op.remove else op.value
    return changes


def _altered(
    parts: _Parts, code: ErrorCode, message: str | None
) -> messages.AlterClientQuotasResponse.EntryData:
    response = messages.AlterClientQuotasResponse
    return response.EntryData(
        error_code=code,
        error_message=message,
        entity=tuple(
            response.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in parts
        ),
    )
