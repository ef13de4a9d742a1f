"""A store in memory: the plain reading of `QuotaStore`'s laws."""

from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.store import Changes, QuotaSnapshot, altered


class MemoryStore:
    """Quotas for the length of a test."""

    def __init__(self) -> None:
        self._version = 0
        self.quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}

    def quota_version(self) -> int:
        return self._version

    def quota_snapshot(self) -> QuotaSnapshot:
        return QuotaSnapshot(version=self._version, quotas=self.quotas)

    def alter_quotas(self, changes: Changes) -> None:
        self.quotas = altered(self.quotas, changes)
        self._version += 1
