"""Quotas of users whom their certificates name: commas, blanks, equals signs, any letter."""

import pytest

from proxy.acl.principals import PrincipalMapping, subject_of
from proxy.quota.callback import ClientQuotaType
from proxy.quota.model import QuotaEntity, QuotaKey, sanitize
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.quota.throttle import Mode
from proxy.quota.worker_quotas import WorkerQuotas
from tests.support.certificates import NAMES, certificate
from tests.support.quotas import DONE, MemoryStore, alter, describe

EXACT = 0


def office(store: MemoryStore) -> WorkerQuotas:
    table = UsageTable(1, WindowConfig(), rows=64)
    quotas = WorkerQuotas(table, 0, mode=Mode.ENFORCE, static={})
    quotas.apply(store.quotas)
    return quotas


@pytest.mark.parametrize("case", NAMES)
def test_a_quota_of_a_certificates_name_is_its_clients(case: str) -> None:
    """The API takes the name as it is, where Kafka's ZooKeeper nodes have it encoded (KIP-55)."""
    subject, name = NAMES[case]
    assert PrincipalMapping("DEFAULT").name_of(subject_of(certificate(subject))) == name
    principal = f"User:{name}"
    store = MemoryStore()
    limit = (QuotaKey.PRODUCER_BYTE_RATE, 100.0)
    assert alter(store, ([("user", name)], [limit])) == [DONE]
    quotas = office(store)
    (meter,) = quotas.meters(principal, "c").values()
    assert quotas.meters(principal, "c") == {ClientQuotaType.PRODUCE: meter}
    assert meter.tags["user"] == sanitize(name)
    assert describe(store, ("user", EXACT, name)) == [f"user:{name}"]
    entity = QuotaEntity(user=name)
    assert QuotaEntity.from_entity_path(entity.entity_path) == entity


def test_a_quota_is_not_taken_for_that_of_a_name_alike() -> None:
    """Neither the encoded name nor a part of it, nor another spelling, is the same user."""
    name = "CN=Zoë\\, ops,OU=a\\=b,O=Acme"
    store = MemoryStore()
    alter(store, ([("user", name)], [(QuotaKey.PRODUCER_BYTE_RATE, 100.0)]))
    quotas = office(store)
    others = (
        sanitize(name),
        f"User:{name}",
        name.replace(",O=", ", O="),
        name.lower(),
        "CN=Zoe\u0308\\, ops,OU=a\\=b,O=Acme",
        "Zoë, ops",
        f"{name},C=DE",
    )
    for other in others:
        assert quotas.meters(f"User:{other}", "c") == {}, other
        assert describe(store, ("user", EXACT, other)) == [], other
    assert quotas.meters(f"User:{name}", "c")
