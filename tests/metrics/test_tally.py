import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.metric import OTHER, PREFIX, Metric, MetricType
from metrics.registry import (
    AUTHENTICATION_FAILURES,
    CONNECTIONS,
    CONNECTIONS_OPENED,
    EVENT_LOOP_LAG,
    EVENTS_WRITTEN,
    EXPIRED_CONNECTIONS_KILLED,
    JWKS_AGE,
    METRICS,
    REAUTHENTICATION_LATENCY,
    REQUESTS,
    START_TIME,
    SUCCESSFUL_AUTHENTICATION,
    WORKER_UP,
)
from metrics.snapshot import Merger, Snapshot
from metrics.tally import Tally

SCRAM = ("clients", "SCRAM-SHA-256")


def test_names_keep_prometheus_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith(PREFIX)
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert bool(metric.buckets) == ("histogram" in metric.type)
        assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_no_label_is_unbounded_by_nature() -> None:
    forbidden = {"topic", "principal", "client_id", "user", "host", "connection_id"}
    assert not any(forbidden & set(metric.labels) for metric in METRICS)


def test_configured_sessions_are_zero_from_the_start() -> None:
    """Without the 0, rate() does not see the first failure."""
    values = Tally(run="a", sessions=[SCRAM]).snapshot().values
    assert values[SUCCESSFUL_AUTHENTICATION.name] == {SCRAM: 0}
    assert values[EVENTS_WRITTEN.name] == {(): 0}


def test_a_listener_without_sasl_begins_with_zeros_too() -> None:
    values = Tally(run="a", sessions=[SCRAM], listeners=["clients", "plain"]).snapshot().values
    assert values[CONNECTIONS_OPENED.name] == {("clients",): 0, ("plain",): 0}
    assert values[SUCCESSFUL_AUTHENTICATION.name] == {SCRAM: 0}


def test_mechanisms_that_brokers_offer_are_zero_from_their_first_login_on() -> None:
    """Or `increase()` would not see the first connection that is killed."""
    tally = Tally(run="a", listeners=["clients"])
    assert tally.snapshot().values.get(EXPIRED_CONNECTIONS_KILLED.name) is None
    tally.count(SUCCESSFUL_AUTHENTICATION, *SCRAM)
    assert tally.snapshot().values[EXPIRED_CONNECTIONS_KILLED.name] == {SCRAM: 0}


def test_counts_and_observations() -> None:
    tally = Tally(run="a", sessions=[SCRAM])
    tally.count(SUCCESSFUL_AUTHENTICATION, *SCRAM)
    tally.count(SUCCESSFUL_AUTHENTICATION, *SCRAM, by=2)
    tally.observe(REAUTHENTICATION_LATENCY, 0.001, *SCRAM)
    tally.observe(REAUTHENTICATION_LATENCY, 99.0, *SCRAM)
    snapshot = tally.snapshot()
    assert snapshot.values[SUCCESSFUL_AUTHENTICATION.name][SCRAM] == 3
    histogram = snapshot.histograms[REAUTHENTICATION_LATENCY.name][SCRAM]
    assert (histogram.counts[0], histogram.counts[-1], histogram.sum) == (1, 1, 99.001)


def test_inventing_names_does_not_grow_the_memory() -> None:
    """An attacker offers a new mechanism each time; what is configured must still be counted."""
    tally = Tally(run="a", sessions=[SCRAM])
    for number in range(5000):
        tally.count(SUCCESSFUL_AUTHENTICATION, "clients", f"MECH-{number}")
    tally.count(SUCCESSFUL_AUTHENTICATION, *SCRAM)
    series = tally.snapshot().values[SUCCESSFUL_AUTHENTICATION.name]
    assert len(series) == SUCCESSFUL_AUTHENTICATION.max_label_sets + 2
    assert series[SCRAM] == 1
    assert series[OTHER, OTHER] == 5000 - SUCCESSFUL_AUTHENTICATION.max_label_sets
    assert sum(series.values()) == 5001


def test_a_snapshot_does_not_change_afterwards() -> None:
    tally = Tally(run="a", sessions=[SCRAM])
    before = tally.snapshot()
    tally.observe(REAUTHENTICATION_LATENCY, 1.0, *SCRAM)
    tally.count(SUCCESSFUL_AUTHENTICATION, *SCRAM)
    assert before == Tally(run="a", sessions=[SCRAM]).snapshot()


def test_collect_adds_what_is_counted_elsewhere() -> None:
    def collect(snapshot: Snapshot) -> None:
        snapshot.count(REQUESTS, 7, "clients", "Fetch")
        snapshot.gauge(CONNECTIONS, 2, "clients")

    tally = Tally(run="a", collect=collect)
    assert [tally.snapshot().values[REQUESTS.name] for _ in range(2)] == [
        {("clients", "Fetch"): 7}
    ] * 2


@pytest.mark.parametrize(
    ("metric", "labels"), [(CONNECTIONS, ("clients",)), (REQUESTS, ("clients",)), (REQUESTS, ())]
)
def test_a_wrong_call_is_found_where_it_is_made(metric: Metric, labels: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        Snapshot().count(metric, 1, *labels)


@given(st.lists(st.floats(0, 20), max_size=30), st.lists(st.floats(0, 20), max_size=30))
def test_merging_workers_equals_one_worker(mine: list[float], theirs: list[float]) -> None:
    def worker(values: list[float]) -> Snapshot:
        tally = Tally(run="a", sessions=[SCRAM])
        for value in values:
            tally.observe(REAUTHENTICATION_LATENCY, value, *SCRAM)
            tally.count(AUTHENTICATION_FAILURES, *SCRAM, f"reason-{int(value)}")
        return Snapshot.from_json(json.loads(json.dumps(tally.snapshot().to_json())))

    merged = worker(mine)
    merged.merge(worker(theirs))
    both = worker(mine + theirs)
    assert merged.values == both.values
    name = REAUTHENTICATION_LATENCY.name
    assert merged.histograms[name][SCRAM].counts == both.histograms[name][SCRAM].counts


def answer(run: str, count: int, *, age: float = 1.0, started: float = 1.0) -> Snapshot:
    snapshot = Snapshot(run=run)
    snapshot.count(EVENTS_WRITTEN, count)
    snapshot.observe(EVENT_LOOP_LAG, 0.5)
    snapshot.gauge(CONNECTIONS, count, "clients")
    snapshot.gauge(JWKS_AGE, age, "clients", "")
    snapshot.gauge(START_TIME, started)
    return snapshot


def test_each_metric_merges_by_its_rule() -> None:
    merged = Merger().merge({0: answer("a", 5, age=9, started=7), 1: answer("b", 3, started=8)})
    assert merged.values[EVENTS_WRITTEN.name] == {(): 8}
    assert merged.values[CONNECTIONS.name] == {("clients",): 8}
    assert merged.values[JWKS_AGE.name] == {("clients", ""): 9}
    assert merged.values[START_TIME.name] == {(): 7}
    assert merged.values[WORKER_UP.name] == {("0",): 1, ("1",): 1}


def test_a_silent_worker_keeps_its_counters_and_loses_its_gauges() -> None:
    """If the sum fell and rose again, rate() would show the worker's whole life as a burst."""
    merger = Merger()
    merger.merge({0: answer("a", 5), 1: answer("b", 3)})
    merged = merger.merge({0: answer("a", 6), 1: None})
    assert merged.values[EVENTS_WRITTEN.name] == {(): 9}
    assert merged.histograms[EVENT_LOOP_LAG.name][()].sum == 1.0
    assert merged.values[CONNECTIONS.name] == {("clients",): 6}
    assert merged.values[WORKER_UP.name] == {("0",): 1, ("1",): 0}
    merged = merger.merge({0: answer("a", 6), 1: answer("b", 4)})
    assert merged.values[EVENTS_WRITTEN.name] == {(): 10}


def test_a_replaced_worker_begins_where_the_old_one_ended() -> None:
    merger = Merger()
    merger.merge({0: answer("a", 5)})
    assert merger.merge({0: answer("new", 1)}).values[EVENTS_WRITTEN.name] == {(): 6}
    assert merger.merge({0: answer("new", 2)}).values[EVENTS_WRITTEN.name] == {(): 7}
    assert merger.merge({0: None}).values[EVENTS_WRITTEN.name] == {(): 7}


def test_a_worker_that_never_answered_is_down() -> None:
    merged = Merger().merge({0: None})
    assert merged.values == {WORKER_UP.name: {("0",): 0}}
