"""Requests, responses and results of the client quota APIs (KIP-546, KIP-888)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.admin.errors import BrokerUnavailable, ChangeResult, KafkaError, kafka_error
from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    Changes,
    Default,
    EntityType,
    QuotaEntity,
    QuotaKey,
    Quotas,
    key_of,
    value_problem,
)
from proxy.wire.apis import QUOTAS_BATCHED
from proxy.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

DESCRIBE_VERSIONS: Final = (0, QUOTAS_BATCHED)
"""Lowest and highest version of DescribeClientQuotas that this module understands."""


class AnyName(Enum):
    """Part of a filter that matches any name of a type, the default included."""

    ANY = "any"


ANY_NAME: Final = AnyName.ANY
_EXACT: Final = 0
_MATCH_TYPES: Final[Mapping[object, int]] = {DEFAULT: 1, ANY_NAME: 2}

Wanted = str | Default | AnyName | None
"""Name, the default, or any name; None if the filter does not mention this type of entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaFilter:
    """Filter of the entities to describe, as Kafka's `ClientQuotaFilter`; by default all."""

    user: Wanted = None
    """Name of a user, without `User:`."""
    client_id: Wanted = None
    ip: Wanted = None
    strict: bool = False
    """True if an entity must not have any type that the filter does not mention."""


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """Entity of a quota, as the broker names it."""

    entries: tuple[tuple[str, str | None], ...]
    """Pairs of type and name, such as `("user", "alice")`; None as a name stands for the
    default."""


DescribedQuotas = Mapping[ClientQuotaEntity, Mapping[str, float]]
"""Quotas by entity, and by key such as `producer_byte_rate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotas:
    """Result of one filter. An empty result is valid."""

    entities: DescribedQuotas
    error: KafkaError | None = None
    """Why the broker did not apply the filter, so that `entities` is empty; None if it did."""

    def values(self) -> DescribedQuotas:
        """Return the quotas of each entity. Raises the filter's error."""
        if self.error is not None:
            raise self.error
        return self.entities


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasResult:
    """Results of all filters, as KIP-888 defines them."""

    results: Mapping[ClientQuotaFilter, ClientQuotas]

    def entities(self) -> DescribedQuotas:
        """Return the quotas found by the only filter. Raises its error.

        With several filters, see `values` or `all`.
        """
        if len(self.results) != 1:
            raise ValueError(f"entities() needs one filter, and there are {len(self.results)}")
        (result,) = self.results.values()
        return result.values()

    def values(self) -> Mapping[ClientQuotaFilter, ClientQuotas]:
        """Return the result of each filter."""
        return self.results

    def all(self) -> Mapping[ClientQuotaFilter, DescribedQuotas]:
        """Return the quotas found by each filter. Raises the first error, if there is one."""
        return {wanted: result.values() for wanted, result in self.results.items()}


def describe_request(wanted: ClientQuotaFilter) -> DescribeClientQuotasRequest:
    """Return a DescribeClientQuotas request, v0 or v1."""
    return DescribeClientQuotasRequest(components=_components(wanted), strict=wanted.strict)


def batch_request(
    filters: Iterable[ClientQuotaFilter], *, strict: bool
) -> DescribeClientQuotasRequest:
    """Return a DescribeClientQuotas request for many filters, v2; all are strict, or none."""
    return DescribeClientQuotasRequest(
        strict=strict,
        filters=tuple(
            DescribeClientQuotasRequest.DescribeClientQuotasFilter(components=_components(one))
            for one in filters
        ),
    )


def _components(wanted: ClientQuotaFilter) -> tuple[DescribeClientQuotasRequest.ComponentData, ...]:
    named = (
        (EntityType.USER, wanted.user),
        (EntityType.CLIENT_ID, wanted.client_id),
        (EntityType.IP, wanted.ip),
    )
    return tuple(
        DescribeClientQuotasRequest.ComponentData(
            entity_type=kind.value,
            match_type=_MATCH_TYPES.get(name, _EXACT),
            match=name if isinstance(name, str) else None,
        )
        for kind, name in named
        if name is not None
    )


def described(
    response: DescribeClientQuotasResponse
    | DescribeClientQuotasResponse.DescribeClientQuotasFilterResult,
) -> ClientQuotas:
    """Return the quotas in a response of v0 or v1, or in a filter's result of v2, or its error."""
    return ClientQuotas(
        error=kafka_error(response.error_code, response.error_message),
        entities={
            ClientQuotaEntity(
                tuple((part.entity_type, part.entity_name) for part in entry.entity)
            ): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        },
    )


def known_quotas(described: DescribedQuotas) -> tuple[Quotas, list[str]]:
    """Return the quotas that this program knows, and the others as text."""
    quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}
    unknown: list[str] = []
    for described_entity, values in described.items():
        entity = _known_entity(described_entity)
        for name, value in values.items():
            key = None if entity is None else key_of(entity, name)
            if entity is None or key is None or value_problem(key, value):
                unknown.append(f"{name}={value} of {dict(described_entity.entries)}")
            else:
                quotas.setdefault(entity, {})[key] = value
    return quotas, unknown


def _known_entity(described: ClientQuotaEntity) -> QuotaEntity | None:
    try:
        parts = {EntityType(kind): name for kind, name in described.entries}
        return QuotaEntity.of(
            {kind: DEFAULT if name is None else name for kind, name in parts.items()}
        )
    except (BadEntity, ValueError):
        return None


ALTER_VERSIONS: Final = (0, 1)
"""Lowest and highest version of AlterClientQuotas that this module understands."""

QuotaChanges = Mapping[QuotaEntity, Mapping[str, float | None]] | Changes
"""Values to set, by entity and key; None as a value removes the quota."""


AlterClientQuotasResult = ChangeResult[QuotaEntity]
"""Result of AlterClientQuotas, by entity."""


def alter_request(
    entities: Sequence[QuotaEntity], changes: QuotaChanges
) -> AlterClientQuotasRequest:
    """Return an AlterClientQuotas request for some of the entities in `changes`."""
    schema = AlterClientQuotasRequest
    return schema(
        entries=tuple(
            schema.EntryData(
                entity=tuple(
                    schema.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.named()
                ),
                ops=tuple(
                    schema.OpData(
                        key=key, value=0.0 if value is None else float(value), remove=value is None
                    )
                    for key, value in changes[entity].items()
                ),
            )
            for entity in entities
        )
    )


def altered(
    entities: Sequence[QuotaEntity], response: AlterClientQuotasResponse
) -> dict[QuotaEntity, KafkaError | None]:
    """Return the error of each entity, None for success; a response may have any order."""
    described = {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): kafka_error(
            entry.error_code, entry.error_message
        )
        for entry in response.entries
    }
    if described.keys() != {frozenset(entity.named()) for entity in entities}:
        raise BrokerUnavailable("the response has results for other entities than the request")
    return {entity: described[frozenset(entity.named())] for entity in entities}
