"""One connection's life under quotas, as a transcript."""

from proxy.quota.callback import ClientQuotaType
from proxy.quota.meter import Meter
from proxy.quota.shared import UsageTable
from proxy.quota.throttle import Mode, Throttle, Throttled
from proxy.quota.window import NANOSECONDS_PER_PERCENT, WindowConfig

TAGS = {"user": "u", "client-id": ""}


def meter(limit: float, kind: ClientQuotaType, longest_ms: int = 2**31 - 1) -> Meter:
    table = UsageTable(1, WindowConfig(), rows=8)
    return Meter(table, 0, kind=kind.name, tags=TAGS, limit=limit, longest_ms=longest_ms)


def throttle(mode: Mode = Mode.ENFORCE) -> tuple[Throttle, list[Throttled]]:
    told: list[Throttled] = []
    meters = {
        ClientQuotaType.PRODUCE: meter(1_000.0, ClientQuotaType.PRODUCE),
        ClientQuotaType.FETCH: meter(2_000.0, ClientQuotaType.FETCH),
        ClientQuotaType.REQUEST: meter(
            50.0 * NANOSECONDS_PER_PERCENT, ClientQuotaType.REQUEST, 1_000
        ),
    }
    return Throttle(meters, mode, told.append), told


def test_each_direction_has_its_own_quota() -> None:
    connection, told = throttle()
    assert connection.produced(10_000, now=100.0) == 0
    assert connection.fetched(20_000, now=100.0) == 0
    assert connection.held_until <= 100.0
    assert connection.produced(2_000, now=100.0) == 2_000
    assert connection.fetched(2_000, now=100.0) == 1_000
    assert connection.held_until == 102.0, "the longer of the two"
    assert [(one.quota_type, one.throttle_time_ms, one.enforced) for one in told] == [
        (ClientQuotaType.PRODUCE, 2_000, True),
        (ClientQuotaType.FETCH, 1_000, True),
    ]


def test_who_uses_too_much_time_waits_a_second_at_most() -> None:
    """`ClientRequestQuotaManager`: bounded by the length of a sample."""
    connection, _ = throttle()
    assert connection.spent(5_000_000_000, now=100.0) == 0
    assert connection.spent(50_000_000, now=100.0) == 100
    assert connection.spent(60_000_000_000, now=100.0) == 1_000
    assert connection.held_until == 101.0


def test_in_audit_nobody_is_held_and_everything_is_told() -> None:
    connection, told = throttle(Mode.AUDIT)
    assert connection.produced(12_000, now=100.0) == 0
    assert [(one.throttle_time_ms, one.enforced) for one in told] == [(2_000, False)]


def test_in_audit_a_hold_is_not_told_twice() -> None:
    """While it would have been held, it would not have sent what it sends."""
    connection, told = throttle(Mode.AUDIT)
    for _ in range(5):
        connection.produced(12_000, now=100.0)
    assert len(told) == 1
    connection.produced(12_000, now=102.0)
    assert len(told) == 2


def test_in_audit_no_quota_hides_another() -> None:
    """Who would be held by one of them all the time is told of the others too."""
    connection, told = throttle(Mode.AUDIT)
    connection.spent(60_000_000_000, now=100.0)
    connection.produced(12_000, now=100.5)
    connection.fetched(24_000, now=100.5)
    assert [one.quota_type for one in told] == [
        ClientQuotaType.REQUEST,
        ClientQuotaType.PRODUCE,
        ClientQuotaType.FETCH,
    ]
    assert connection.held_until > 102.0


def test_without_quotas_nothing_is_counted() -> None:
    told: list[Throttled] = []
    connection = Throttle({}, Mode.ENFORCE, told.append)
    assert connection.produced(10**12, 1.0) == connection.fetched(10**12, 1.0) == 0
    assert connection.spent(10**12, 1.0) == 0
    assert not told


def test_a_hold_outlives_the_quota_it_is_for() -> None:
    """A client that was told to wait waits; what it does then falls under what is set now."""
    connection, _ = throttle()
    connection.produced(12_000, now=100.0)
    connection.apply({})
    assert connection.held_until == 102.0
    assert connection.produced(10**9, now=102.0) == 0
