import os
import platform
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from metrics import process
from metrics.exposition import expose
from metrics.metric import MetricType
from metrics.process import report_process
from metrics.registry import (
    EVENT_LOOP_LAG,
    METRICS,
    SESSION_LIFETIME_LEFT,
    SUCCESSFUL_AUTHENTICATION,
)
from metrics.snapshot import Snapshot

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def everything() -> Snapshot:
    """Give every declared metric a value, with labels that need escaping."""
    snapshot = Snapshot()
    for metric in METRICS:
        labels = ['a"b\\c\nd'] * len(metric.labels)
        if metric.type is MetricType.COUNTER:
            snapshot.count(metric, 3, *labels)
        elif metric.type is MetricType.GAUGE:
            snapshot.gauge(metric, 2, *labels)
        else:
            snapshot.observe(metric, 0.002, *labels)
            snapshot.observe(metric, 1e6, *labels)
    return snapshot


def test_every_declared_metric_is_scraped_under_its_name() -> None:
    """Prometheus' own parser reads it; a unit that the name lacks would have renamed it."""
    body, content_type = expose(everything(), "")
    scraped = {sample.name for family in parse_text(body.decode()) for sample in family.samples}
    assert content_type.startswith("text/plain")
    for metric in METRICS:
        assert metric.name in scraped or f"{metric.name}_bucket" in scraped


def test_openmetrics_on_request() -> None:
    """The strict parser checks units, suffixes, bucket order and the end mark."""
    body, content_type = expose(everything(), OPENMETRICS)
    families = list(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert len(families) == len(METRICS)
    lifetimes = next(f for f in families if f.name == SESSION_LIFETIME_LEFT.name)
    assert lifetimes.type == "gaugehistogram"


def test_buckets_are_cumulative() -> None:
    snapshot = Snapshot()
    for value in (0.0005, 0.001, 0.3, 5.0):
        snapshot.observe(EVENT_LOOP_LAG, value)
    lines = expose(snapshot, "")[0].decode().splitlines()
    name = EVENT_LOOP_LAG.name
    assert f'{name}_bucket{{le="0.001"}} 2.0' in lines
    assert f'{name}_bucket{{le="0.5"}} 3.0' in lines
    assert f'{name}_bucket{{le="+Inf"}} 4.0' in lines
    assert f"{name}_count 4.0" in lines


def test_hostile_accept_headers_get_text() -> None:
    for accept in (";;;,,", "application/openmetrics-text;version=x", "a" * 4000, "*/*;q=0"):
        body, content_type = expose(everything(), accept)
        assert content_type.startswith("text/plain")
        families = {family.name for family in parse_text(body.decode())}
        assert SUCCESSFUL_AUTHENTICATION.name.removesuffix("_total") in families


def test_process_figures_are_this_process() -> None:
    snapshot = Snapshot()
    report_process(snapshot, worker=3, version="1.2.3", compiled=True, started=5.0)
    values = {name.removeprefix("kafka_reauth_proxy_"): v for name, v in snapshot.values.items()}
    assert 0 < values["worker_cpu_seconds_total"]["3",] <= sum(os.times()[:2])
    assert values["worker_resident_memory_bytes"]["3",] > 5_000_000
    assert values["worker_open_fds"]["3",] >= 3
    assert values["start_time_seconds"][()] == 5.0
    assert {*values["build_info"]} == {("1.2.3", platform.python_version(), "true")}


def test_a_scrape_needs_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When no descriptor is left, the scrape must report that."""
    monkeypatch.setattr(process, "_STATM", tmp_path / "cannot be opened")
    snapshot = Snapshot()
    report_process(snapshot, worker=3, version="1.2.3", compiled=False, started=5.0)
    assert snapshot.values["kafka_reauth_proxy_worker_open_fds"]["3",] >= 3
