"""Quotas in a SQLite file: the laws of `proxy.store.interface`."""

from pathlib import Path

from proxy.quota.model import DEFAULT, CachedQuotas, QuotaEntity, QuotaKey
from proxy.store import Store, open_store

USER = QuotaEntity(user="alice")
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


def test_what_was_set_is_there_after_a_restart(store: Store, path: Path) -> None:
    quotas = {
        QuotaEntity(user=name, client_id=DEFAULT): {PRODUCER: 2.0**63, CONSUMER: 1.0}
        for name in ("é/\0", "<default>", "' OR 1=1 --", "%41", "\U0001f600")
    }
    quotas[QuotaEntity(user=DEFAULT)] = {QuotaKey.REQUEST_PERCENTAGE: 0.1}
    quotas[QuotaEntity(ip="2001:db8::1")] = {QuotaKey.CONNECTION_CREATION_RATE: 7.0}
    store.alter_quotas(quotas)
    again = open_store(f"sqlite:{path}")
    assert again.quota_snapshot().quotas == quotas
    again.close()


def test_a_cache_sees_what_others_wrote(store: Store, path: Path) -> None:
    cached = CachedQuotas(store)
    other = open_store(f"sqlite:{path}")
    for limit, changes in ((5.0, True), (5.0, False), (None, True)):
        other.alter_quotas({USER: {PRODUCER: limit}})
        assert cached.refresh_if_changed() is changes
        assert cached.quotas == ({USER: {PRODUCER: limit}} if limit else {})
    other.close()
