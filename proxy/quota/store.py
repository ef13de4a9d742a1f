"""Interface of a store of quotas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.quota.model import QuotaEntity, QuotaKey, Quotas

Changes = Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
"""Limits to set, or None to remove them, by entity and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSnapshot:
    """All quotas at one moment, with their version."""

    version: int
    quotas: Quotas


class QuotaStore(Protocol):
    """Store of quotas. `proxy.store.interface` describes the common rules."""

    def quota_version(self) -> int:
        """Return the number of the last change of quotas."""
        ...

    def quota_snapshot(self) -> QuotaSnapshot:
        """Return all quotas, with their version."""
        ...

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove limits in one transaction; removing a missing one is not an error."""
        ...


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
