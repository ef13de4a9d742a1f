"""Quotas in a SQLite file: the laws of `proxy.store.interface`."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.quota.model import DEFAULT, CachedQuotas, QuotaEntity, QuotaKey
from proxy.store import Store, StoreError, open_store
from tests.support.quotas import MemoryStore

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


def test_the_version_grows_with_changes_only(store: Store) -> None:
    """Or every worker would look at all quotas for nothing; and an ACL is none of theirs."""
    first = store.quota_version()
    store.alter_quotas({USER: {PRODUCER: 5.0, CONSUMER: 6.0}})
    second = store.quota_version()
    assert second > first
    store.alter_quotas({USER: {PRODUCER: 5.0}})
    store.alter_quotas({USER: {QuotaKey.REQUEST_PERCENTAGE: None}})
    store.alter_quotas({})
    store.create_acls([])
    assert store.quota_version() == second
    store.alter_quotas({USER: {PRODUCER: None}})
    assert second < store.quota_version() == store.quota_snapshot().version


def test_all_or_nothing(store: Store) -> None:
    with pytest.raises(StoreError):
        store.alter_quotas({USER: {PRODUCER: 5.0, CONSUMER: float("nan")}})  # SQLite's NULL
    assert store.quota_snapshot().quotas == {}


def test_a_cache_sees_what_others_wrote(store: Store, path: Path) -> None:
    cached = CachedQuotas(store)
    other = open_store(f"sqlite:{path}")
    other.alter_quotas({USER: {PRODUCER: 5.0}})
    other.close()
    assert cached.refresh_if_changed()
    assert cached.quotas == {USER: {PRODUCER: 5.0}}


entities = st.sampled_from(
    [USER, QuotaEntity(user=DEFAULT), QuotaEntity(client_id="c"), QuotaEntity(ip=DEFAULT)]
)
ops = st.dictionaries(st.sampled_from(QuotaKey), st.none() | st.floats(0.1, 1e12), max_size=3)


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(st.dictionaries(entities, ops, max_size=3), max_size=4))
def test_it_does_what_the_plain_store_does(
    steps: list[dict[QuotaEntity, dict[QuotaKey, float | None]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store, plain = open_store(f"sqlite:{tmp_path_factory.mktemp('s') / 'state.db'}"), MemoryStore()
    for changes in steps:
        store.alter_quotas(changes)
        plain.alter_quotas(changes)
        assert store.quota_snapshot().quotas == plain.quotas
    store.close()


@pytest.mark.parametrize(
    "row", [("users", PRODUCER.value, 1.0), ("users/a", "bytes", 1.0), ("users/a/b/c", "x", 1.0)]
)
def test_a_row_nobody_wrote_is_told(path: Path, row: tuple[str, str, float]) -> None:
    store = open_store(f"sqlite:{path}")
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO quotas VALUES (?, ?, ?)", row)
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="has an invalid value"):
        store.quota_snapshot()
    store.close()
