import random
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.events.generate import EPOCH, Size, clients_of, simulated
from metrics.events import AuthInterval, EventKind, SessionEvent
from metrics.spark import event_rows
from metrics.spark.cleaning import Rows, cleaned
from metrics.spark.denials import denials
from metrics.spark.intervals import adds_to_intervals, intervals, intervals_if_complete
from metrics.spark.sessions import identities, last_events, sessions
from metrics.spark.usage import sequences, usage, usage_if_whole
from tests.support.metrics import EPOCH_MS, event, read, to_json_line
from tests.support.spark import (
    MINUTE_MS,
    base_tables_of,
    frame,
    later,
    lines,
    login,
    only,
    rows,
    sessions_of,
)

HOUR_MS = 60 * MINUTE_MS
TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}
UNTOLD = {"session_lifetime_ms": 0, "announced_lifetime_ms": 0}


STANDINGS = [
    ("no lifetime", [login()], "unproven"),
    ("a lifetime, not yet over", [login(**TOLD)], "unproven"),
    ("SaslAuthenticate v0", [login(authenticate_version=0)], "not_capable"),
    ("raw tokens", [login(authenticate_version=None)], "not_capable"),
    (
        "re-authenticated",
        [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)],
        "ready",
    ),
    ("killed", [login(**TOLD), later(EventKind.EXPIRED_KILLED, 16, **TOLD)], "failing"),
    ("would be", [login(**TOLD), later(EventKind.WOULD_BE_KILLED, 16, **TOLD)], "failing"),
    ("failed again", [login(**TOLD), later(EventKind.FAILED, 14, **TOLD)], "failing"),
    (
        "killed without an announced lifetime",
        [
            login(authenticate_version=0),
            later(EventKind.EXPIRED_KILLED, 16, authenticate_version=0),
        ],
        "not_capable",
    ),
    ("never logged in", [event(kind=EventKind.FAILED, authentications=0)], "unknown"),
    ("an unknown mechanism", [login(mechanism="X-NEW")], "unproven"),
    ("no mechanism", [event(kind=EventKind.CLOSED, authentications=0)], "unknown"),
]


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, dict[str, Any]]:
    given = [replace(each, connection_id=name) for name, events, _ in STANDINGS for each in events]
    return {row["connection_id"]: row for row in rows(sessions_of(frame(spark, given)))}


@pytest.mark.parametrize(("name", "standing"), [(name, it) for name, _, it in STANDINGS])
def test_a_connection_stands_where_its_events_put_it(
    judged: dict[str, dict[str, Any]], name: str, standing: str
) -> None:
    assert judged[name]["standing"] == standing


def test_no_events_are_no_sessions(spark: SparkSession) -> None:
    assert rows(sessions_of(frame(spark, []))) == []
    assert rows(frame(spark, []).transform(intervals)) == []


def test_what_became_known_last_is_valid(spark: SparkSession) -> None:
    """client.id comes with the first request, after the login."""
    last = later(EventKind.CHECKPOINT, 15, client_id="known-now")
    assert (
        only(sessions_of(frame(spark, [last, login(client_id=None)])))["client_id"] == "known-now"
    )


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
    # the age is that of the session before, whose lifetime it does not say
    "of the one before": (
        later(EventKind.REAUTHENTICATED, 25, **{**USED_AT_20, **AGAIN}),
        "ready",
    ),
    "in a list": (
        later(EventKind.SUMMARY, 60, intervals=(LATE,), **{**TOLD, **AGAIN}),
        "failing",
    ),
}
"""What is known after a login, and where its connection stands."""


@pytest.fixture(scope="module")
def used_late(spark: SparkSession) -> dict[str, dict[str, Any]]:
    given = []
    for name, (what, _) in USED_LATE.items():
        first = replace(login(**TOLD), announced_lifetime_ms=what.announced_lifetime_ms)
        given += [
            replace(first, connection_id=name),
            replace(what, connection_id=name, sequence=2),
        ]
    return {row["connection_id"]: row for row in rows(sessions_of(frame(spark, given)))}


@pytest.mark.parametrize(("name", "standing"), [(name, it) for name, (_, it) in USED_LATE.items()])
def test_a_session_used_past_what_it_was_told_is_a_kill_though_that_event_is_lost(
    used_late: dict[str, dict[str, Any]], name: str, standing: str
) -> None:
    """The proxy drops events if the disk refuses; what it announced stands in the others."""
    session = used_late[name]
    assert (session["standing"], session["would_be_kills"]) == (standing, standing == "failing")


def test_what_no_session_can_have_done_is_not_believed(spark: SparkSession) -> None:
    """Numbers of a row that are not looked at with those of all events."""
    used = replace(LATE, last_request_since_auth_ms=2**63 - 1)
    row = later(EventKind.SUMMARY, 60, sequence=2, intervals=(used,), would_be_kills=-1)
    killed = later(EventKind.SUMMARY, 120, sequence=3, would_be_kills=1, **TOLD)
    session = only(sessions_of(frame(spark, [login(), row, killed])))
    assert (session["used_ms"], session["would_be_kills"]) == (None, 1)


def test_a_kill_with_an_event_counts_once(spark: SparkSession) -> None:
    killed = later(EventKind.EXPIRED_KILLED, 16, sequence=2, **TOLD)
    session = only(sessions_of(frame(spark, [login(**TOLD), killed])))
    assert (session["killed"], session["would_be_kills"]) == (1, 0)


def test_the_request_that_met_the_expired_session_is_a_use_of_it(spark: SparkSession) -> None:
    """In `enforce` it is refused and stands in no count of requests."""
    killed = later(EventKind.EXPIRED_KILLED, 20, last_request_ms=EPOCH_MS + 2 * MINUTE_MS, **TOLD)
    assert only(sessions_of(frame(spark, [login(**TOLD), killed])))["used_ms"] == 20 * MINUTE_MS


def test_a_request_before_the_login_of_an_interval_is_no_use_of_it(spark: SparkSession) -> None:
    again = later(
        EventKind.CHECKPOINT,
        5,
        authentications=2,
        authenticated_ms=EPOCH_MS + 4 * MINUTE_MS,
        since_auth_ms=MINUTE_MS,
        last_request_ms=EPOCH_MS + 3 * MINUTE_MS,
    )
    assert only(sessions_of(frame(spark, [again])))["used_ms"] is None


COMPARED = (
    "connection_id",
    "principal",
    "standing",
    "authenticated_ms",
    "authentications",
    "reauthentications",
    "used_ms",
    "longest_gap_ms",
    "told_ms",
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


def compared(given: DataFrame) -> list[tuple[Any, ...]]:
    found = sessions_of(given).where("principal IS NOT NULL")
    return sorted(tuple(row) for row in found.select(*COMPARED).collect())


@pytest.mark.slow
def test_either_view_alone_and_both_tell_the_same(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    """A summary row and the events that it sums up are two ways to say one thing."""
    given = frame(spark, population)
    both = compared(given)
    assert len(both) > 15
    assert compared(given.where("kind <> 'summary'")) == both
    # what was going on when the connection closed is in the final row
    assert compared(given.where("kind = 'summary'")) == both


@pytest.mark.slow
def test_of_a_whole_connection_the_quick_look_tells_all(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    """Without the intervals of its summary rows; else that look would not be enough for any."""
    given = frame(spark, population)
    assert rows(given.transform(usage).transform(sequences).where("NOT whole")) == []
    quick = given.transform(usage_if_whole).localCheckpoint()
    found = sessions(quick, identities(last_events(given, quick))).where("principal IS NOT NULL")
    assert sorted(tuple(row) for row in found.select(*COMPARED).collect()) == compared(given)


@pytest.mark.slow
def test_of_a_connection_that_was_joined_late_the_summary_rows_are_read(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    """Its first events are in files that are gone; whatever is left is used."""
    late = [each for each in population if each.sequence > 1]
    text = lines(spark, (to_json_line(each) for each in late))
    read = Rows(classified=event_rows.classified(event_rows.parsed(text)))
    found = cleaned(read, as_of_ms=10**14, keep=lambda _, each: each.localCheckpoint())
    kept = sessions(found.usage, identities(last_events(found.events, found.usage)))
    recorded = sorted(tuple(row) for row in kept.select(*COMPARED).collect() if row[1] is not None)
    assert recorded == compared(frame(spark, late))


@pytest.mark.slow
def test_of_summary_rows_alone_everything_is_read_at_once(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    """No connection of theirs is whole; and what comes twice must still count once."""
    summed = [each for each in population if each.kind is EventKind.SUMMARY]
    twice = max(summed, key=lambda each: each.would_be_kills or 0)
    assert twice.would_be_kills
    text = lines(spark, (to_json_line(each) for each in (*summed, twice)))
    given = Rows(classified=event_rows.classified(event_rows.parsed(text)).localCheckpoint())
    kept = []

    def keep(name: str, each: DataFrame) -> DataFrame:
        kept.append(name)
        return each.localCheckpoint()

    found = cleaned(given, as_of_ms=10**14, keep=keep)
    assert "parts" not in kept
    assert found.lines["duplicate"] == 1
    assert found.incomplete is not None
    assert (found.incomplete.others, found.incomplete.partly) == (False, False)
    judged = sessions(found.usage, identities(last_events(found.events, found.usage)))
    recorded = sorted(
        tuple(row) for row in judged.select(*COMPARED).collect() if row[1] is not None
    )
    assert recorded == compared(frame(spark, summed))


@pytest.mark.slow
def test_the_order_of_events_does_not_matter(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    mixed = population[:]
    random.Random(3).shuffle(mixed)  # noqa: S311 - not for secrets
    assert compared(frame(spark, mixed)) == compared(frame(spark, population))


def test_the_intervals_of_either_view_are_the_same(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    given = frame(spark, population)

    def found(kinds: str) -> set[Any]:
        return set(given.where(kinds).transform(intervals).drop("runs").collect())

    events, summaries = found("kind <> 'summary'"), found("kind = 'summary'")
    # rounded to the millisecond from both ends of an interval
    assert len(events) == len(summaries) > 100
    for one, other in zip(sorted(events), sorted(summaries), strict=True):
        assert one[:2] == other[:2]
        assert abs(one[2] - other[2]) <= 1
        assert (one[3] is None) == (other[3] is None)
        assert one[3] is None or abs(one[3] - other[3]) <= 1


def test_where_events_tell_all_the_lists_of_summary_rows_need_not_be_read(
    spark: SparkSession, population: list[SessionEvent]
) -> None:
    """Nor checkpoints, but the last event of a connection that is cut off."""
    shorter = [each for each in population if each.timestamp_ms < EPOCH * 1000 + 5 * HOUR_MS]
    given = frame(spark, shorter)
    assert {each.kind for each in shorter} > {EventKind.CHECKPOINT, EventKind.SUMMARY}
    last = last_events(given, given.transform(usage))
    complete = rows(intervals_if_complete(given.where(adds_to_intervals()), last))
    listed = rows(given.transform(intervals))

    def by_name(found: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
        return {(row["connection_id"], row["number"]): row for row in found}

    assert by_name(complete).keys() == by_name(listed).keys()
    assert len(complete) > 50
    for name, row in by_name(listed).items():
        other = by_name(complete)[name]
        assert abs(row["authenticated_ms"] - other["authenticated_ms"]) <= 1
        assert (row["used_ms"] is None) == (other["used_ms"] is None)
        assert row["used_ms"] is None or abs(row["used_ms"] - other["used_ms"]) <= 1
        assert sorted(row["runs"], key=str) == sorted(other["runs"], key=str)


@pytest.mark.parametrize("end", [[], [later(EventKind.CLOSED, 3)]], ids=["open", "closed"])
def test_who_it_is_the_last_event_says_wherever_it_stands(
    spark: SparkSession, end: list[SessionEvent]
) -> None:
    """By its number, though its clock was set back, and though nothing should follow an end."""
    last = later(EventKind.CHECKPOINT, -2, since_auth_ms=0, sequence=2, client_id="renamed")
    given = frame(spark, [login(), *end, last])
    assert only(base_tables_of(given).sessions)["client_id"] == "renamed"


def test_a_connection_without_sasl_is_no_session(spark: SparkSession) -> None:
    """Its denials are recorded, but there is nothing that it could renew, nor fail to."""
    denied = {"kind": EventKind.DENIED, "authentications": 0, "operation": "READ"}
    certified = event(principal="User:CN=alice", connection_id="c-9", **denied)
    given = frame(spark, [login(), certified])
    assert only(sessions_of(given))["principal"] == "User:alice"
    assert only(given.transform(denials))["principal"] == "User:CN=alice"
