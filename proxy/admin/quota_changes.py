"""Changes of client quotas: requests, and their outcomes (KIP-546)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.admin.errors import BrokerUnavailable, KafkaError, kafka_error
from proxy.quota.model import Default, QuotaEntity
from proxy.wire.apis import ALTER_CLIENT_QUOTAS
from proxy.wire.codec import request_type

ALTER_VERSIONS: Final = (0, 1)

QuotaChanges = Mapping[QuotaEntity, Mapping[str, float | None]]
"""Values to be set by entity and key; None as a value removes it."""


@dataclass(frozen=True, slots=True)
class AlterClientQuotasResult:
    """Result of AlterClientQuotas, by entity."""

    results: Mapping[QuotaEntity, KafkaError | None]

    def values(self) -> Mapping[QuotaEntity, KafkaError | None]:
        """Return why each entity's quotas could not be changed. None: they are."""
        return self.results

    def all(self) -> None:
        """Raise the first error, if there is one."""
        for error in self.results.values():
            if error is not None:
                raise error


def alter_request(
    api_version: int, entities: Sequence[QuotaEntity], changes: QuotaChanges, *, validate_only: bool
) -> Any:
    """Ask for the changes of some entities."""
    request = request_type(ALTER_CLIENT_QUOTAS, api_version)
    schema = sys.modules[request.__module__]
    return request(
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


def altered(entities: Sequence[QuotaEntity], response: Any) -> dict[QuotaEntity, KafkaError | None]:
    """Return what came of each entity; brokers answer in whatever order."""
    described = {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): kafka_error(
            entry.error_code, entry.error_message
        )
        for entry in response.entries
    }
    if described.keys() != {_named(entity) for entity in entities}:
        raise BrokerUnavailable("the answer is about other entities than were asked about")
    return {entity: described[_named(entity)] for entity in entities}


def _named(entity: QuotaEntity) -> frozenset[tuple[str, str | None]]:
    return frozenset(
        (kind.value, None if isinstance(name, Default) else name) for kind, name in entity.parts()
    )
