"""Precedence of quotas (KIP-55): the quota that applies to a client, and the clients that share it.

    1. /config/users/<user>/clients/<client-id>
    2. /config/users/<user>/clients/<default>        Kafka's since KAFKA-4006; not in the KIP's list
    3. /config/users/<user>
    4. /config/users/<default>/clients/<client-id>
    5. /config/users/<default>/clients/<default>
    6. /config/users/<default>
    7. /config/clients/<client-id>
    8. /config/clients/<default>
    9. the static defaults, quota.producer.default and quota.consumer.default
    10. the client is not throttled

Rules:

- The order applies to each key separately: if a row sets only producer_byte_rate, later rows
  determine consumer_byte_rate.
- The quota of a row with a user and a client id (named or default) is for one user with one client
  id. The quota of a row with only a user is shared by all clients of the user, and that of the
  other rows by all users with the client id. Clients with the same tags share one quota (KIP-257).
- The defaults for client ids also apply to a client without a client id. This is a deliberate
  difference: in Kafka a client can evade its quota by omitting the client id.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from proxy.quota.model import (
    DEFAULT,
    Name,
    QuotaEntity,
    QuotaKey,
    Quotas,
    canonical_ip,
    desanitize,
    sanitize,
)

USER_TAG: Final = "user"
CLIENT_ID_TAG: Final = "client-id"

Tags = Mapping[str, str]
"""Tags of a quota: clients with the same tags share it. The user's name is sanitized."""

_FIRST_WITHOUT_USER: Final = 7

StaticDefaults = Mapping[QuotaKey, float]
"""Limits of `quota.producer.default` and `quota.consumer.default`, by key."""


class Considered(NamedTuple):
    """Row of the order of precedence, for one client and one key."""

    row: int
    """Number of the row in the docstring of this module, from 1."""
    entity: QuotaEntity | None
    """Entity of the row; None for the static default."""
    tags: Tags
    shared_by: str
    """Description of the clients that share the quota."""
    limit: float | None
    """Limit per second or in percent; None if the row does not limit this key."""

    @property
    def source(self) -> str:
        """Source of the row's limits: an entity's path, or the configuration file."""
        return "quota.*.default in the configuration" if self.entity is None else self.entity.path


class Share(Enum):
    """Ways to share a quota."""

    BOTH = "only user {user} with client id {client_id!r}"
    USER = "all clients of user {user} without a quota of their own"
    CLIENT_ID = "all users with client id {client_id!r}"

    def tags(self, user: str, client_id: str) -> Tags:
        """Return the tags of a client's quota."""
        return {
            USER_TAG: "" if self is Share.CLIENT_ID else sanitize(user),
            CLIENT_ID_TAG: "" if self is Share.USER else client_id,
        }


def _rows(user: str, client_id: str) -> tuple[tuple[int, Name, Name, Share], ...]:
    """Return those of rows 1 to 8 that can apply to a client: number, user, client id, sharing."""
    rows: tuple[tuple[int, Name, Name, Share], ...] = (
        (1, user, client_id, Share.BOTH),
        (2, user, DEFAULT, Share.BOTH),
        (3, user, None, Share.USER),
        (4, DEFAULT, client_id, Share.BOTH),
        (5, DEFAULT, DEFAULT, Share.BOTH),
        (6, DEFAULT, None, Share.USER),
        (7, None, client_id, Share.CLIENT_ID),
        (8, None, DEFAULT, Share.CLIENT_ID),
    )
    if user and client_id:
        return rows
    return tuple(row for row in rows if row[1] != "" and row[2] != "")


def _considered(
    quotas: Quotas, static: StaticDefaults, key: QuotaKey, user: str, client_id: str
) -> tuple[Considered, ...]:
    """Return the rows that can apply to a client, in order of precedence."""

    def considered(row: int, entity: QuotaEntity | None, share: Share) -> Considered:
        of_row = static if entity is None else quotas.get(entity, {})
        return Considered(
            row=row,
            entity=entity,
            tags=share.tags(user, client_id),
            shared_by=share.value.format(user=user, client_id=client_id),
            limit=of_row.get(key),
        )

    found = [
        considered(row, QuotaEntity(user=entry_user, client_id=entry_client_id), share)
        for row, entry_user, entry_client_id, share in _rows(user, client_id)
    ]
    return (*found, considered(9, None, Share.CLIENT_ID))


Names = tuple[Name, Name]
"""User and client id of an entity."""


class Applied(NamedTuple):
    """Quota that applies to a client."""

    tags: Tags
    limit: float
    names: Names | None
    """User and client id of the entry; None for the static default."""


class Index:
    """Index of quotas by user and client id, for the lookup at each new connection."""

    def __init__(self, quotas: Quotas, static: StaticDefaults) -> None:
        self._static = static
        self._by_names: dict[Names, Mapping[QuotaKey, float]] = {
            (entity.user, entity.client_id): limits
            for entity, limits in quotas.items()
            if entity.ip is None
        }

    def applied(self, key: QuotaKey, user: str, client_id: str) -> Applied | None:
        """Return the quota that `explain` finds; None if the client is not throttled."""
        if self._by_names:
            for _, entry_user, entry_client_id, share in _rows(user, client_id):
                names = entry_user, entry_client_id
                limits = self._by_names.get(names)
                if limits is not None and key in limits:
                    return Applied(share.tags(user, client_id), limits[key], names)
        if key not in self._static:
            return None
        return Applied(Share.CLIENT_ID.tags(user, client_id), self._static[key], None)


class Explanation(NamedTuple):
    """Quota that applies to a client, with the rows that were considered."""

    key: QuotaKey
    considered: tuple[Considered, ...]
    """All rows, in order of precedence."""

    @property
    def applied(self) -> Considered | None:
        """First row with a limit; None if the client is not throttled."""
        return next((one for one in self.considered if one.limit is not None), None)


def explain(
    quotas: Quotas, static: StaticDefaults, key: QuotaKey, user: str, client_id: str
) -> Explanation:
    """Return the quota that applies to a client, and the rows that were considered."""
    return Explanation(key=key, considered=_considered(quotas, static, key, user, client_id))


def tags_of(
    quotas: Quotas, static: StaticDefaults, key: QuotaKey, user: str, client_id: str
) -> Tags:
    """Return the tags of the quota that applies; without a quota those of row 9, as in Kafka."""
    rows = _considered(quotas, static, key, user, client_id)
    return next((one.tags for one in rows if one.limit is not None), rows[-1].tags)


def limit_of(quotas: Quotas, static: StaticDefaults, key: QuotaKey, tags: Tags) -> float | None:
    """Return the limit of the quota with these tags; None if no row sets a limit any more."""
    user, client_id = tags.get(USER_TAG), tags.get(CLIENT_ID_TAG)
    if user is None or client_id is None:
        return None
    limits = (
        one.limit
        for one in _considered(quotas, static, key, desanitize(user), client_id)
        if one.tags == tags and (one.row < _FIRST_WITHOUT_USER) == bool(user)
    )
    return next((limit for limit in limits if limit is not None), None)


class IpLimits:
    """Limits of connections per second from each address (KIP-612)."""

    def __init__(self, quotas: Quotas) -> None:
        key = QuotaKey.CONNECTION_CREATION_RATE
        self._default = quotas.get(QuotaEntity(ip=DEFAULT), {}).get(key)
        self._by_address = {
            canonical_ip(entity.ip): limits[key]
            for entity, limits in quotas.items()
            if isinstance(entity.ip, str) and key in limits
        }

    def limit(self, address: str) -> tuple[float, str] | None:
        """Return the limit of an address in connections per second, with the name of the entry: its
        own, or the default for each address. None if there is no limit."""
        if address in self._by_address:
            return self._by_address[address], address
        return None if self._default is None else (self._default, "<default>")
