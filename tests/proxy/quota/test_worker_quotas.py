"""A worker's quotas: changes reach clients that are already there."""

import pytest

from proxy.quota import guarded_callback
from proxy.quota.callback import ClientQuotaType, Cluster, DefaultQuotaCallback, QuotaCallback
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.quota.throttle import Mode
from proxy.quota.worker_quotas import MAX_COUNTS, METERED, OTHER_ENTRIES, WorkerQuotas
from tests.support.processes import PATIENCE_SECONDS
from tests.support.quota_callbacks.groups import QuotaGroups
from tests.support.quota_callbacks.partitions import PartitionShare

PRODUCE, FETCH, REQUEST = (ClientQuotaType.PRODUCE, ClientQuotaType.FETCH, ClientQuotaType.REQUEST)
BYTES = QuotaKey.PRODUCER_BYTE_RATE
MUTATIONS = QuotaKey.CONTROLLER_MUTATION_RATE
USER = QuotaEntity(user="u")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a machine that has something else to do than to run a callback's thread."""
    monkeypatch.setattr(guarded_callback, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)


def office(workers: int = 1, custom: QuotaCallback | None = None) -> list[WorkerQuotas]:
    table, more = UsageTable(workers, WindowConfig(), rows=64), {"custom": custom}
    return [WorkerQuotas(table, n, mode=Mode.ENFORCE, static={}, **more) for n in range(workers)]


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


def test_a_callback_of_ones_own_is_asked_and_told() -> None:
    custom = PartitionShare()
    (quotas,) = office(custom=custom)
    quotas.apply({USER: {BYTES: 1_000.0}})
    quotas.update_cluster_metadata(Cluster(leaders={"t": [1, 2, 2, 2]}, behind=frozenset({1})))
    quotas.tick()
    quotas.close()
    assert quotas._custom is not None
    quotas._custom._thread.join(PATIENCE_SECONDS)
    assert not quotas._custom._thread.is_alive()
    assert custom.quota_limit(PRODUCE, {"user": "u", "client-id": ""}) == 250.0
    assert quotas.callback_faults == {}
    assert quotas.generation > 1


def test_thousands_of_client_ids_cost_what_their_connections_cost() -> None:
    """Client ids are free. Each falls under one entry, and is forgotten with its connection."""
    (quotas,) = office()
    rates = {BYTES: 1_000.0, MUTATIONS: 1.0}
    quotas.apply({QuotaEntity(client_id=DEFAULT): rates})
    for number in range(4_000):
        client_id = f"forged-{number}"
        meter = quotas.meters("User:u", client_id)[PRODUCE]
        meter.record(20_000, now=5.0)
        bucket = quotas.bucket("User:u", client_id)
        assert bucket is not None
        bucket.record(20, now=5.0)
    assert quotas.counts.keys() == {(BYTES, "clients/<default>"), (MUTATIONS, "clients/<default>")}
    del meter, bucket
    assert quotas.open_meters == []
    assert quotas.limits() == []


def test_a_callback_that_makes_up_tags_makes_no_more_metrics_than_there_may_be() -> None:
    """`MAX_COUNTS` entries are counted by themselves, the rest together."""

    class OneEach(DefaultQuotaCallback):
        def quota_metric_tags(
            self, quota_type: ClientQuotaType, principal: str, client_id: str
        ) -> dict[str, str]:
            return {"one": f"{quota_type.name} {principal} {client_id}"}

        def quota_limit(self, _type: ClientQuotaType, _tags: Tags) -> float:
            return 5.0

    (quotas,) = office(custom=OneEach())
    for number in range(MAX_COUNTS):
        quotas.meters("User:u", f"c-{number}")
    assert len(quotas.counts) <= MAX_COUNTS + len(METERED)
    assert (BYTES, OTHER_ENTRIES) in quotas.counts
    quotas.close()


def test_mutations_have_a_bucket_which_all_workers_share() -> None:
    first, second = office(workers=2)
    for quotas in (first, second):
        quotas.apply({USER: {MUTATIONS: 1.0}})
        assert quotas.meters("User:u", "c") == {}
        assert quotas.bucket("User:v", "c") is None
    ours, theirs = first.bucket("User:u", "c"), second.bucket("User:u", "d")
    assert ours is not None
    assert theirs is not None
    assert ours.try_record(12, now=5.0) == 0
    assert theirs.try_record(1, now=5.0) == 1_000
    assert first.limits() == [(MUTATIONS, "users/u", 1.0)]
    first.apply({USER: {MUTATIONS: 2.0}})
    assert first.bucket("User:u", "c") is ours
    assert ours.limit == 2.0


def test_mutations_of_a_callbacks_quota() -> None:
    groups = QuotaGroups()
    groups.configure({"groups": {"web": ["a", "b"]}})
    (quotas,) = office(custom=groups)
    quotas.apply({QuotaEntity(user="web"): {MUTATIONS: 1.0}})
    one, other = quotas.bucket("User:a", "c"), quotas.bucket("User:b", None)
    assert one is not None
    assert one is other
    assert one.tags == {"group": "web"}
    assert quotas.bucket("User:else", "c") is None
    quotas.close()
