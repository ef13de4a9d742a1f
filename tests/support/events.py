"""Session events and connection histories with defaults; lines of the log read back."""

import json
from dataclasses import asdict
from typing import Any

from metrics.connection import Client, Grant, Origin
from metrics.events import AuthInterval, EventKind, IntervalEnd, LatencyBucket, SessionEvent
from metrics.history import Cadence, SessionHistory, Timeline
from metrics.period import Usage

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
    """Read a line back; it fails if a field of it is not in the schema."""
    fields = json.loads(line)
    fields["kind"] = EventKind(fields["kind"])
    if (intervals := fields.get("intervals")) is not None:
        fields["intervals"] = tuple(_interval(**each) for each in intervals)
    if (buckets := fields.get("reauth_latencies")) is not None:
        fields["reauth_latencies"] = tuple(LatencyBucket(**each) for each in buckets)
    return SessionEvent(**fields)


def _interval(*, ended_by: str | None = None, **fields: Any) -> AuthInterval:
    return AuthInterval(ended_by=None if ended_by is None else IntervalEnd(ended_by), **fields)


def to_json_line(given: SessionEvent) -> str:
    """Write an event as a line of the log, whatever it says."""
    return json.dumps(json.loads(json.dumps(asdict(given)), object_hook=_without_nulls))


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


class ParsedHistory:
    """A history whose lines are read back as events."""

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
