import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.events.generate import Size, clients_of, simulated
from metrics.event_schema import AuthInterval, SessionEvent
from metrics.events import EventKind
from metrics.readiness import sessions, usage
from tests.support.metrics import EPOCH_MS, event, read
from tests.support.readiness import MINUTE_MS, STANDINGS, Answers, Row, answers, later, login

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}
SINGLY: dict[str, Any] = {"lifetimes_ms": (1,)}
"""Question with which no connection is plain, so that none is added up with others."""
UNTOLD = {"session_lifetime_ms": 0, "announced_lifetime_ms": 0}


def session_of(given: Iterable[SessionEvent]) -> Row:
    return answers(given).only("sessions")


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, Any]]:
    given = [replace(each, connection_id=name) for name, events, _ in STANDINGS for each in events]
    return {row["connection_id"]: row for row in answers(given, **SINGLY).table("sessions")}


@pytest.mark.parametrize(("name", "standing"), [(name, it) for name, _, it in STANDINGS])
def test_a_connection_stands_where_its_events_put_it(
    judged: dict[str, dict[str, Any]], name: str, standing: str
) -> None:
    assert judged[name]["standing"] == standing


def test_what_became_known_last_is_valid() -> None:
    """client.id comes with the first request, after the login."""
    last = later(EventKind.CHECKPOINT, 15, client_id="known-now")
    assert session_of([last, login(client_id=None)])["client_id"] == "known-now"


USED_AT_20 = {"last_request_ms": EPOCH_MS + 20 * MINUTE_MS, **TOLD}
LATE = AuthInterval(
    number=1,
    authenticated_ms=EPOCH_MS,
    session_lifetime_ms=15 * MINUTE_MS,
    announced_lifetime_ms=15 * MINUTE_MS,
    requests=1,
    last_request_since_auth_ms=20 * MINUTE_MS,
)
AGAIN = {"authentications": 2, "authenticated_ms": EPOCH_MS + 25 * MINUTE_MS}


USED_LATE = {
    "past": (later(EventKind.CHECKPOINT, 30, **USED_AT_20), "failing"),
    "no lifetime": (later(EventKind.CHECKPOINT, 30, **{**USED_AT_20, **UNTOLD}), "unproven"),
    "idle": (later(EventKind.CHECKPOINT, 30, last_request_ms=EPOCH_MS, **TOLD), "unproven"),
    "rounded": (
        later(EventKind.CHECKPOINT, 15, last_request_ms=EPOCH_MS + 900_001, **TOLD),
        "unproven",
    ),
    # the age is that of the session before, whose lifetime the login shows
    "of the one before": (
        later(EventKind.REAUTHENTICATED, 25, **{**USED_AT_20, **AGAIN}),
        "failing",
    ),
    "in a list": (later(EventKind.SUMMARY, 60, intervals=(LATE,), **{**TOLD, **AGAIN}), "failing"),
}
"""Fields known after a login, and the standing of its connection."""


@pytest.fixture(scope="module")
def used_late() -> dict[str, dict[str, Any]]:
    given = []
    for name, (what, _) in USED_LATE.items():
        first = replace(login(**TOLD), announced_lifetime_ms=what.announced_lifetime_ms)
        given += [replace(first, connection_id=name), replace(what, connection_id=name, sequence=2)]
    return {row["connection_id"]: row for row in answers(given).table("sessions")}


@pytest.mark.parametrize(("name", "standing"), [(name, it) for name, (_, it) in USED_LATE.items()])
def test_a_session_used_past_what_it_was_told_is_a_kill_though_that_event_is_lost(
    used_late: dict[str, dict[str, Any]], name: str, standing: str
) -> None:
    """The proxy drops events if the disk refuses them; the others have the announced lifetime."""
    session = used_late[name]
    assert (session["standing"], session["would_be_kills"]) == (standing, standing == "failing")


def test_what_no_session_can_have_done_is_not_believed() -> None:
    """Numbers of a row that are not looked at with those of all events."""
    used = replace(LATE, last_request_since_auth_ms=2**63 - 1)
    row = later(EventKind.SUMMARY, 60, sequence=2, intervals=(used,), would_be_kills=-1)
    killed = later(EventKind.SUMMARY, 120, sequence=3, would_be_kills=1, **TOLD)
    session = session_of([login(), row, killed])
    assert (session["used_ms"], session["would_be_kills"]) == (None, 1)


def test_a_kill_with_an_event_counts_once() -> None:
    killed = later(EventKind.EXPIRED_KILLED, 16, sequence=2, **TOLD)
    session = session_of([login(**TOLD), killed])
    assert (session["killed"], session["would_be_kills"]) == (1, 0)


def test_the_request_that_met_the_expired_session_is_a_use_of_it() -> None:
    """In `enforce` it is refused, and no count of requests includes it."""
    killed = later(EventKind.EXPIRED_KILLED, 20, last_request_ms=EPOCH_MS + 2 * MINUTE_MS, **TOLD)
    assert session_of([login(**TOLD), killed])["used_ms"] == 20 * MINUTE_MS


def test_a_request_before_the_login_of_an_interval_is_no_use_of_it() -> None:
    again = later(
        EventKind.CHECKPOINT,
        5,
        authentications=2,
        authenticated_ms=EPOCH_MS + 4 * MINUTE_MS,
        since_auth_ms=MINUTE_MS,
        last_request_ms=EPOCH_MS + 3 * MINUTE_MS,
    )
    assert session_of([again])["used_ms"] is None


COMPARED = (
    "connection_id",
    "principal",
    "standing",
    "authenticated_ms",
    "authentications",
    "reauthentications",
    "used_ms",
    "longest_gap_ms",
    "announced_ms",
    "would_be_kills",
    "requests",
    "ended_by",
    "client_id",
    "authenticate_version",
)


@pytest.fixture(scope="module")
def population() -> list[SessionEvent]:
    size = Size(connections=24, principals=6, clients=12, days=0.4, seed=7, skew_seconds=240)
    return [read(line) for line in simulated(size, clients_of(size))]


@pytest.fixture(scope="module")
def both_views(population: list[SessionEvent]) -> Answers:
    return answers(population, **SINGLY)


def compared(given: Iterable[SessionEvent] | Answers) -> list[tuple[Any, ...]]:
    log = given if isinstance(given, Answers) else answers(given, **SINGLY)
    found = log.query("SELECT * FROM sessions WHERE principal IS NOT NULL")
    return sorted(tuple(row[name] for name in COMPARED) for row in found)


def is_summary(each: SessionEvent) -> bool:
    return each.kind is EventKind.SUMMARY


def test_either_view_alone_and_both_tell_the_same(
    population: list[SessionEvent], both_views: Answers
) -> None:
    """A summary row and the events that it sums up are two ways to say one thing."""
    both = compared(both_views)
    assert len(both) > 15
    assert compared(each for each in population if not is_summary(each)) == both
    # what was going on when the connection closed is in the final row
    assert compared(each for each in population if is_summary(each)) == both


def test_of_a_whole_connection_the_quick_look_tells_all(both_views: Answers) -> None:
    """Without the intervals of its summary rows; else that look would not be enough for any."""
    found = both_views
    assert found.query("SELECT 1 FROM sessions, seen_connections WHERE NOT whole") == []
    both = usage.usage("events", both_views=True)
    found.engine.keep("full_usage", both)
    found.engine.keep("in_full", usage.by_connection("full_usage", None))
    found.engine.keep(
        "listed_sessions", sessions.sessions("in_full", "identities", "outcomes", "throttled")
    )
    quick, listed = (
        sorted(str([row[name] for name in COMPARED]) for row in found.table(name))
        for name in ("sessions", "listed_sessions")
    )
    assert quick == listed


def test_of_a_connection_that_was_joined_late_the_summary_rows_are_read(
    population: list[SessionEvent], both_views: Answers
) -> None:
    """Its first events are in files that are gone; whatever is left is used."""
    late = [each for each in population if each.sequence > 1]
    used = ("connection_id", "authentications", "used_ms", "announced_ms", "authenticate_version")

    def known(log: Answers) -> set[tuple[Any, ...]]:
        found = log.query("SELECT * FROM sessions WHERE principal IS NOT NULL")
        return {tuple(row[name] for name in used) for row in found}

    found = known(answers(late, **SINGLY))
    assert found <= known(both_views)
    assert len(found) > 8


def test_of_summary_rows_alone_one_that_comes_twice_counts_once(
    population: list[SessionEvent],
) -> None:
    """No connection of theirs is whole."""
    summed = [each for each in population if is_summary(each)]
    twice = max(summed, key=lambda each: each.would_be_kills or 0)
    assert twice.would_be_kills
    found = answers([*summed, twice])
    assert found.lines["duplicate"] == 1
    assert found.query("SELECT * FROM connections WHERE NOT incomplete") == []
    assert compared([*summed, twice]) == compared(summed)


@pytest.mark.parametrize("end", [[], [later(EventKind.CLOSED, 3)]], ids=["open", "closed"])
def test_who_it_is_the_last_event_says_wherever_it_stands(end: list[SessionEvent]) -> None:
    """By its number, though its clock was set back, and though nothing should follow an end."""
    last = later(EventKind.CHECKPOINT, -2, since_auth_ms=0, sequence=2, client_id="renamed")
    assert session_of([login(), *end, last])["client_id"] == "renamed"


def test_a_connection_without_sasl_is_no_session() -> None:
    """Its denials are recorded, but there is nothing that it could renew, nor fail to."""
    denied = {"kind": EventKind.DENIED, "authentications": 0, "operation": "READ"}
    certified = event(principal="User:CN=alice", connection_id="c-9", **denied)
    found = answers([login(), certified])
    assert found.only("sessions")["principal"] == "User:alice"
    assert found.only("denials")["principal"] == "User:CN=alice"


def test_conflicting_events_of_one_name_are_settled_alike_in_any_order() -> None:
    """Two proxies assign one id: the connections are indistinguishable, but runs must agree."""
    one = [login(), later(EventKind.CLOSED, 3)]
    other = [replace(each, client_host="10.0.0.8", timestamp_ms=EPOCH_MS + 5) for each in one]
    there, back = session_of([*one, *other]), session_of([*other, *one])
    assert there == back


def test_ids_that_two_proxies_gave_touch_no_other_connection() -> None:
    """Shared ids are counted, and of each number one event is taken, the same in any order."""

    def of(seed: int) -> list[SessionEvent]:
        size = Size(connections=20, principals=4, clients=10, days=0.2, seed=seed)
        return [read(line) for line in simulated(size, clients_of(size))]

    one, other = of(1), of(2)
    shared = {f"{2:016x}-{number}": f"{1:016x}-{number}" for number in range(1, 11)}
    renamed = [
        replace(each, connection_id=shared.get(each.connection_id, each.connection_id))
        for each in other
    ]
    mixed = [*one, *renamed]
    random.Random(4).shuffle(mixed)  # noqa: S311 - not for secrets
    found, backwards = answers(mixed), answers(reversed(mixed))
    assert found.table("sessions") == backwards.table("sessions")
    names = {(each.connection_id, each.sequence) for each in mixed}
    assert found.lines["duplicate"] == len(mixed) - len(names) > 20
    found = answers(mixed, **SINGLY)
    alone = [row for log in (one, other) for row in answers(log, **SINGLY).table("sessions")]
    touched = {*shared.keys(), *shared.values()}
    rows = {row["connection_id"]: row for row in found.table("sessions")}
    for row in alone:
        if row["connection_id"] not in touched:
            assert rows[row["connection_id"]] == row
