"""Filters and entries of DescribeClientQuotas (KIP-546), v0 to v2, with Kafka 4.1's checks."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from proxy.quota.model import DEFAULT, Default, EntityType, QuotaEntity, QuotaKey
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from proxy.wire.primitives import MAX_SENTENCE


class QuotaRefusal(Exception):
    """The request is refused; holds the error code and the sentence for the client."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.sentence = message[:MAX_SENTENCE]
        """Sentence for the client, truncated to the longest that can be encoded."""
        self.code = code


UNAUTHORIZED: Final = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


class Filter(NamedTuple):
    """Filter of entities: by type a name, the default, or None for any."""

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
            schema.EntityData(
                entity_type=kind.value, entity_name=None if isinstance(name, Default) else name
            )
            for kind, name in entity.parts()
        ),
        values=tuple(
            schema.ValueData(key=key.value, value=value) for key, value in sorted(limits.items())
        ),
    )
