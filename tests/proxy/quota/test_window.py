"""Kafka's arithmetic, compared with a naive account of it and with examples worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.shared_memory import (
    MAX_THROTTLE_TIME_MS,
    WindowConfig,
    max_in_window,
)
from tests.support.kafka_quotas import Rate, TokenBucket, throttle_time_ms

KAFKA = WindowConfig()


def test_a_first_burst_is_measured_over_a_whole_window() -> None:
    """Ten samples before it count as empty: `Rate.windowSize`, "First ever window"."""
    rate = Rate(KAFKA)
    rate.record(1_000, now=100.0)
    assert rate.window_ms(100.0) == 10_000
    assert rate.measure(100.0) == 100.0
    assert rate.window_ms(100.4) == 10_400


def test_a_full_window_reaches_back_to_its_oldest_sample() -> None:
    rate = Rate(KAFKA)
    for second in range(12):
        rate.record(10, now=float(second))
    assert rate.window_ms(11.5) == 10_500, "the sample of 0 s is too old, that of 1 s is not"
    assert rate.measure(11.5) == 110 / 10.5


def test_a_sample_counts_until_its_last_event_is_too_old() -> None:
    """Samples that overlap the window's beginning are kept (Kafka since 3.9)."""
    rate = Rate(KAFKA)
    rate.record(10, now=0.0)
    rate.record(10, now=0.9)
    assert rate.measure(11.8) == 20 / 11.8
    assert rate.measure(11.9) == 0.0


def test_after_a_long_silence_the_window_is_empty_and_full_length() -> None:
    rate = Rate(KAFKA)
    rate.record(10**9, now=0.0)
    rate.record(100, now=1_000.0)
    assert rate.measure(1_000.0) == 10.0


@given(
    num=st.integers(1, 12),
    size=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(0, 4_000), st.integers(-5, 100)), max_size=60),
)
def test_the_rate_is_that_of_a_naive_account(
    num: int, size: int, steps: list[tuple[int, int]]
) -> None:
    """Everything is remembered, and at each moment the samples are told anew from the start."""
    config = WindowConfig(num=num, size_seconds=size)
    rate, log, time = Rate(config), [], 7_000
    for wait, value in steps:
        time += wait
        log.append((time, value))
        rate.record(value, time / 1_000)
        expected, window = naive(config, log, time)
        assert rate.window_ms(time / 1_000) == window
        if window:
            assert rate.measure(time / 1_000) == pytest.approx(expected / (window / 1_000))


def naive(config: WindowConfig, log: list[tuple[int, int]], now: int) -> tuple[float, int]:
    """Tell samples from the log: one ends when an event comes a sample's length after its start,
    or when everything before is forgotten."""
    size, num = config.size_ms, config.num
    samples: list[list[int]] = []  # start, last event, value
    for time, value in log:
        # what the look after the previous event forgot begins anew with that look
        if not samples or time - samples[-1][0] >= size:
            samples.append([time, time, 0])
        samples[-1][1], samples[-1][2] = time, samples[-1][2] + value
        samples = [one for one in samples if time - one[1] < num * size][-(num + 1) :]
    start = min((one[0] for one in samples), default=now)
    elapsed = now - start
    elapsed += max(0, num - 1 - elapsed // size) * size
    return sum(one[2] for one in samples), elapsed


@pytest.mark.parametrize(
    ("observed", "limit", "window_ms", "expected"),
    [
        (100.0, 100.0, 10_000, 0),
        (99.0, 100.0, 10_000, 0),
        (150.0, 100.0, 10_000, 5_000),
        (560 / 100, 5.0, 100_000, 12_000),  # the example in TokenBucket's documentation
        (1e300, 1e-9, 10_000, MAX_THROTTLE_TIME_MS),
        (float("inf"), 1.0, 10_000, MAX_THROTTLE_TIME_MS),
    ],
)
def test_the_throttle_time_brings_the_rate_down(
    observed: float, limit: float, window_ms: int, expected: int
) -> None:
    assert throttle_time_ms(observed, limit, window_ms) == expected


@given(used=st.integers(1, 10**9), limit=st.integers(1, 10**6), window=st.integers(10_000, 11_000))
def test_after_the_throttle_time_the_rate_is_the_limit(used: int, limit: int, window: int) -> None:
    """Kafka's own derivation: observed * window / (window + throttle) = limit."""
    observed = used / (window / 1_000)
    wait = throttle_time_ms(observed, limit, window)
    if 0 < wait < MAX_THROTTLE_TIME_MS:
        assert used / ((window + wait) / 1_000) == pytest.approx(limit, rel=1 / window)


def test_a_fetch_may_ask_for_ten_seconds_worth() -> None:
    assert max_in_window(1_000.0, KAFKA) == 10_000.0


def test_a_bucket_lives_through_an_overdraft() -> None:
    """Quota 5, burst 55: a request for 60 passes and leaves a debt of 5, paid after a second."""
    bucket = TokenBucket(5.0, KAFKA, now=10.0)
    assert bucket.try_record(60, now=10.0) == 0
    assert bucket.tokens(10.0) == -5.0
    assert bucket.try_record(1, now=10.4) == 600
    assert bucket.try_record(1, now=11.0) == 0
    assert bucket.tokens(11.0) == -1.0


def test_a_permissive_bucket_takes_whatever_is_asked() -> None:
    bucket = TokenBucket(5.0, KAFKA, now=0.0)
    assert bucket.record(55, now=0.0) == 0
    assert bucket.record(5, now=0.0) == 1_000
    assert bucket.record(5, now=0.0) == 2_000


@given(
    limit=st.floats(0.1, 1_000),
    steps=st.lists(st.tuples(st.integers(-500, 20_000), st.integers(0, 500)), max_size=30),
)
def test_a_bucket_never_grants_more_than_burst_and_rate(
    limit: float, steps: list[tuple[int, int]]
) -> None:
    """Over any time, but for the one request that overdraws it; a clock step changes nothing."""
    bucket, time, latest = TokenBucket(limit, KAFKA, now=100.0), 100_000, 100_000
    granted = 0.0
    for wait, mutations in steps:
        time += wait
        latest = max(latest, time)
        before = granted
        if bucket.try_record(mutations, time / 1_000) == 0:
            granted += mutations
        bound = limit * (11 + (latest - 100_000) / 1_000)
        assert before <= bound + 1e-6 or granted == before
