"""Rules and alerts: valid, tried out, explained, and about metrics that exist."""

import re
from typing import Any

import pytest

from metrics.registry import METRICS
from tests.support.deploy import (
    DEPLOY,
    RECORDED,
    ROOT,
    RULES,
    SERIES,
    _rules,
    load,
    metric_names,
    run,
)

TESTS = DEPLOY / "prometheus" / "alerts.test.yaml"
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)


ALERTS = [rule for rule in _rules() if "alert" in rule]


def test_prometheus_takes_the_rules() -> None:
    run("promtool", "check", "rules", *RULES)


def test_alerts_fire_when_they_should_and_only_then() -> None:
    run("promtool", "test", "rules", TESTS)


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_read_metrics_that_exist(rule: dict[str, Any]) -> None:
    names = metric_names(rule["expr"]) - {rule.get("record")}
    assert names <= SERIES


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_is_tried_both_ways_and_has_a_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    tried = [test["name"].partition(":")[0] for test in load(TESTS)["tests"]]
    assert tried.count(f"{name} fires") == 1
    assert tried.count(f"{name} is silent") == 1
    assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert name in HEADINGS


def test_runbooks_are_about_alerts_that_exist() -> None:
    assert [alert["alert"] for alert in ALERTS] == HEADINGS


def test_every_rate_of_a_kip_is_recorded_under_its_name() -> None:
    """KIP-368's -total metrics are exported as they are; rates and latencies need a rule."""
    names = {kip.name for metric in METRICS for kip in metric.kip}
    needed = {name for name in names if not name.endswith(("-total", "Count"))}
    recorded = {name.removeprefix("kafka_reauth_proxy:").replace("_", "-") for name in RECORDED}
    assert needed <= recorded
