"""Interface of a store of quotas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.quota.model import QuotaEntity, QuotaKey, Quotas

Changes = Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
"""What is to be set, and with None removed, by entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSnapshot:
    """All quotas as they were at one moment."""

    version: int
    quotas: Quotas


class QuotaStore(Protocol):
    """Quotas. The laws are those of `proxy.store.interface`."""

    def quota_version(self) -> int:
        """Return the number of the last change of quotas."""
        ...

    def quota_snapshot(self) -> QuotaSnapshot:
        """Return every quota, with the version they belong to."""
        ...

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove, all in one transaction. What is absent is removed without a word."""
        ...


class CachedQuotas:
    """The store's quotas as of the last refresh."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._snapshot = store.quota_snapshot()

    @property
    def quotas(self) -> Quotas:
        """Every quota."""
        return self._snapshot.quotas

    def refresh_if_changed(self) -> bool:
        """Read the quotas anew if anything changed, and say whether they did.

        Called about once a second, on any thread. When it raises StoreError, the last known
        quotas stay in use.
        """
        if self._store.quota_version() == self._snapshot.version:
            return False
        before, self._snapshot = self._snapshot, self._store.quota_snapshot()
        return before.quotas != self._snapshot.quotas


def altered(quotas: Quotas, changes: Changes) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    """Return the quotas as they are after the changes. An entity without any is no more."""
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
