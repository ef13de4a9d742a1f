"""The report's figures for Prometheus, and the web server that sends them."""

import http.client
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from metrics.report.prometheus import MAX_LIFETIMES, exposition
from tests.support.report import facts_of, put_report, served_by_nginx

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


def test_a_web_server_serves_the_folder(tmp_path: Path) -> None:
    """As the report's image configures it."""
    put_report(tmp_path / "report")
    (tmp_path / "report" / ".half-1").write_text("of a run that goes on")
    (tmp_path / "secret").write_text("elsewhere")
    (tmp_path / "report" / "link.json").symlink_to(tmp_path / "secret")
    types = {
        "/": "text/html; charset=utf-8",
        "/report.json": "application/json",
        "/report.prom": "text/plain; version=0.0.4; charset=utf-8",
        "/tables/clients/part-00000.parquet": "application/vnd.apache.parquet",
    }
    with served_by_nginx(tmp_path / "report", tmp_path) as address:

        def ask(path: str, method: str = "GET") -> tuple[int, str | None, str | None]:
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.getheader("Content-Type"), answer.getheader("Content-Security-Policy")
            connection.close()
            return answer.status, *found

        for path, content_type in types.items():
            status, found, policy = ask(path)
            assert (status, found) == (200, content_type)
            assert policy is not None
            assert "default-src 'none'" in policy
        assert ask("/healthz")[0] == 200
        assert ask("/.half-1")[0] == 404
        assert ask("/tables/")[0] == 403, "folders are not listed"
        assert ask("/link.json")[0] == 403
        assert ask("/", "POST")[0] == 403
