"""A worker's quotas: changes reach clients that are already there."""

from proxy.quota.callback import ClientQuotaType, Cluster
from proxy.quota.examples.partitions import PartitionShare
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.quota.quotas import WorkerQuotas
from proxy.quota.shared import UsageTable
from proxy.quota.store import CachedQuotas
from proxy.quota.throttle import Mode
from proxy.quota.window import WindowConfig
from tests.proxy.quota.given import MemoryStore

PRODUCE, FETCH, REQUEST = (
    ClientQuotaType.PRODUCE,
    ClientQuotaType.FETCH,
    ClientQuotaType.REQUEST,
)
BYTES = QuotaKey.PRODUCER_BYTE_RATE
USER = QuotaEntity(user="u")


def office(workers: int = 1, mode: Mode = Mode.ENFORCE) -> list[WorkerQuotas]:
    table = UsageTable(workers, WindowConfig(), rows=64)
    return [WorkerQuotas(table, worker, mode=mode, static={}) for worker in range(workers)]


def test_without_quotas_there_is_nothing_to_measure() -> None:
    (quotas,) = office()
    assert quotas.meters("User:u", "c") == {}
    assert quotas.admit("10.0.0.1", now=1.0) == 0
    assert quotas.open_meters == []


def test_clients_with_the_same_tags_share_a_meter() -> None:
    (quotas,) = office()
    quotas.apply({USER: {BYTES: 100.0}})
    first, second = quotas.meters("User:u", "c"), quotas.meters("User:u", None)
    assert first[PRODUCE] is second[PRODUCE]
    assert first.keys() == {PRODUCE}
    assert quotas.meters("User:v", "c") == {}
    assert quotas.open_meters == [first[PRODUCE]]
    assert first[PRODUCE].tags == {"user": "u", "client-id": ""}


def test_a_change_reaches_open_connections() -> None:
    (quotas,) = office()
    quotas.apply({USER: {BYTES: 100.0}})
    before, meter = quotas.generation, quotas.meters("User:u", "c")[PRODUCE]
    quotas.apply({USER: {BYTES: 200.0}})
    assert quotas.generation > before
    assert quotas.meters("User:u", "c")[PRODUCE] is meter
    assert meter.limit == 200.0
    quotas.apply({USER: {QuotaKey.CONSUMER_BYTE_RATE: 5.0}})
    assert quotas.meters("User:u", "c").keys() == {FETCH}
    quotas.apply({})
    assert quotas.meters("User:u", "c") == {}


def test_a_quota_is_the_proxys_not_the_workers() -> None:
    first, second = office(workers=2)
    for quotas in (first, second):
        quotas.apply({USER: {BYTES: 1_000.0}})
    ours, theirs = first.meters("User:u", "c"), second.meters("User:u", "d")
    assert ours[PRODUCE].record(10_000, now=5.0) == 0
    assert theirs[PRODUCE].record(5_000, now=5.0) == 5_000


def test_reconnecting_does_not_forgive() -> None:
    """The meter is gone with its last connection, what was used is not."""
    (quotas,) = office()
    quotas.apply({USER: {BYTES: 1_000.0}})
    quotas.meters("User:u", "c")[PRODUCE].record(15_000, now=5.0)
    assert quotas.open_meters == []
    assert quotas.meters("User:u", "c")[PRODUCE].record(1, now=5.0) == 5_001


def test_request_percentage_is_a_threads_time() -> None:
    """A fifth of a thread: 2 s of the ten before, and a second is the longest wait."""
    (quotas,) = office()
    quotas.apply({USER: {QuotaKey.REQUEST_PERCENTAGE: 20.0}})
    meter = quotas.meters("User:u", "c")[REQUEST]
    assert meter.record(2_000_000_000, now=5.0) == 0
    assert meter.record(100_000_000, now=5.0) == 500
    assert meter.record(10_000_000_000, now=5.0) == 1_000


def test_each_address_has_a_rate_of_its_own() -> None:
    (quotas,) = office()
    rate = QuotaKey.CONNECTION_CREATION_RATE
    quotas.apply({QuotaEntity(ip=DEFAULT): {rate: 1.0}, QuotaEntity(ip="10.0.0.9"): {rate: 100.0}})
    for address in ("10.0.0.1", "10.0.0.2", "::1"):
        answers = [quotas.admit(address, now=5.0) for _ in range(12)]
        assert answers == [0] * 10 + [1_000] * 2
    assert [quotas.admit("10.0.0.9", now=5.0) for _ in range(12)] == [0] * 12
    assert quotas.admit("::ffff:10.0.0.1", now=5.0) == 1_000, "the same address"


def test_a_callback_of_ones_own_is_asked_and_told() -> None:
    table = UsageTable(1, WindowConfig(), rows=64)
    custom = PartitionShare()
    quotas = WorkerQuotas(table, 0, mode=Mode.ENFORCE, static={}, custom=custom)
    quotas.apply({USER: {BYTES: 1_000.0}})
    quotas.update_cluster_metadata(Cluster(leaders={"t": [1, 2, 2, 2]}, behind=frozenset({1})))
    quotas.tick()
    quotas.close()
    assert quotas._custom is not None
    quotas._custom._thread.join(5)
    assert not quotas._custom._thread.is_alive()
    assert custom.quota_limit(PRODUCE, {"user": "u", "client-id": ""}) == 250.0
    assert quotas.callback_faults == {}
    assert quotas.generation > 1


def test_the_cache_follows_the_store() -> None:
    store = MemoryStore()
    cached = CachedQuotas(store)
    assert not cached.refresh_if_changed()
    store.alter_quotas({USER: {BYTES: 5.0}})
    assert cached.refresh_if_changed()
    assert cached.quotas == {USER: {BYTES: 5.0}}
    store.alter_quotas({USER: {BYTES: 5.0}})
    assert not cached.refresh_if_changed(), "nothing that matters changed"
    store.alter_quotas({USER: {BYTES: None}})
    assert cached.refresh_if_changed()
    assert cached.quotas == {}
