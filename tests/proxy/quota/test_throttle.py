"""One connection's life under quotas, as a transcript."""

import pytest

from proxy.quota.callback import ClientQuotaType
from proxy.quota.meter import Meter
from proxy.quota.shared_memory import NANOSECONDS_PER_PERCENT, UsageTable, WindowConfig
from proxy.quota.throttle import Mode, Throttle, Throttled

TAGS = {"user": "u", "client-id": ""}


def meter(limit: float, kind: ClientQuotaType, max_throttle_ms: int = 2**31 - 1) -> Meter:
    table = UsageTable(1, WindowConfig(), rows=8)
    return Meter(table, 0, kind=kind.name, tags=TAGS, limit=limit, max_throttle_ms=max_throttle_ms)


def throttle(mode: Mode = Mode.ENFORCE) -> tuple[Throttle, list[Throttled]]:
    reported: list[Throttled] = []
    meters = {
        ClientQuotaType.PRODUCE: meter(1_000.0, ClientQuotaType.PRODUCE),
        ClientQuotaType.FETCH: meter(2_000.0, ClientQuotaType.FETCH),
        ClientQuotaType.REQUEST: meter(
            50.0 * NANOSECONDS_PER_PERCENT, ClientQuotaType.REQUEST, 1_000
        ),
    }
    return Throttle(meters, mode, reported.append), reported


def test_each_direction_has_its_own_quota() -> None:
    connection, reported = throttle()
    assert connection.produced(10_000, now=100.0) == 0
    assert connection.fetched(20_000, now=100.0) == 0
    assert connection.held_until <= 100.0
    assert connection.produced(2_000, now=100.0) == 2_000
    assert connection.fetched(2_000, now=100.0) == 1_000
    assert connection.held_until == 102.0, "the longer of the two"
    assert [(one.quota_type, one.throttle_time_ms, one.enforced) for one in reported] == [
        (ClientQuotaType.PRODUCE, 2_000, True),
        (ClientQuotaType.FETCH, 1_000, True),
    ]


def test_a_fetch_that_comes_when_the_quota_is_exceeded_is_left_out_and_not_counted() -> None:
    connection, _ = throttle()
    assert connection.fetched(30_000, now=100.0) == 5_000
    assert not connection.leaves_out, "the one that exceeds it is delivered"
    for _ in range(3):
        assert connection.fetched(30_000, now=100.0) == 5_000
        assert connection.leaves_out
    assert connection.fetched(30_000, now=130.0) == 5_000
    assert not connection.leaves_out


def test_what_a_fetch_may_ask_for() -> None:
    """A window's worth, as in Kafka; while the quota is exceeded next to nothing."""
    connection, _ = throttle()
    assert connection.bounds_fetches
    assert connection.max_fetch_bytes(now=100.0) == 20_000
    connection.fetched(30_000, now=100.0)
    assert connection.max_fetch_bytes(now=100.0) == 1
    assert connection.max_fetch_bytes(now=130.0) == 20_000


def test_of_those_who_come_back_together_one_is_first() -> None:
    """Or the broker would send all of them what but one will get."""
    fetches = meter(2_000.0, ClientQuotaType.FETCH)
    crowd = [
        Throttle({ClientQuotaType.FETCH: fetches}, Mode.ENFORCE, lambda _: None) for _ in range(4)
    ]
    first, second, third, late = crowd
    assert first.fetched(30_000, now=100.0) == 5_000
    assert [one.max_fetch_bytes(now=114.9) for one in crowd] == [1] * 4
    assert [one.fetched(500, now=114.9) for one in crowd] == [100] * 4
    assert [one.max_fetch_bytes(now=115.0) for one in (first, second, third)] == [20_000, 1, 1]
    second.fetched(500, now=115.01)
    assert second.fetched(500, now=115.01) > 0
    assert second.leaves_out
    first.fetched(20_000, now=115.02)
    assert not first.leaves_out, "others have exceeded it meanwhile"
    third.fetched(500, now=115.03)
    assert third.leaves_out
    assert late.max_fetch_bytes(now=160.0) == 20_000, "it waited for longer than all the others"
    assert first.max_fetch_bytes(now=160.0) == 20_000


@pytest.mark.parametrize("batch", [100, 700, 5_000])
def test_however_many_connections_are_opened_the_average_is_the_quota(batch: int) -> None:
    """Twenty new ones a second, none of which waits for anything."""
    limit, seconds = 2_000, 120
    fetches = meter(float(limit), ClientQuotaType.FETCH)
    delivered: list[tuple[float, int]] = []
    for step in range(20 * seconds):
        now = 1_000.0 + step / 20
        connection = Throttle({ClientQuotaType.FETCH: fetches}, Mode.ENFORCE, lambda _: None)
        size = max(batch, connection.max_fetch_bytes(now) // batch * batch)
        connection.fetched(size, now + 0.005)
        if not connection.leaves_out:
            delivered.append((now, size))
    for begin in (0.0, 3.3, 30.0, 77.7):
        times = [(at - 1_000.0, size) for at, size in delivered if at - 1_000.0 >= begin]
        passed = sum(size for _, size in times[:-1])
        assert passed <= limit * max(11.0, times[-1][0] - begin)
    assert sum(size for _, size in delivered) >= 0.97 * limit * seconds


def test_a_claim_ends_by_itself() -> None:
    """A client with nothing to fetch does not delay others."""
    fetches = meter(2_000.0, ClientQuotaType.FETCH)
    first, second = (
        Throttle({ClientQuotaType.FETCH: fetches}, Mode.ENFORCE, lambda _: None) for _ in range(2)
    )
    first.fetched(30_000, now=100.0)
    first.fetched(500, now=114.9)
    assert first.max_fetch_bytes(now=115.0) == 20_000
    assert second.max_fetch_bytes(now=115.05) == 1
    assert second.max_fetch_bytes(now=115.2) == 20_000
    second.fetched(20_000, now=115.25)
    first.fetched(20_000, now=115.5)
    assert first.leaves_out


def test_in_audit_no_fetch_is_bounded() -> None:
    connection, reported = throttle(Mode.AUDIT)
    assert not connection.bounds_fetches
    for _ in range(3):
        assert connection.fetched(30_000, now=100.0) == 0
        assert not connection.leaves_out
    assert connection.waits_until == 0.0
    assert len(reported) == 1


def test_a_quota_that_is_gone_leaves_nothing_out() -> None:
    connection, _ = throttle()
    connection.fetched(30_000, now=100.0)
    connection.fetched(30_000, now=100.0)
    connection.apply({})
    assert connection.fetched(30_000, now=100.0) == 0
    assert not connection.leaves_out
    assert not connection.bounds_fetches


def test_who_uses_too_much_time_waits_a_second_at_most() -> None:
    """`ClientRequestQuotaManager`: bounded by the length of a sample."""
    connection, _ = throttle()
    assert connection.spent(5_000_000_000, now=100.0) == 0
    assert connection.spent(50_000_000, now=100.0) == 100
    assert connection.spent(60_000_000_000, now=100.0) == 1_000
    assert connection.held_until == 101.0


def test_in_audit_nobody_is_held_and_a_hold_is_told_once() -> None:
    """While it would have been held, it would not have sent what it sends."""
    connection, reported = throttle(Mode.AUDIT)
    for _ in range(5):
        assert connection.produced(12_000, now=100.0) == 0
    assert [(one.throttle_time_ms, one.enforced) for one in reported] == [(2_000, False)]
    connection.produced(12_000, now=102.0)
    assert len(reported) == 2


def test_in_audit_no_quota_hides_another() -> None:
    """A client that one quota would always hold is reported for the others too."""
    connection, reported = throttle(Mode.AUDIT)
    connection.spent(60_000_000_000, now=100.0)
    connection.produced(12_000, now=100.5)
    connection.fetched(24_000, now=100.5)
    assert [one.quota_type for one in reported] == [
        ClientQuotaType.REQUEST,
        ClientQuotaType.PRODUCE,
        ClientQuotaType.FETCH,
    ]
    assert connection.held_until > 102.0


def test_without_quotas_nothing_is_counted() -> None:
    reported: list[Throttled] = []
    connection = Throttle({}, Mode.ENFORCE, reported.append)
    assert connection.produced(10**12, 1.0) == connection.fetched(10**12, 1.0) == 0
    assert connection.spent(10**12, 1.0) == 0
    assert not reported


def test_a_hold_outlives_the_quota_it_is_for() -> None:
    """A client that has been throttled waits; its later requests fall under the current quota."""
    connection, _ = throttle()
    connection.produced(12_000, now=100.0)
    connection.apply({})
    assert connection.held_until == 102.0
    assert connection.produced(10**9, now=102.0) == 0
