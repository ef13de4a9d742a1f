"""DescribeClientQuotas and AlterClientQuotas v0-v1 (KIP-546), from the store.

`proxy.handlers.quota_batch` answers DescribeClientQuotas v2.

Answers are Kafka's, seen on a running Kafka 4.1. Deliberate differences:

- Entities and keys are sorted; Kafka's are in the order of their hashes.
- The same entity type twice in one entity is INVALID_REQUEST; Kafka takes the last one.
- NaN and infinity are INVALID_REQUEST; Kafka stores them.
- An ip entity is an address; Kafka resolves host names while the request waits.
- Sentences do not print the server's internal objects, and are truncated to what Kafka can encode.
- The size of a request is bounded: see the constants.

Pure except for the store, whose writes wait for the disk: call `answer` in a thread.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from proxy.errors import ClientFault
from proxy.handlers import quota_batch
from proxy.handlers.quota_requests import (
    UNAUTHORIZED,
    Filter,
    QuotaRefusal,
    entry_of,
    filter_of,
)
from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    Default,
    EntityType,
    QuotaEntity,
    QuotaKey,
    Quotas,
    key_of,
    value_problem,
)
from proxy.quota.store import QuotaStore
from proxy.store.interface import StoreError, refusal_of
from proxy.wire import messages
from proxy.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from proxy.wire.batch_describe import QUOTAS_BATCHED
from proxy.wire.codec import decode_bounded, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import Malformed

_Request = TypeVar(
    "_Request", messages.DescribeClientQuotasRequest, messages.AlterClientQuotasRequest
)

MAX_ITEMS: Final = 40_000
"""Maximum number of entries, components of entities, changes, components of a filter, and tagged
fields together: enough for 10,000 quotas of a user with a client id, one by one. Kafka accepts no
more changes in one operation (`QuorumController.MAX_RECORDS_PER_USER_OP`). Each takes up to a KiB
of memory, including its part of the response.
"""
MAX_BYTES: Final = 2_097_152
"""Maximum size of a request in bytes: 10,000 such quotas, with names of thirty bytes, take half of
it. In memory, a name can take four times its size in the request."""


def answer(
    api_key: int, api_version: int, body: bytes, store: QuotaStore, *, authorized: bool
) -> bytes:
    """Return the response body to a request body of either API. Raises ClientFault.

    `authorized` says whether the principal may DescribeConfigs, or AlterConfigs, on the cluster.
    """
    if api_key == DESCRIBE_CLIENT_QUOTAS and api_version >= QUOTAS_BATCHED:
        return quota_batch.answer(body, store, authorized=authorized)
    if api_key == DESCRIBE_CLIENT_QUOTAS and not authorized:  # whatever the filter
        return encode(_undescribed(UNAUTHORIZED[0], None), api_version)
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
    """Return the response without entries; like Kafka, denials have no generic sentence."""
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
            # Like Kafka, apply the first of them all the same
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
                continue  # no entity has it: like Kafka, a success
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
