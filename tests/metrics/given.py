"""Values with defaults, so that a test names only what it is about."""

from typing import Any

from metrics.events import EventKind, SessionEvent
from metrics.history import Cadence, Client, Grant, Origin, SessionHistory, Timeline
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


def history(
    *, authenticate_version: int | None = 2, cadence: Cadence | None = None, connected: float = 0
) -> SessionHistory:
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
    return SessionHistory(origin, client, timeline, cadence or Cadence())


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
