"""Session events, histories and reports with defaults, and parsing of log lines."""

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from metrics.connection import Client, Grant, Origin
from metrics.event_schema import ApiVersion, AuthInterval, LatencyBucket, SessionEvent
from metrics.events import EventKind, IntervalEnd
from metrics.history import Cadence, SessionHistory, Timeline
from metrics.period import Usage
from metrics.report.facts import Collected, build_facts
from metrics.report.page import page

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


_SMALL = Path(__file__).with_name("small_report.json").read_text()
"""Rows of a report with one client, called NAME, with the verdict VERDICT."""


def client(**more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(_SMALL)["client"]
    return fields | more


def collected(name: str, *, verdict: str = "not_capable") -> Collected:
    text = _SMALL.replace("NAME", json.dumps(name)[1:-1])
    given = json.loads(text.replace("VERDICT", verdict))
    rows = given["rows"]
    for table in ("principals", "groups"):
        rows[table][0] |= {verdict: 1, "enforceable": verdict == "ready"}
    rows["enforceable"] = rows["principals"] if verdict == "ready" else []
    if verdict not in {"failing", "not_capable"}:
        rows["upgrades"] = []
    if verdict == "unknown":
        rows["clients_by_verdict"][0]["logged_in"] = 0
        for table in ("clients", "breaks_at_kafka_4"):
            rows[table][0]["principal"] = None
    return Collected(
        as_of_ms=120_000,
        source=name,
        lines=given["lines"],
        rows=rows | {"short_tokens": rows["clients"]},
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
