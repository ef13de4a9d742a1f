"""The memory of incidents, which no client can fill."""

from proxy.ops.status.recent import (
    MAX_PER_KIND,
    MAX_PRINCIPALS,
    Incident,
    IncidentCounts,
    Incidents,
)

USUAL = Incident(
    kind="failed",
    what="expired",
    listener="clients",
    principal="User:alice",
    client_id=None,
    client_host="10.0.0.7",
    mechanism="OAUTHBEARER",
    times=1,
    first_ms=1_000,
    last_ms=1_000,
)


def at(now_ms: int, incident: Incident = USUAL) -> Incident:
    return incident._replace(first_ms=now_ms, last_ms=now_ms)


def test_who_met_with_it_is_counted() -> None:
    incidents = Incidents()
    incidents.note(USUAL._replace(kind="denied", times=3))
    assert incidents.of_principals() == {"User:alice": {"denied": IncidentCounts(3, 1_000)}}


def test_what_repeats_is_counted() -> None:
    incidents = Incidents()
    for now_ms in (1_000, 2_000, 3_000):
        incidents.note(at(now_ms))
    incidents.note(at(2_500)._replace(client_host="10.0.0.8"))
    first, second = incidents.recent()
    assert (first.times, first.first_ms, first.last_ms) == (3, 1_000, 3_000)
    assert (second.times, second.client_host) == (1, "10.0.0.8")


def test_a_flood_pushes_out_only_its_kind() -> None:
    """An unauthenticated client invents a client id for each failed login."""
    incidents = Incidents()
    incidents.note(USUAL._replace(kind="expired-killed", what="Produce"))
    for number in range(5 * MAX_PER_KIND):
        incidents.note(at(2_000 + number)._replace(principal=None, client_id=f"x{number}"))
    recent = incidents.recent()
    assert len(recent) == MAX_PER_KIND + 1
    assert recent[0].client_id == f"x{5 * MAX_PER_KIND - 1}"
    assert recent[-1].kind == "expired-killed"


def test_many_principals_are_forgotten_oldest_first() -> None:
    incidents = Incidents()
    for number in range(MAX_PRINCIPALS + 1):
        incidents.note(USUAL._replace(principal=f"User:{number}"))
    known = incidents.of_principals()
    assert len(known) == MAX_PRINCIPALS
    assert "User:0" not in known
