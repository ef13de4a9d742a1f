import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from metrics.event_schema import AuthInterval, SessionEvent
from metrics.events import EventKind
from metrics.period import Usage
from metrics.readiness import what_if
from tests.support.metrics import EPOCH_MS, ParsedHistory, grant, history
from tests.support.readiness import MINUTE_MS, Row, answers, duckdb_log, later, login

LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (1, 2, 5, 15, 30, 60, 240, 7))


def kills_by_the_rule(uses: Sequence[float], lifetime: float, begin: float) -> int:
    """KIP-368: a connection used more than `lifetime` after it authenticated is killed.

    The client comes back at once, and authenticates again.
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
    events: Sequence[SessionEvent],
) -> dict[tuple[str, int], tuple[int, int]]:
    engine = duckdb_log(events)
    intervals = what_if.intervals("log")
    engine.keep("kills", what_if.kills(f"({intervals})", LIFETIMES_MS))
    found = engine.rows(
        """SELECT connection_id, lifetime_ms, sum(kills_least) AS least, sum(kills_most) AS most
        FROM kills GROUP BY connection_id, lifetime_ms"""
    )
    return {
        (row["connection_id"], row["lifetime_ms"]): (row["least"], row["most"]) for row in found
    }


def intervals_of(events: Sequence[SessionEvent]) -> list[Row]:
    engine = duckdb_log(events)
    return engine.rows(what_if.intervals("log"))


@pytest.mark.parametrize("view", ["both", "events", "summaries"])
def test_the_kills_lie_between_the_least_and_the_most(
    connections: dict[str, Any], view: str
) -> None:
    """The rule itself, on the times of all requests, against the result from the log."""
    wanted = {"both": (True, False), "events": (False,), "summaries": (True,)}[view]
    events = [
        each
        for _, told_events in connections.values()
        for each in told_events
        if (each.kind == "summary") in wanted
    ]
    found = killed_at_least_and_most(events)
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


def test_the_bits_of_a_summary_row_are_runs_of_minutes() -> None:
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
    found = {row["connection_id"]: row for row in intervals_of(given)}
    for number, (_, runs) in enumerate(ROWS):
        minutes = [
            ((run["a"] - begin) // MINUTE_MS, (run["b"] - begin) // MINUTE_MS)
            for run in found[f"c-{number}"]["runs"]
        ]
        assert sorted(minutes) == runs
    engine = duckdb_log(given)
    intervals = what_if.intervals("log")
    assert len(engine.rows(what_if.kills(f"({intervals})", (300_000,)))) == len(ROWS)


def test_a_session_is_killed_beyond_its_lifetime_and_not_at_it() -> None:
    used = login(authenticate_version=0, last_request_ms=EPOCH_MS + 300_000)
    end = later(EventKind.CHECKPOINT, 5, authenticate_version=0)
    found = answers([used, end], lifetimes_ms=(299_999, 300_000)).table("what_if", "lifetime_ms")
    assert [row["killed_connections"] for row in found] == [1, 0]


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
    end: SessionEvent, found: list[tuple[int, int]]
) -> None:
    """Killed at five minutes again and again, a client never shows what it would do at fifteen."""
    other = later(EventKind.CHECKPOINT, 30, connection_id="other")  # so much is covered
    given = [replace(each, authenticate_version=0) for each in (login(), end, other)]
    lifetimes_ms = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30))
    found_rows = answers(given, lifetimes_ms=lifetimes_ms).table("what_if", "lifetime_ms")
    assert [
        (row["killed_connections"], row["cut_short_connections"]) for row in found_rows
    ] == found
    assert [row["cut_short_clients"] for row in found_rows] == [count for _, count in found]


def test_less_than_an_hour_is_too_little_to_speak_of_days() -> None:
    used = login(authenticate_version=0, last_request_ms=EPOCH_MS + 600_000)
    row = answers([used], lifetimes_ms=(300_000,)).only("what_if")
    assert row["killed_connections"] == 1
    assert row["kills_per_day_least"] is None
