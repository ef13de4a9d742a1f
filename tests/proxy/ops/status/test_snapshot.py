"""The status as data: snapshots, recent sessions and incidents."""

import json
from typing import Any

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.ops.status import snapshot
from proxy.ops.status.page import render
from proxy.ops.status.recent import (
    MAX_PER_KIND,
    MAX_PRINCIPALS,
    CounterHistory,
    Incident,
    IncidentCounts,
    Incidents,
)
from proxy.ops.status.service import document
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts
from proxy.ops.status.snapshot import About, Overview, PrincipalSummary, WorkerFacts
from tests.support.status import ABOUT, NOW_MS, busy, incident, listener, overview, recent, session


def groups(taken: Overview) -> list[PrincipalSummary]:
    return [snapshot.summarize(each) for each in snapshot.by_principal(taken)]


def test_sessions_of_a_principal_are_summed_up() -> None:
    (alice,) = groups(
        overview(
            session(1, lifetime_left_s=10.0, client_software_version="1", reauthentications=3),
            session(2, lifetime_left_s=-5.0, lifetime_announced=False),
            session(3, lifetime_left_s=None, mechanism="SCRAM-SHA-256"),
            session(4, lifetime_left_s=100.0, client_id=None, client_software_name=None),
        )
    )
    assert alice.principal == "User:alice"
    assert (alice.counts.sessions, alice.counts.expired, alice.counts.endless) == (4, 1, 1)
    assert alice.counts.cannot_reauthenticate == 1
    assert alice.counts.reauthentications == 9
    assert (alice.lifetime_left_min_s, alice.lifetime_left_median_s) == (-5.0, 10.0)
    assert alice.mechanisms.names == {"OAUTHBEARER": 3, "SCRAM-SHA-256": 1}
    assert alice.clients.names == {"librdkafka 2.6.1": 2, "librdkafka 1": 1, "2.6.1": 1}
    assert alice.client_ids.names == {"app-1": 3}
    assert alice.carried.requests == 4_000


def test_sessions_without_an_end_have_no_least() -> None:
    (alice,) = groups(overview(session(lifetime_left_s=None)))
    assert alice.lifetime_left_min_s is alice.lifetime_left_median_s is None


def test_of_many_names_the_most_frequent_are_named() -> None:
    each = [session(number, client_id=f"c{number % 7}") for number in range(30)]
    (alice,) = groups(overview(*each))
    assert alice.client_ids.names == {"c0": 5, "c1": 5, "c2": 4}
    assert alice.client_ids.more == 4


def test_recent_trouble_comes_first_then_size() -> None:
    def tallies(last_ms: int) -> dict[str, IncidentCounts]:
        return {"denied": IncidentCounts(1, last_ms)}

    taken = overview(
        session(1, principal="User:small"),
        *(session(number, principal="User:large") for number in range(9)),
        session(2, principal="User:yesterday"),
        session(3, principal="User:now"),
        session(4, principal=None),
        worker0=WorkerFacts(
            principals={
                "User:now": tallies(NOW_MS - 1_000),
                "User:yesterday": tallies(NOW_MS - 86_400_000),
                "User:gone": tallies(NOW_MS),
            }
        ),
    )
    names = [each.principal for each in snapshot.by_principal(taken)]
    assert names == ["User:now", "User:large", None, "User:small", "User:yesterday"]


def test_what_workers_told_is_added_up() -> None:
    failed = {"failed": IncidentCounts(2, 5), "denied": IncidentCounts(1, 9)}
    taken = overview(
        session(),
        worker0=WorkerFacts(
            listeners=[listener()],
            principals={"User:alice": failed},
            incidents=[incident(last_ms=1)],
        ),
        worker1=WorkerFacts(
            listeners=[listener(connections=4)],
            principals={"User:alice": {"failed": IncidentCounts(3, 7)}},
            incidents=[incident(last_ms=2), incident(last_ms=3, principal="User:bob")],
        ),
        worker2=WorkerFacts(reasons=["worker 2 does not answer"]),
    )
    (clients,) = snapshot.listeners(taken)
    assert (clients.connections, clients.max_connections) == (7, 10_000)
    (alice,) = groups(taken)
    assert alice.troubles == {"failed": IncidentCounts(5, 7), "denied": IncidentCounts(1, 9)}
    assert [one.last_ms for one in snapshot.incidents(taken)] == [3, 2, 1]
    assert [one.last_ms for one in snapshot.incidents(taken, "User:alice")] == [2, 1]
    assert not taken.ready()


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (EVERY_SESSION, [1, 2, 3]),
        (Selector(principal="User:alice"), [1, 2]),
        (Selector(client_id="b"), [2, 3]),
        (Selector(principal="User:alice", client_id="b"), [2]),
        (Selector(connection_id="00c0ffee00c0ffee-3"), [3]),
        (Selector(principal="User:alic"), []),
        (Selector(principal=""), []),
    ],
)
def test_sessions_are_chosen_by_all_that_is_given(selector: Selector, found: list[int]) -> None:
    sessions = (
        session(1, client_id="a"),
        session(2, client_id="b"),
        session(3, principal=None, client_id="b"),
    )
    chosen = overview(*sessions).of(selector).sessions
    assert [int(one.connection_id.rpartition("-")[2]) for one in chosen] == found
    assert Selector.from_arguments(selector.arguments()) == selector


@pytest.mark.parametrize("arguments", [{"host": "x"}, {"principal": 7}, {"client_id": ["x"]}])
def test_what_is_no_selection_is_refused(arguments: dict[str, object]) -> None:
    """A misspelt key must not kill everybody."""
    with pytest.raises(ValueError, match="not a selection"):
        Selector.from_arguments(arguments)


def test_a_row_survives_the_journey() -> None:
    one = session(lifetime_left_s=None)
    assert SessionFacts._make(json.loads(json.dumps(one))) == one
    facts: dict[str, Any] = {
        "listeners": [listener()],
        "incidents": [incident()],
        "principals": {"User:a": {"failed": IncidentCounts(1, 2)}},
        "recent": recent(requests=5),
    }
    reported = json.loads(json.dumps({"reasons": [], **facts}))
    assert WorkerFacts.from_json(reported) == WorkerFacts(**facts)


def test_the_document_is_cut_and_says_so() -> None:
    answer = document(busy(500, 50), EVERY_SESSION, ABOUT, limit=10)
    assert len(answer["principals"]) == len(answer["sessions"]) == 10
    assert answer["sessions_more"] == 490
    assert (answer["version"], answer["build"]) == ("1.2.3", "compiled")
    assert answer["counts"]["sessions"] == 500
    assert answer["principals"][0]["troubles"]["denied"] == {"times": 42, "last_ms": NOW_MS - 5_000}
    assert json.loads(json.dumps(answer)) == answer


# Rates of the last ten minutes: of one worker, and of all


def counted(requests: int, kills: int = 0) -> Snapshot:
    """Of two listeners."""
    found = Snapshot()
    found.count(registry.REQUESTS, requests, "a", "Produce")
    found.count(registry.REQUESTS, requests, "b", "Fetch")
    found.count(registry.EXPIRED_CONNECTIONS_KILLED, kills, "a", "SCRAM-SHA-256")
    return found


def test_what_was_counted_since_a_start() -> None:
    history = CounterHistory(1_000.0)
    since = history.since(counted(30, kills=2), 1_090.0)
    assert since.seconds == 90.0
    assert (since.counts["requests"], since.counts["kills"]) == (60, 2)
    assert since.counts["logins"] == 0


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    history = CounterHistory(0.0)
    for minute in range(1, 31):
        history.remember(counted(100 * minute), 60.0 * minute)
    since = history.since(counted(3_050), 1_830.0)
    assert since.seconds == 630.0
    assert since.counts["requests"] == 2 * (3_050 - 2_000)


def test_workers_are_added_up() -> None:
    """Also where one has just been started, or does not answer."""
    seen = overview(
        worker0=WorkerFacts(recent=recent(600.0, requests=6_000, kills=6)),
        worker1=WorkerFacts(recent=recent(60.0, requests=300)),
        worker2=WorkerFacts(reasons=["no answer"]),
    )
    rates = snapshot.rates(seen)
    assert rates.seconds == 600.0
    assert rates.per_second["requests"] == 15.0
    assert rates.per_second["kills"] == 0.01


def test_runbooks_and_report_are_links_where_they_have_an_address() -> None:
    where = About(
        version="1",
        build="interpreted",
        host="h",
        runbooks_url="https://docs.test/runbooks/",
        report_url='https://docs.test/?a=1&b="',
    )
    linked = render(overview(), EVERY_SESSION, where)
    assert '<a href="https://docs.test/runbooks/">runbooks</a>' in linked
    assert '<a href="https://docs.test/?a=1&amp;b=&quot;">' in linked
    named = render(overview(), EVERY_SESSION, ABOUT)
    assert "runbooks: docs/runbooks.md" in named
    assert "docs.test" not in named


# The memory of incidents, which no client can fill

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
