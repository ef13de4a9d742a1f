"""Quota entities and keys, and their text forms.

Sources: KIP-55 (users, client ids, paths, JSON), KIP-124 (request_percentage), KIP-599
(controller_mutation_rate), KIP-612 (connection_creation_rate, ip), KIP-546 (names of the types).
"""

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote_plus

from proxy.errors import ProxyError


class EntityType(StrEnum):
    """Types of entities, as the client-quota APIs name them (KIP-546)."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(StrEnum):
    """Keys of quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Rate of Produce requests in bytes per second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Rate of Fetch responses in bytes per second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Request time in percent of one thread's time. Above 100 it is more than one thread."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Rate of partitions created or deleted per second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Rate of new connections per second, only for ip entities."""


class Default(Enum):
    """Type of `DEFAULT`, which stands for all names without their own entry."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
"""Name of a default entity. It is not a string, because a user may be named `<default>`."""

Name = str | Default | None
"""Name of a component, or the default; None if the entity has no component of this type."""


class BadEntity(ProxyError):
    """The entity or name cannot have a quota. The text is a message for the client."""


_PARENTS: Final = {EntityType.USER: "users", EntityType.CLIENT_ID: "clients", EntityType.IP: "ips"}
_DEFAULT_NODE: Final = "<default>"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """Entity with quotas: a user, a client id, both, or an address.

    Raises BadEntity for entities that Kafka refuses.
    """

    user: Name = None
    """User name, without `User:`; None if the entity has no user component."""
    client_id: Name = None
    ip: Name = None

    def __post_init__(self) -> None:
        parts = self.parts()
        if not parts:
            raise BadEntity("Invalid empty client quota entity")
        if self.ip is not None and len(parts) > 1:
            raise BadEntity(
                "Invalid quota entity combination, IP entity should not be combined with User or"
                " ClientId"
            )
        for kind, name in parts:
            if name == "":
                raise BadEntity(f"Empty {kind} not supported")
        # Kafka also accepts host names, and resolves them during the request
        if isinstance(self.ip, str) and canonical_ip(self.ip) is None:
            raise BadEntity(f"{self.ip} is not a valid IP.")

    def parts(self) -> tuple[tuple[EntityType, str | Default], ...]:
        """Return the components: user, then client id, then ip."""
        named = (
            (EntityType.USER, self.user),
            (EntityType.CLIENT_ID, self.client_id),
            (EntityType.IP, self.ip),
        )
        return tuple((kind, name) for kind, name in named if name is not None)

    def named(self) -> tuple[tuple[str, str | None], ...]:
        """Return the components as the client-quota APIs name them: None is the default."""
        return tuple(
            (kind.value, None if isinstance(name, Default) else name) for kind, name in self.parts()
        )

    @classmethod
    def of(cls, parts: Mapping[EntityType, str | Default]) -> "QuotaEntity":
        """Return the entity of these components. Raises BadEntity."""
        return cls(
            user=parts.get(EntityType.USER),
            client_id=parts.get(EntityType.CLIENT_ID),
            ip=parts.get(EntityType.IP),
        )

    @property
    def entity_path(self) -> str:
        """Path in change notifications (KIP-55): `users/alice/clients/<default>`."""
        return "/".join(f"{_PARENTS[kind]}/{_node(name)}" for kind, name in self.parts())

    @property
    def path(self) -> str:
        """Path of the ZooKeeper node that holds the entity's quotas (KIP-55)."""
        return f"/config/{self.entity_path}"

    @classmethod
    def from_entity_path(cls, path: str) -> "QuotaEntity":
        """Parse the result of `entity_path`. Raises BadEntity."""
        nodes = path.split("/")
        kinds = {parent: kind for kind, parent in _PARENTS.items()}
        parts: dict[EntityType, str | Default] = {}
        for parent, node in zip(nodes[::2], nodes[1::2], strict=False):
            kind = kinds.get(parent)
            if kind is None or kind in parts:
                raise BadEntity(f"{path} is not the path of a quota entity")
            parts[kind] = DEFAULT if node == _DEFAULT_NODE else desanitize(node)
        entity = cls.of(parts)
        if entity.entity_path != path:
            raise BadEntity(f"{path} is not the path of a quota entity")
        return entity

    def __str__(self) -> str:
        return ", ".join(
            f"default {kind}" if isinstance(name, Default) else f"{kind} {name}"
            for kind, name in self.parts()
        )


Quotas = Mapping[QuotaEntity, Mapping[QuotaKey, float]]
"""All quotas that are set, by entity."""


def _node(name: str | Default) -> str:
    return _DEFAULT_NODE if isinstance(name, Default) else sanitize(name)


def sanitize(name: str) -> str:
    """Return the name encoded for ZooKeeper nodes and metric tags, like Kafka's `Sanitizer`.

    This is Java's URL encoding, which keeps letters, digits and `.-_`, with %20 for spaces.
    """
    return quote(name, safe="", errors="replace").replace("~", "%7E")


def desanitize(node: str) -> str:
    """Return the name that `sanitize` encoded. As in Java, a plus sign is a space."""
    return unquote_plus(node, errors="replace")


@lru_cache(maxsize=1_024)
def canonical_ip(text: str) -> str | None:
    """Return the canonical form of an address (RFC 5952), with IPv4-mapped addresses as IPv4. None
    if the text is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=1_024)
def address_group(address: str) -> str:
    """Return the key of the addresses with which a client's address shares limits and turns.

    An IPv4 address is its own group; an IPv6 address belongs to its /64, because every host on a
    subnet may use any number of the subnet's addresses (RFC 4291 section 2.5.1, RFC 8273). Text
    that is not an address is returned unchanged.
    """
    own = canonical_ip(address)
    if own is None or ":" not in own:
        return own or address
    prefix = int(ipaddress.IPv6Address(own)) >> 64 << 64
    return f"{ipaddress.IPv6Address(prefix)}/64"


_OF_ADDRESSES: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
_MAX_VALUES: Final = {
    # Java's LONG and INT: KIP-55's limits are long, KIP-612's limit is int
    QuotaKey.PRODUCER_BYTE_RATE: (2.0**63, "LONG"),
    QuotaKey.CONSUMER_BYTE_RATE: (2.0**63, "LONG"),
    QuotaKey.CONNECTION_CREATION_RATE: (2.0**31 - 1, "INT"),
}
_FRACTION: Final = 1e-6
"""Largest fraction that Kafka treats as a rounding error of floating-point numbers."""


def key_of(entity: QuotaEntity, name: str) -> QuotaKey | None:
    """Return the key of this name if this entity can have it, else None."""
    try:
        key = QuotaKey(name)
    except ValueError:
        return None
    return key if (key in _OF_ADDRESSES) == (entity.ip is not None) else None


def value_problem(key: QuotaKey, value: float) -> str | None:
    """Return Kafka's message about an invalid limit, or None if it is valid."""
    if math.isnan(value) or value <= 0.0:  # Kafka accepts NaN by mistake
        return f"Quota {key} must be greater than 0"
    if key in _MAX_VALUES:
        largest, kind = _MAX_VALUES[key]
        if value > largest:
            return f"Proposed value for {key} is too large for a {kind}."
        if value % 1.0 > _FRACTION:
            return f"{key} cannot be a fractional value."
    if math.isinf(value):  # means no limit: remove the entry instead
        return f"Quota {key} must be a finite number"
    return None


def format_limit(value: float) -> str:
    """Return a limit without superfluous digits: `1024`, `12.5`."""
    return str(int(value)) if value == int(value) else repr(value)


Changes = Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
"""Limits to set by entity and key; None removes a limit."""


class QuotaSnapshot(NamedTuple):
    """All quotas at one moment, with their version."""

    version: int
    quotas: Quotas


class QuotaStore(Protocol):
    """Store of quotas. `proxy.store.interface` describes the common rules."""

    def quota_version(self) -> int:
        """Return the number of the last change of quotas."""

    def quota_snapshot(self) -> QuotaSnapshot:
        """Return all quotas, with their version."""

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove limits in one transaction. Removing a missing limit is not an error."""


class CachedQuotas:
    """Cache of the store's quotas as of the last refresh."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._snapshot = store.quota_snapshot()

    @property
    def quotas(self) -> Quotas:
        """All quotas."""
        return self._snapshot.quotas

    def refresh_if_changed(self) -> bool:
        """Read the quotas again if they changed, and return whether they did.

        Called about once a second, on any thread. When it raises StoreError, the last known quotas
        stay in use.
        """
        if self._store.quota_version() == self._snapshot.version:
            return False
        before, self._snapshot = self._snapshot, self._store.quota_snapshot()
        return before.quotas != self._snapshot.quotas


def altered(quotas: Quotas, changes: Changes) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    """Return the quotas after the changes, without entities that have no limits left."""
    after = {entity: dict(limits) for entity, limits in quotas.items()}
    for entity, ops in changes.items():
        limits = after.setdefault(entity, {})
        for key, value in ops.items():
            if value is None:
                limits.pop(key, None)
            else:
                limits[key] = value
        if not limits:
            del after[entity]
    return after
