"""What is remembered of what went wrong, and that nobody can fill it."""

from typing import Any

import pytest

from metrics.events import EventKind, SessionEvent
from proxy.commands import CloseReason
from proxy.status.incidents import CLOSES, MOST_OF_A_KIND, MOST_PRINCIPALS, Incidents, Tally


def event(kind: EventKind = EventKind.FAILED, **changes: Any) -> SessionEvent:
    facts: dict[str, Any] = {
        "timestamp_ms": 1_000,
        "proxy_id": "p",
        "worker": 0,
        "connection_id": "c-1",
        "sequence": 0,
        "connected_ms": 0,
        "listener": "clients",
        "enforcement": "enforce",
        "client_host": "10.0.0.7",
        "authentications": 1,
        "requests": 0,
        "request_bytes": 0,
        "response_bytes": 0,
        "principal": "User:alice",
        "mechanism": "OAUTHBEARER",
        "failure_reason": "expired" if kind is EventKind.FAILED else None,
    }
    return SessionEvent(kind=kind, **facts | changes)


@pytest.mark.parametrize(
    ("noted", "what"),
    [
        (event(failure_reason="bad_credentials"), "bad_credentials"),
        (event(EventKind.EXPIRED_KILLED, api_key=0), "Produce"),
        (event(EventKind.WOULD_BE_KILLED, api_key=999), "API 999"),
        (
            event(
                EventKind.DENIED,
                operation="WRITE",
                resource_type="TOPIC",
                resource_name="t",
                denials=3,
            ),
            "WRITE on TOPIC t",
        ),
        (event(EventKind.CLOSED, close_reason=CloseReason.KILLED), "killed"),
    ],
)
def test_what_is_remembered(noted: SessionEvent, what: str) -> None:
    incidents = Incidents()
    incidents.note(noted)
    (one,) = incidents.recent()
    assert (one.kind, one.what, one.times) == (noted.kind, what, noted.denials or 1)
    assert incidents.of_principals() == {
        "User:alice": {noted.kind.value: Tally(noted.denials or 1, 1_000)}
    }


@pytest.mark.parametrize(
    "kind", [EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED, EventKind.CHECKPOINT]
)
def test_what_goes_well_is_not(kind: EventKind) -> None:
    incidents = Incidents()
    incidents.note(event(kind))
    assert incidents.recent() == []


@pytest.mark.parametrize("reason", sorted(set(CloseReason) - CLOSES))
def test_an_end_that_is_usual_or_told_otherwise_is_not(reason: CloseReason) -> None:
    incidents = Incidents()
    incidents.note(event(EventKind.CLOSED, close_reason=reason))
    assert incidents.recent() == []


def test_a_summary_does_not_tell_an_end_again() -> None:
    incidents = Incidents()
    incidents.note(event(EventKind.SUMMARY, close_reason=CloseReason.KILLED))
    assert incidents.recent() == []


def test_what_repeats_is_counted() -> None:
    incidents = Incidents()
    for now in (1_000, 2_000, 3_000):
        incidents.note(event(timestamp_ms=now))
    incidents.note(event(timestamp_ms=2_500, client_host="10.0.0.8"))
    first, second = incidents.recent()
    assert (first.times, first.first_ms, first.last_ms) == (3, 1_000, 3_000)
    assert (second.times, second.client_host) == (1, "10.0.0.8")


def test_a_flood_pushes_out_only_its_kind() -> None:
    """A stranger invents a client id for each failed login."""
    incidents = Incidents()
    incidents.note(event(EventKind.EXPIRED_KILLED, api_key=0))
    for number in range(5 * MOST_OF_A_KIND):
        incidents.note(event(principal=None, client_id=f"x{number}", timestamp_ms=2_000 + number))
    recent = incidents.recent()
    assert len(recent) == MOST_OF_A_KIND + 1
    assert recent[0].client_id == f"x{5 * MOST_OF_A_KIND - 1}"
    assert recent[-1].kind == "expired-killed"


def test_many_principals_are_forgotten_oldest_first() -> None:
    incidents = Incidents()
    for number in range(MOST_PRINCIPALS + 1):
        incidents.note(event(principal=f"User:{number}"))
    known = incidents.of_principals()
    assert len(known) == MOST_PRINCIPALS
    assert "User:0" not in known


def test_long_names_are_cut() -> None:
    """A token's subject may have half a megabyte."""
    incidents = Incidents()
    incidents.note(event(principal="User:" + "x" * 500_000, client_id="y" * 30_000))
    (one,) = incidents.recent()
    assert one.principal is not None
    assert one.client_id is not None
    assert len(one.principal) == len(one.client_id) == 256
