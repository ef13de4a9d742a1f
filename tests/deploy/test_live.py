"""What is drawn and alerted on, tried on a real Prometheus that scrapes a real proxy."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.deploy import DEPLOY, SERIES, find, metric_names
from tests.support.prometheus import Prometheus, scraped_proxy, until

GRAFANA = DEPLOY / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    find("prometheus")
    with scraped_proxy(tmp_path_factory.mktemp("live")) as prometheus:
        yield prometheus


def _filled_in(promql: str) -> str:
    for variable, value in (("job", ".+"), ("instance", ".+"), ("listener", ".+")):
        promql = promql.replace(f"${variable}", value)
    return promql.replace("$__rate_interval", "10s")


def test_dashboards_are_as_they_would_be_generated() -> None:
    program = [sys.executable, str(GRAFANA / "generate.py"), "--check"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("panel", PANELS)
def test_panels_are_about_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert metric_names(target["expr"]) <= SERIES


@pytest.mark.slow
@pytest.mark.parametrize("panel", PANELS)
def test_no_panel_is_empty(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    def shown() -> bool:
        found = [prometheus.values(_filled_in(target["expr"])) for target in panel["targets"]]
        return any(not math.isnan(value) for values in found for value in values)

    until(shown)  # a scrape may come late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("panel", "expected"),
    [
        ("Clients that re-authenticate", (0.01, 0.99)),
        ("Would have been killed", (0.5, 1e6)),
        ("Killed", (0.5, 1e6)),
        ("Proxies", (1, 1)),
    ],
)
def test_numbers_are_those_of_what_happened(
    prometheus: Prometheus, panel: str, expected: tuple[float, float]
) -> None:
    (target,) = (
        one["targets"][0]
        for dashboard in DASHBOARDS.values()
        for one in dashboard["panels"]
        if one["title"] == panel
    )
    promql, (low, high) = _filled_in(target["expr"]), expected
    until(lambda: [low <= value <= high for value in prometheus.values(promql)] == [True])


@pytest.mark.slow
def test_every_rule_evaluates_and_kills_are_noticed(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert {rule["name"]: rule["health"] for rule in rules if rule["health"] != "ok"} == {}

    def states() -> dict[str, str]:
        rules = prometheus.rules()
        return {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}

    # The rules look once a second, and later than what waited for the kills.
    until(lambda: states()["ReauthProxyExpiredSessionsKilled"] == "pending")
    until(lambda: states()["ReauthProxyExpiredSessionsWouldBeKilled"] == "pending")
    # A scrape that came late is no proxy that is down.
    until(lambda: states()["ReauthProxyDown"] == states()["ReauthProxyWorkerDown"] == "inactive")


@pytest.mark.slow
def test_every_rate_of_a_kip_has_values(prometheus: Prometheus) -> None:
    for name in sorted(name for name in SERIES if name.startswith("kafka_reauth_proxy:")):
        until(lambda name=name: bool(prometheus.values(name)))  # type: ignore[misc]
