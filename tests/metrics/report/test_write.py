"""The report's figures for Prometheus."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from metrics.report.write import MAX_LIFETIMES, exposition
from tests.support.report import facts_of

PREFIX = "kafka_reauth_proxy_readiness_"


def figures(facts: dict[str, Any]) -> dict[str, float]:
    """Values by name and labels."""
    found = {}
    for family in text_string_to_metric_families(exposition(facts).decode()):
        for sample in family.samples:
            labels = ",".join(value for _, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix(PREFIX)}{{{labels}}}"] = sample.value
    return found


def test_figures_are_those_of_the_report() -> None:
    facts = facts_of()
    found = figures(facts)
    assert found["clients{not_capable}"] == 1
    assert found["clients{ready}"] == 0
    assert found["principals{not_capable}"] == 1
    assert found["killed_clients{900}"] == 1
    assert found["kills_per_day{least,900}"] == 3.0
    assert found["kills_per_day{most,900}"] == 5.5
    assert found["report_timestamp_seconds{}"] == facts["as_of_ms"] / 1000
    assert found["newest_event_timestamp_seconds{}"] == facts["observed"]["to_ms"] / 1000
    failures = {
        again: sum(row["count"] for row in facts["failures"] if row["reauthentication"] is again)
        for again in (False, True)
    }
    assert found["failed_authentications{login}"] == failures[False]
    assert found["failed_authentications{reauthentication}"] == failures[True]


def test_what_is_not_known_is_absent() -> None:
    """Not 0: an alert would take that for good news."""
    facts = facts_of()
    unknown = ("kills_per_day_least", "kills_per_day_most", "killed_clients")
    row = facts["what_if"][0] | dict.fromkeys(unknown)
    found = figures(facts | {"what_if": [row], "observed": facts["observed"] | {"to_ms": None}})
    assert not any(name.startswith(("kill", "newest")) for name in found)


def test_series_are_bounded() -> None:
    facts = facts_of()
    rows = [facts["what_if"][0] | {"lifetime_ms": 1000 * (500 - each)} for each in range(200)]
    found = [name for name in figures(facts | {"what_if": rows}) if name.startswith("killed_")]
    assert len(found) == MAX_LIFETIMES
    assert "killed_clients{301}" in found, "the shortest ones"
