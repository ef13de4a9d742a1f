import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from metrics.events import AuthInterval, EventKind, SessionEvent
from metrics.period import Usage
from metrics.spark.analysis import what_if_table
from metrics.spark.intervals import intervals
from metrics.spark.what_if import kills, what_if
from tests.support.metrics import EPOCH, EPOCH_MS, ParsedHistory, grant, history
from tests.support.spark import (
    MINUTE_MS,
    base_tables_of,
    frame,
    kept,
    later,
    login,
    only,
    rows,
    sessions_of,
)

LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (1, 2, 5, 15, 30, 60, 240, 7))


def kills_by_the_rule(uses: Sequence[float], lifetime: float, begin: float) -> int:
    """KIP-368: a connection used more than `lifetime` after it authenticated is killed.

    The client comes back at once, and authenticates anew.
    """
    killed = 0
    for use in uses:
        if use - begin > lifetime:
            killed += 1
            begin = use
    return killed


def uses_of(rng: random.Random, hours: float) -> list[float]:
    """Times of requests, seconds: busy, sparse, or in bursts, as clients are."""
    uses, now = [], rng.uniform(1, 300)
    style = rng.choice(["busy", "sparse", "bursts", "mixed"])
    while now < hours * 3600:
        uses.append(now)
        pause = {"busy": 25.0, "sparse": 2000.0, "bursts": 8.0}.get(style, rng.choice([9.0, 700.0]))
        if style == "bursts" and rng.random() < 0.02:
            pause = 5000.0
        now += rng.uniform(0.2, 1.0) * pause
    return uses


def simulated(
    told_by: ParsedHistory, logins: Sequence[float], uses: Sequence[float], end: float
) -> list[SessionEvent]:
    """What a connection writes, swept each minute as the proxy does."""
    events: list[SessionEvent] = []
    count, sweep = 0, 60.0
    usage_now = Usage(0, 0, 0, None)
    for now in sorted([*logins, *uses, end]):
        while sweep <= now:
            events += told_by.sweep(usage_now, sweep)
            sweep += 60
        if now in logins:
            events += told_by.authenticated(grant(announced_lifetime_ms=0), usage_now, now)
        elif now < end:
            count += 1
            usage_now = Usage(count, count, count, now)
    return [*events, *told_by.closed("client_closed", usage_now, end)]


@pytest.fixture(scope="module")
def connections() -> dict[str, tuple[list[list[float]], list[SessionEvent]]]:
    """By its name what each wrote, and its sessions: when they began, then when they were used.

    Old clients stay in their first one; others renew it by a timer, whether they use it or not.
    """
    rng = random.Random(368)  # noqa: S311 - not for secrets
    found = {}
    for number in range(150):
        hours = rng.choice([0.2, 0.9, 3.0, 7.5])
        every = None if number < 120 else rng.choice([700, 4000])
        logins = [0.5] if every is None else [0.5 + each for each in range(0, 25_000, every)]
        logins = [each for each in logins if each < hours * 3600]
        uses = [use for use in uses_of(rng, hours) if use > 0.5]
        if every is not None:
            uses = uses[: rng.choice([1, 3, 40])]
        events = simulated(history(authenticate_version=0), logins, uses, hours * 3600)
        ends = [*logins[1:], hours * 3600]
        sessions = [
            [begin, *(use for use in uses if begin < use < end)]
            for begin, end in zip(logins, ends, strict=True)
        ]
        name = f"c-{number}"
        found[name] = (sessions, [replace(each, connection_id=name) for each in events])
    return found


def killed_at_least_and_most(
    spark: SparkSession, events: Sequence[SessionEvent]
) -> dict[tuple[str, int], tuple[int, int]]:
    given = frame(spark, events)
    found = kills(given.transform(intervals), LIFETIMES_MS)
    of_connections = found.groupBy("connection_id", "lifetime_ms").agg(
        f.sum("kills_least").alias("kills_least"), f.sum("kills_most").alias("kills_most")
    )
    return {
        (row["connection_id"], row["lifetime_ms"]): (row["kills_least"], row["kills_most"])
        for row in rows(of_connections)
    }


@pytest.mark.parametrize(
    "view",
    [
        "both",
        pytest.param("events", marks=pytest.mark.slow),
        pytest.param("summaries", marks=pytest.mark.slow),
    ],
)
def test_the_kills_lie_between_the_least_and_the_most(
    spark: SparkSession, connections: dict[str, Any], view: str
) -> None:
    """The rule itself, on the times of all requests, against what is read from the log."""
    wanted = {"both": (True, False), "events": (False,), "summaries": (True,)}[view]
    events = [
        each
        for _, told_events in connections.values()
        for each in told_events
        if (each.kind == "summary") in wanted
    ]
    found = killed_at_least_and_most(spark, events)
    spread = truth = 0
    for name, (sessions, _) in connections.items():
        for lifetime_ms in LIFETIMES_MS:
            expected = sum(
                kills_by_the_rule(uses, lifetime_ms / 1000, begin) for begin, *uses in sessions
            )
            least, most = found.get((name, lifetime_ms), (0, 0))
            assert least <= expected <= most, (name, lifetime_ms, expected, least, most)
            assert (least > 0) == (expected > 0)
            if lifetime_ms >= 15 * MINUTE_MS:
                spread += most - least
                truth += expected
    if view != "events":
        assert spread < 0.35 * truth


ROWS = [
    (0b1, [(0, 0)]),
    (0b1110, [(1, 3)]),
    (0b101, [(0, 0), (2, 2)]),
    (1 << 62, [(62, 62)]),
    (2**63 - 1, [(0, 62)]),
    (-1, [(0, 62)]),
    (-(2**63), []),
    (0, []),
    (None, []),
]


def test_the_bits_of_a_summary_row_are_runs_of_minutes(spark: SparkSession) -> None:
    """All of them set, and what no proxy writes, too: nothing may overflow."""
    begin = EPOCH_MS
    each = AuthInterval(
        number=1,
        authenticated_ms=begin,
        session_lifetime_ms=0,
        announced_lifetime_ms=0,
        requests=1,
        last_request_since_auth_ms=2**63 - 1,
    )
    given = [
        later(
            EventKind.SUMMARY,
            60,
            connection_id=f"c-{number}",
            active_from_ms=begin,
            active_minutes=bits,
            intervals=(each,),
        )
        for number, (bits, _) in enumerate(ROWS)
    ]
    found = {row["connection_id"]: row for row in rows(frame(spark, given).transform(intervals))}
    for number, (_, runs) in enumerate(ROWS):
        minutes = [
            ((run["first_ms"] - begin) // MINUTE_MS, (run["last_ms"] - begin) // MINUTE_MS)
            for run in found[f"c-{number}"]["runs"]
        ]
        assert sorted(minutes) == runs
    assert len(rows(kills(frame(spark, given).transform(intervals), (300_000,)))) == len(ROWS)


def test_a_session_is_killed_beyond_its_lifetime_and_not_at_it(spark: SparkSession) -> None:
    at = "c-at"
    used = login(
        connection_id=at, authenticate_version=0, last_request_ms=round(EPOCH * 1000) + 300_000
    )
    found = sessions_of(frame(spark, [used]))
    none = kills(frame(spark, []).transform(intervals), (1,))
    assert only(what_if(found, none, (300_000,)))["killed_connections"] == 0
    assert only(what_if(found, none, (299_999,)))["killed_connections"] == 1


def test_what_is_unproven_is_not_called_killed(spark: SparkSession) -> None:
    used = login(last_request_ms=round(EPOCH * 1000) + 3_600_000)
    rows_known = base_tables_of(frame(spark, [used]))
    row = only(what_if_table(rows_known, (300_000,), kept))
    assert (row["killed_connections"], row["unproven_connections"]) == (0, 1)
    assert row["kills_most"] == 0


def test_what_its_client_has_shown_elsewhere_is_not_unproven(spark: SparkSession) -> None:
    """Long before `probe` began, say: else no lifetime would ever be known to kill nothing."""
    lifetime = {"session_lifetime_ms": 900_000, "announced_lifetime_ms": 900_000}
    incomplete = login(connection_id="incomplete", last_request_ms=EPOCH_MS + 3_600_000)
    again = later(EventKind.REAUTHENTICATED, 13, authentications=2, **lifetime)
    row = only(
        what_if_table(
            base_tables_of(frame(spark, [incomplete, login(**lifetime), again])), (300_000,), kept
        )
    )
    assert (row["killed_connections"], row["unproven_connections"]) == (0, 0)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        # killed, cut short; by lifetimes of 5, 15 and 30 minutes
        (later(EventKind.EXPIRED_KILLED, 6), [(1, 0), (0, 1), (0, 1)]),
        (later(EventKind.FAILED, 16), [(0, 0), (0, 0), (0, 1)]),
        (later(EventKind.FAILED, 16, last_request_ms=EPOCH_MS + 960_000), [(1, 0)] * 2 + [(0, 1)]),
        (later(EventKind.CLOSED, 6, last_request_ms=EPOCH_MS + 360_000), [(1, 0), (0, 0), (0, 0)]),
        (later(EventKind.WOULD_BE_KILLED, 6), [(1, 0), (0, 0), (0, 0)]),
    ],
    ids=["killed", "failed when idle", "failed", "left", "goes on"],
)
def test_what_the_proxy_ended_does_not_say_that_longer_lifetimes_kill_nothing(
    spark: SparkSession, end: SessionEvent, found: list[tuple[int, int]]
) -> None:
    """Killed at five minutes again and again, a client never shows what it would do at fifteen."""
    given = [replace(each, authenticate_version=0) for each in (login(), end)]
    lifetimes_ms = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30))
    found_rows = rows(what_if_table(base_tables_of(frame(spark, given)), lifetimes_ms, kept))
    assert [
        (row["killed_connections"], row["cut_short_connections"]) for row in found_rows
    ] == found
    assert [row["cut_short_clients"] for row in found_rows] == [count for _, count in found]


def test_nothing_observed_is_nothing_killed(spark: SparkSession) -> None:
    rows_known = base_tables_of(frame(spark, []))
    assert rows(what_if_table(rows_known, (300_000,), kept)) == []


def test_less_than_an_hour_is_too_little_to_speak_of_days(spark: SparkSession) -> None:
    used = login(authenticate_version=0, last_request_ms=round(EPOCH * 1000) + 600_000)
    rows_known = base_tables_of(frame(spark, [used]))
    row = only(what_if_table(rows_known, (300_000,), kept))
    assert row["killed_connections"] == 1
    assert row["kills_per_day_least"] is None
