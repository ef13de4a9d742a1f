"""Session events, histories and reports with defaults, and parsing of log lines."""

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from metrics.connection import Client, Grant, Origin
from metrics.events import (
    ApiVersion,
    AuthInterval,
    EventKind,
    IntervalEnd,
    LatencyBucket,
    SessionEvent,
)
from metrics.history import Cadence, SessionHistory, Timeline
from metrics.period import Usage
from metrics.readiness.usage import CLIENT_KEY
from metrics.report.facts import Collected, build_facts
from metrics.report.page import page
from metrics.rollout import Stage

EPOCH = 1_800_000_000.0
"""Wall clock at monotonic time 0; a whole minute."""
EPOCH_MS = int(EPOCH * 1000)


def event(**more: Any) -> SessionEvent:
    fields: dict[str, Any] = {
        "kind": EventKind.CHECKPOINT,
        "timestamp_ms": EPOCH_MS,
        "proxy_id": "proxy",
        "worker": 0,
        "connection_id": "c-1",
        "sequence": 0,
        "connected_ms": EPOCH_MS,
        "listener": "clients",
        "enforcement": "probe",
        "client_host": "10.0.0.7",
        "authentications": 1,
        "requests": 0,
        "request_bytes": 0,
        "response_bytes": 0,
    }
    return SessionEvent(**fields | more)


def read(line: str) -> SessionEvent:
    """Parse a line; unknown fields are an error."""
    fields = json.loads(line)
    fields["kind"] = EventKind(fields["kind"])
    if (intervals := fields.get("intervals")) is not None:
        fields["intervals"] = tuple(_interval(**each) for each in intervals)
    if (buckets := fields.get("reauth_latencies")) is not None:
        fields["reauth_latencies"] = tuple(LatencyBucket(**each) for each in buckets)
    if (dropped := fields.get("dropped_versions")) is not None:
        fields["dropped_versions"] = tuple(ApiVersion(**each) for each in dropped)
    for name in ("groups", "groups_joined", "groups_left"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return SessionEvent(**fields)


def _interval(*, ended_by: str | None = None, **fields: Any) -> AuthInterval:
    return AuthInterval(ended_by=None if ended_by is None else IntervalEnd(ended_by), **fields)


def to_json_line(given: SessionEvent) -> str:
    """Write an event as a line of the log, even if it is invalid."""
    return json.dumps(json.loads(json.dumps(asdict(given)), object_hook=_without_nulls))


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


class ParsedHistory:
    """A history whose lines are parsed as events."""

    def __init__(self, history: SessionHistory) -> None:
        self.history = history
        self.client = history.client

    def authenticated(self, grant: Grant, usage: Usage, now: float) -> list[SessionEvent]:
        return [read(line) for line in self.history.authenticated(grant, usage, now)]

    def failed(self, reason: str, usage: Usage, now: float) -> SessionEvent:
        return read(self.history.failed(reason, usage, now))

    def would_be_killed(self, api_key: int, usage: Usage, now: float) -> SessionEvent | None:
        line = self.history.would_be_killed(api_key, usage, now)
        return None if line is None else read(line)

    def expired_killed(self, api_key: int, usage: Usage, now: float) -> SessionEvent:
        return read(self.history.expired_killed(api_key, usage, now))

    def denied(self, **denial: Any) -> SessionEvent:
        return read(self.history.denied(**denial))

    def misrouted(self, **meant: Any) -> SessionEvent:
        return read(self.history.misrouted(**meant))

    def closed(self, reason: str, usage: Usage, now: float) -> list[SessionEvent]:
        return [read(line) for line in self.history.closed(reason, usage, now)]

    def sweep(self, usage: Usage, now: float) -> list[SessionEvent]:
        return [read(line) for line in self.history.sweep(usage, now)]


def history(
    *, authenticate_version: int | None = 2, cadence: Cadence | None = None, connected: float = 0
) -> ParsedHistory:
    origin = Origin(
        proxy_id="proxy",
        worker=0,
        listener="clients",
        connection_id="c-1",
        client_host="10.0.0.7",
        connected_at=connected,
    )
    client = Client(
        enforcement="probe",
        mechanism="SCRAM-SHA-256",
        handshake_version=1,
        authenticate_version=authenticate_version,
    )
    timeline = Timeline(wall=EPOCH, now=0)
    return ParsedHistory(SessionHistory(origin, client, timeline, cadence or Cadence()))


def grant(**more: Any) -> Grant:
    fields: dict[str, Any] = {
        "principal": "User:alice",
        "session_lifetime_ms": 60_000,
        "announced_lifetime_ms": 60_000,
        "credential_lifetime_ms": None,
        "latency": 0.004,
    }
    return Grant(**fields | more)


def used(requests: int, last_request: float | None) -> Usage:
    return Usage(requests, requests * 100, requests * 50, last_request)


# Facts of a small report


def client(**more: Any) -> dict[str, Any]:
    fields = {
        "principal": "User:alice",
        "client_id": "app",
        "client_software_name": "librdkafka",
        "client_software_version": "1.9.2",
        "mechanism": "SCRAM-SHA-256",
        "connections": 2,
        "verdict": "not_capable",
        "raw_token_connections": 0,
        "not_capable_connections": 2,
        "login_failures": 0,
        "killed": 1,
        "would_be_kills": 0,
        "reauth_failures": 0,
        "reauth_refusals": 0,
        "reauthentications": 3,
        "past_end_ms": 60_000,
        "failed_on": None,
        "ready_since": None,
        "throttled_ms": None,
        "throttled_by": None,
        "hasty_ms": None,
        "ready_from_ms": None,
        "announced_ms": 0,
        "client_key": "0123",
        "listeners": ["clients"],
        "first_seen_ms": 0,
        "last_seen_ms": 60_000,
        "requests": 5_000,
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
        principal=None if verdict == "unknown" else name,
        client_id=name,
        client_software_name=name,
        verdict=verdict,
        hosts=[name],
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
    rule: dict[str, Any] = {
        "principal": name,
        "resource_type": "TOPIC",
        "pattern_type": "PREFIXED",
        "name": name,
    }
    rule |= {"host": "*", "operation": "ALL", "last_ms": None}
    rows: dict[str, list[dict[str, Any]]] = {
        "clients": [one],
        "timelines": [{"client_key": "0123", "days": [(20_001, "failing"), (20_000, "ready")]}],
        "upgrades": [software] if verdict in {"failing", "not_capable"} else [],
        "clients_by_verdict": [
            {"verdict": verdict, "clients": 1, "connections": 2}
            | {"logged_in": int(verdict != "unknown")}
        ],
        "principals": [
            row | verdicts | {"not_capable": int(verdict == "not_capable"), "connections": 2}
        ],
        "groups": [
            row | verdicts | {"not_capable": int(verdict == "not_capable"), "principals": 1}
        ],
        "group_count": [{"groups": 1}],
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
        "funnel": [{"day": 20_001} | {each: int(each is Stage.CAPABLE) for each in Stage}],
        "rollout": [
            {"principal": name, "stage": "capable", "clients": 1, "client_id": name}
            | {"client_software_name": name, "client_software_version": name}
            | {"reauthentications": 2, "evidence_ms": 60_000}
        ],
        "short_tokens": [one],
        "failures": [
            {"mechanism": name, "failure_reason": name, "reauthentication": True, "count": 1}
        ],
        "denied_resources": [
            {"principal": name, "resource_type": "TOPIC", "resource_name": name}
            | {"operations": ["READ"], "denied": 1, "would_be_denied": 2, "place": 1}
        ],
        "denied_count": [{"resources": 1}],
        "needed_acls": [
            {"principal": name, "resource_type": "TOPIC", "resource_name": name}
            | {"operations": ["READ"]}
        ],
        "unused_acls": [rule | {"requests": 0, "used_operations": [], "names": []}],
        "wider_acls": [rule | {"requests": 3, "used_operations": ["READ"], "names": [name]}],
        "authorizer_verdicts": [{"principal": name, "verdict": "ready", "requests": 3}],
        "unseen_principals": [{"principal": name, "has_acl": True, "has_credential": False}],
        "breaks_at_kafka_4": [
            {name: value for name, value in one.items() if name in CLIENT_KEY}
            | {"versions": [f"{name} v0"], "connections": 2}
            | {"hosts": [name], "host_count": 1, "last_ms": 60_000}
        ],
        "breaks_at_kafka_4_count": [{"clients": 1}],
        "regressed": [],
        "regressed_count": [{"clients": 0}],
        "observed": [{"left_out": 0, "from_ms": 0, "to_ms": 60_000, "covered_ms": 60_000}],
        "wrong_clocks": [],
        "ahead": [],
    }
    lines = dict.fromkeys(
        (
            "unreadable",
            "unknown_version",
            "unknown_kind",
            "impossible",
            "outside",
            "implausible",
            "duplicate",
            "missing",
        ),
        0,
    )
    return Collected(
        as_of_ms=120_000,
        source=name,
        lines=lines | {"lines": 9, "future": 1},
        rows=rows,
        run_id="now",
        engine="duckdb",
    )


def facts_of(verdict: str = "not_capable", **more: Any) -> dict[str, Any]:
    return build_facts(collected("User:alice", verdict=verdict)) | more


def first_screen(facts: dict[str, Any]) -> str:
    """The report's text before the second section."""
    written = page(facts)
    return re.sub("<[^>]*>", "", written[written.index("<header>") : written.index("</section>")])


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this: EFBIG, a real short write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
