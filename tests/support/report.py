"""Facts of a small report, with a name that the test gives."""

import re
from typing import Any

from metrics.report.facts import Collected, build_facts
from metrics.report.page import page


def client(**more: Any) -> dict[str, Any]:
    fields = {
        "principal": "User:alice",
        "client_id": "app",
        "client_software_name": "librdkafka",
        "client_software_version": "1.9.2",
        "mechanism": "SCRAM-SHA-256",
        "connections": 2,
        "verdict": "not_capable",
        "evidence": "SaslAuthenticate v0 on 2 of 2 connections",
        "hosts": ["10.0.0.1"],
        "host_count": 3,
        "credential_lifetime_ms": 30_000,
        "outlived_ms": None,
        "used_ms": 9_000,
    }
    return fields | more


def collected(name: str, *, verdict: str = "not_capable") -> Collected:
    verdicts = {each: int(each == verdict) for each in ("ready", "unproven", "failing", "unknown")}
    one = client(
        principal=name, client_id=name, client_software_name=name, verdict=verdict, hosts=[name]
    )
    row = {"principal": name, "clients": 1, "verdict": verdict, "enforceable": verdict == "ready"}
    row |= {"listeners": [name]}
    what_if = {
        "lifetime_ms": 900_000,
        "killed_connections": 2,
        "killed_clients": 1,
        "killed_principals": 1,
        "kills_per_day_least": 3.0,
        "kills_per_day_most": 5.5,
        "late_median_ms": 61_000,
        "unproven_connections": 1,
        "cut_short_connections": 0,
        "observed_ms": 7_200_000,
    }
    day = {"day": 20_000, "clients": 1, "ready": 0, "not_capable": 1, "ready_share": 0.0}
    storm = {"minute_ms": 0, "mechanism": name, "authentications": 3, "reauthentications": 1}
    software = {"client_software_name": name, "client_software_version": "1.9.2", "clients": 1}
    software |= {"principals": [name], "principal_count": 1}
    rows: dict[str, list[dict[str, Any]]] = {
        "clients": [one],
        "upgrades": [software] if verdict in {"failing", "not_capable"} else [],
        "clients_by_verdict": [
            {"verdict": verdict, "clients": 1, "connections": 2, "from_ms": 0, "to_ms": 60_000}
        ],
        "principals": [
            row | verdicts | {"not_capable": int(verdict == "not_capable"), "connections": 2}
        ],
        "principals_by_verdict": [{"verdict": verdict, "principals": 1}],
        "enforceable": [row] if verdict == "ready" else [],
        "what_if": [what_if],
        "session_lengths": [{"up_to_ms": 120_000, "standing": verdict, "connections": 2}],
        "storms": [storm | {"busy_us": 12_000}],
        "storm_profile": [storm],
        "latencies": [
            {"mechanism": name, "kind": "reauthenticated", "count": 3}
            | {"p50_us": 900.0, "p95_us": 1200.0, "p99_us": None}
        ],
        "by_day": [day],
        "short_tokens": [one],
        "failures": [
            {"mechanism": name, "failure_reason": name, "reauthentication": True, "count": 1}
        ],
        "denied_resources": [
            {"principal": name, "resource_type": "TOPIC", "resource_name": name}
            | {"operations": ["READ"], "denied": 1, "would_be_denied": 2, "place": 1}
        ],
        "denied_count": [{"resources": 1}],
    }
    lines = dict.fromkeys(
        ("unreadable", "unknown_version", "unknown_kind", "impossible", "duplicate", "missing"), 0
    )
    return Collected(
        as_of_ms=120_000, source=name, lines=lines | {"lines": 9, "future": 1}, rows=rows
    )


def facts_of(verdict: str = "not_capable", **more: Any) -> dict[str, Any]:
    return build_facts(collected("User:alice", verdict=verdict)) | more


def first_screen(facts: dict[str, Any]) -> str:
    """The text before the second section, as it is read."""
    written = page(facts)
    return re.sub("<[^>]*>", "", written[written.index("<header>") : written.index("</section>")])
