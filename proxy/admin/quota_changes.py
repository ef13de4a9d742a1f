"""Requests and responses of AlterClientQuotas (KIP-546)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.admin.errors import BrokerUnavailable, KafkaError, kafka_error
from proxy.quota.model import Default, QuotaEntity
from proxy.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

ALTER_VERSIONS: Final = (0, 1)
"""Lowest and highest version of AlterClientQuotas that this module understands."""

QuotaChanges = Mapping[QuotaEntity, Mapping[str, float | None]]
"""Values to set, by entity and key; None as a value removes the quota."""


@dataclass(frozen=True, slots=True)
class AlterClientQuotasResult:
    """Result of AlterClientQuotas, by entity."""

    results: Mapping[QuotaEntity, KafkaError | None]

    def values(self) -> Mapping[QuotaEntity, KafkaError | None]:
        """Return the error of each entity; None if its quotas were changed."""
        return self.results

    def all(self) -> None:
        """Raise the first error, if there is one."""
        for error in self.results.values():
            if error is not None:
                raise error


def alter_request(
    entities: Sequence[QuotaEntity], changes: QuotaChanges, *, validate_only: bool
) -> AlterClientQuotasRequest:
    """Return an AlterClientQuotas request for some of the entities in `changes`."""
    schema = AlterClientQuotasRequest
    return schema(
        entries=tuple(
            schema.EntryData(
                entity=tuple(
                    schema.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in _named(entity)
                ),
                ops=tuple(
                    schema.OpData(
                        key=key, value=0.0 if value is None else float(value), remove=value is None
                    )
                    for key, value in changes[entity].items()
                ),
            )
            for entity in entities
        ),
        validate_only=validate_only,
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
    if described.keys() != {_named(entity) for entity in entities}:
        raise BrokerUnavailable("the response has results for other entities than the request")
    return {entity: described[_named(entity)] for entity in entities}


def _named(entity: QuotaEntity) -> frozenset[tuple[str, str | None]]:
    return frozenset(
        (kind.value, None if isinstance(name, Default) else name) for kind, name in entity.parts()
    )
