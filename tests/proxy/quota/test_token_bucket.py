"""The bucket that workers share, beside Kafka's own arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.shared_memory import MAX_THROTTLE_TIME_MS, UsageTable, WindowConfig
from proxy.quota.token_bucket import Bucket
from tests.support.kafka_quotas import TokenBucket

KIND, TAGS = "controller_mutation_rate", {"user": "u", "client-id": ""}
CONFIG = WindowConfig()


def buckets(limit: float, workers: int = 1) -> list[Bucket]:
    table = UsageTable(workers, CONFIG, rows=8)
    return [Bucket(table, worker, kind=KIND, tags=TAGS, limit=limit) for worker in range(workers)]


def test_lives_through_an_overdraft() -> None:
    """Quota 5, burst 55: a request for 60 passes and leaves a debt of 5, paid after a second."""
    (bucket,) = buckets(5.0)
    assert bucket.try_record(60, now=10.0) == 0
    assert bucket.tokens(10.0) == pytest.approx(-5.0)
    assert bucket.try_record(1, now=10.4) == 600
    assert bucket.try_record(1, now=11.0) == 0
    assert bucket.tokens(11.0) == pytest.approx(-1.0)


def test_what_was_not_done_is_given_back() -> None:
    """Also when the sample in which it was taken is over."""
    (bucket,) = buckets(1.0)
    assert bucket.try_record(31, now=5.2) == 0
    assert bucket.try_record(1, now=7.2) == 18_000
    bucket.correct(-31, now=7.2)
    assert bucket.tokens(7.2) == pytest.approx(11.0)
    assert bucket.try_record(11, now=7.2) == 0
    assert bucket.tokens(7.2) == pytest.approx(0.0)


def test_giving_back_never_fills_it_above_its_brim() -> None:
    (bucket,) = buckets(1.0)
    bucket.correct(-500, now=5.0)
    assert bucket.tokens(5.0) == 11.0
    assert bucket.try_record(12, now=6.5) == 0
    assert bucket.try_record(1, now=6.5) == 1_000


def test_a_worker_whose_clock_lags_is_not_overlooked() -> None:
    """The event loop's time may be some milliseconds old, and a sample begin in between."""
    first, second = buckets(1.0, workers=2)
    second.try_record(1, now=6.001)
    first.try_record(11, now=5.998)
    assert second.throttle_time_ms(now=6.001) == 1_000


def test_reconnecting_does_not_forgive() -> None:
    table = UsageTable(1, CONFIG, rows=8)
    for now, wait in ((5.0, 0), (6.0, 99_000)):
        bucket = Bucket(table, 0, kind=KIND, tags=TAGS, limit=1.0)
        assert bucket.try_record(111, now) == wait


def test_a_row_is_kept_until_the_debt_is_paid() -> None:
    """Others that crowd the same places must not make a debt forgotten."""
    table = UsageTable(1, CONFIG, rows=8)
    bucket = Bucket(table, 0, kind=KIND, tags=TAGS, limit=1.0)
    bucket.try_record(1_011, now=5.0)
    others = [Bucket(table, 0, kind=KIND, tags={"n": str(n)}, limit=1.0) for n in range(20)]
    for other in others:
        other.try_record(1, now=30.0)
    assert [other.alone for other in others].count(False) == 7
    assert bucket.try_record(1, now=505.0) == 500_000
    assert bucket.try_record(1, now=1_005.0) == 0


def test_what_all_added_to_a_debt_is_kept_until_it_is_paid() -> None:
    """Also what a worker added that makes no debt by itself."""
    first, second = buckets(1.0, workers=2)
    first.try_record(5, now=5.0)
    second.record(500, now=5.0)
    assert second.throttle_time_ms(now=30.0) == (505 - 11 - 25) * 1_000


def test_a_changed_limit_changes_what_is_owed() -> None:
    (bucket,) = buckets(1.0)
    bucket.try_record(21, now=5.0)
    bucket.limit = 10.0
    assert bucket.throttle_time_ms(now=5.0) == 10_000
    assert bucket.throttle_time_ms(now=15.0) == 0


def test_absurd_numbers_are_bounded() -> None:
    (bucket,) = buckets(1e-300)
    for _ in range(10):
        bucket.record(2**31 - 1, now=5.0)
    assert bucket.throttle_time_ms(now=5.0) == MAX_THROTTLE_TIME_MS
    (bucket,) = buckets(1e300)
    assert bucket.record(2**31 - 1, now=5.0) == 0


STEPS = st.lists(
    st.tuples(st.integers(0, 25_000), st.integers(0, 400), st.integers(0, 1), st.booleans()),
    max_size=40,
)


@given(limit=st.floats(0.1, 1_000), start=st.integers(0, 5_000_000), steps=STEPS)
def test_is_kafkas_bucket(
    limit: float, start: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    """Whichever worker is asked, the answer is that of one `TokenBucket`."""
    time = start
    kafkas, ours = TokenBucket(limit, CONFIG, now=time / 1_000), buckets(limit, workers=2)
    for wait, mutations, worker, strict in steps:
        time += wait
        now = time / 1_000
        mine = ours[worker]
        assert mine.tokens(now) == pytest.approx(kafkas.tokens(now), abs=1e-3 * limit)
        if abs(kafkas.tokens(now)) < 1e-3 * limit:
            return  # a microsecond decides
        if strict:
            reported, expected = mine.try_record(mutations, now), kafkas.try_record(mutations, now)
        else:
            reported, expected = mine.record(mutations, now), kafkas.record(mutations, now)
        if abs(kafkas.tokens(now)) < 1e-3 * limit:
            return
        assert reported == pytest.approx(expected, abs=1)


@given(steps=STEPS)
def test_a_clock_that_steps_back_grants_nothing(steps: list[tuple[int, int, int, bool]]) -> None:
    (bucket,) = buckets(7.0)
    bucket.try_record(77, now=1_000.0)
    time = 1_000_000
    for back, mutations, _, _ in steps:
        time -= back % 900
        bucket.record(mutations, now=time / 1_000)
        assert bucket.tokens(time / 1_000) <= 1e-6
