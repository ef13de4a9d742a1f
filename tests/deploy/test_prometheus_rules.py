"""Rules and alerts: valid, tried out, explained, and about metrics that exist."""

import re
from typing import Any

import pytest

from metrics.metric import Metric
from metrics.registry import METRICS
from tests.support.deploy import DEPLOY, ROOT, RULES, SERIES, _rules, load, metric_names, run

TESTS = sorted((DEPLOY / "prometheus").glob("*.test.yaml"))
TRIED = [each["name"].partition(":")[0] for path in TESTS for each in load(path)["tests"]]
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)


ALERTS = [rule for rule in _rules() if "alert" in rule]
_RECORDS = [rule for rule in _rules() if rule.get("record", "").count(":") == 2]
"""All that are recorded, except the date of a switch, which an operator sets."""


def test_prometheus_takes_the_rules() -> None:
    run("promtool", "check", "rules", *RULES)


def test_alerts_fire_when_they_should_and_only_then() -> None:
    run("promtool", "test", "rules", *TESTS)


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_read_metrics_that_exist(rule: dict[str, Any]) -> None:
    names = metric_names(rule["expr"]) - {rule.get("record")}
    assert names <= SERIES


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_is_tried_both_ways_and_has_a_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert f"{name} fires" in TRIED
    assert f"{name} is silent" in TRIED
    assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert name in HEADINGS


def test_runbooks_are_about_alerts_that_exist() -> None:
    assert [alert["alert"] for alert in ALERTS] == HEADINGS


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric.kip], ids=str)
def test_every_rate_of_a_kip_is_recorded(metric: Metric) -> None:
    """KIP-368's -total metrics are exported as they are; rates and latencies need a rule."""
    needed = [name for name in metric.kip if not name.endswith(("-total", "Count"))]
    assert len([one for one in _RECORDS if metric.name in one["expr"]]) >= len(needed)


@pytest.mark.parametrize("rule", _RECORDS, ids=lambda rule: rule["record"])
def test_what_is_recorded_is_named_after_its_labels(rule: dict[str, Any]) -> None:
    """`level:metric:operations`, as Prometheus advises; `le` is gone where a quantile is taken."""
    level, metric, operations = rule["record"].split(":")
    (labels,) = set(re.findall(r"by \(([a-z_, ]+)\)", rule["expr"]))
    assert level == "_".join(name for name in labels.split(", ") if name != "le")
    assert metric.startswith("kafka_reauth_proxy_")
    assert operations.removeprefix("rate").removeprefix("mean").removeprefix("max") in (
        set(re.findall(r"\[(\w+)\]", rule["expr"]))
    )
