import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from benchmarks.events.generate import Size, clients_of, simulated
from metrics.event_schema import AuthInterval, LatencyBucket, SessionEvent
from metrics.events import EventKind
from metrics.period import latency_bucket
from metrics.readiness import authentications
from metrics.report.verdicts import Verdict
from tests.support.metrics import EPOCH_MS, event, read
from tests.support.readiness import MINUTE_MS, Row, answers, later, login

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}


ORDERS = {"storms": "minute_ms, mechanism NULLS FIRST", "by_day": "day"}


def table(name: str, given: Iterable[SessionEvent | str]) -> list[Row]:
    return answers(given).table(name, ORDERS.get(name, "1"))


def test_a_minute_counts_its_authentications_by_mechanism() -> None:
    given = [login(connection_id=f"c-{number}", auth_latency_us=2000) for number in range(3)]
    again = later(EventKind.REAUTHENTICATED, 0.5, auth_latency_us=500, authentications=2)
    other = login(connection_id="d", mechanism=None)
    found = table("storms", [*given, again, other])
    assert [row["mechanism"] for row in found] == [None, "SCRAM-SHA-256"]
    assert found[1] == {
        "minute_ms": EPOCH_MS,
        "mechanism": "SCRAM-SHA-256",
        "authentications": 4,
        "reauthentications": 1,
        "busy_us": 6500,
        "slowest_us": 2000,
    }


def test_summaries_alone_tell_of_the_same_storms() -> None:
    size = Size(connections=12, principals=4, clients=8, days=0.2, seed=5)
    given = [read(line) for line in simulated(size, clients_of(size))]
    odd = random.Random(5)  # noqa: S311 - not for secrets
    half = {each.connection_id: odd.random() < 0.5 for each in given}
    columns = ("minute_ms", "mechanism", "authentications", "reauthentications")

    def counted(keep: Callable[[SessionEvent], bool]) -> set[Any]:
        found = table("storms", [each for each in given if keep(each)])
        return {tuple(row[name] for name in columns) for row in found}

    def is_summary(each: SessionEvent) -> bool:
        return each.kind is EventKind.SUMMARY

    everything = counted(lambda _: True)
    assert counted(is_summary) == counted(lambda each: not is_summary(each)) == everything
    assert counted(lambda each: is_summary(each) or each.sequence % 2 == 0) == everything
    assert counted(lambda each: is_summary(each) or half[each.connection_id]) == everything


@pytest.mark.parametrize("first_kept", [0, 1], ids=["all", "summaries"])
def test_an_authentication_is_one_however_many_summary_rows_tell_of_it(first_kept: int) -> None:
    """A session at the very end of a period continues in the next row, and so may a login."""

    def begun(number: int, minutes: int) -> AuthInterval:
        return AuthInterval(
            number=number,
            authenticated_ms=EPOCH_MS + minutes * MINUTE_MS,
            session_lifetime_ms=0,
            announced_lifetime_ms=0,
            requests=0,
        )

    def hour(
        sequence: int, authentications: int, *intervals: AuthInterval, renewed: int
    ) -> SessionEvent:
        return later(
            EventKind.SUMMARY,
            60 * sequence,
            sequence=sequence,
            period_start_ms=EPOCH_MS + 60 * (sequence - 1) * MINUTE_MS,
            authentications=authentications,
            reauthentications=renewed,
            intervals=intervals,
        )

    first, second, third = begun(1, 0), begun(2, 120), begun(3, 150)
    given = [
        login(),
        hour(1, 1, first, renewed=0),
        hour(2, 2, first, second, renewed=1),
        hour(3, 3, second, third, renewed=1),
    ]
    found = table("storms", [each for each in given if each.sequence >= first_kept])
    minutes = [(row["minute_ms"] - EPOCH_MS) // MINUTE_MS for row in found]
    assert minutes == [0, 120, 150]
    assert [row["authentications"] for row in found] == [1, 1, 1]
    assert [row["reauthentications"] for row in found] == [0, 1, 1]


def test_the_profile_keeps_the_busiest_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentications, "STORM_POINTS", 2)
    given = [login(connection_id="a"), login(connection_id="b")]
    given.append(login(connection_id="c", timestamp_ms=EPOCH_MS + 90 * MINUTE_MS))
    found = answers(given).query(authentications.storm_profile("storms"))
    assert [row["authentications"] for row in found] == [2, 1]


@pytest.mark.parametrize("view", ["events", "summaries"])
def test_quantiles_are_within_one_percent(view: str) -> None:
    values = [int(100 * 1.013**number) for number in range(500)]
    kind = EventKind.REAUTHENTICATED
    if view == "events":
        given = [
            later(kind, 1, connection_id=f"c-{n}", auth_latency_us=value, authentications=2)
            for n, value in enumerate(values)
        ]
    else:
        buckets = tuple(LatencyBucket(bucket=latency_bucket(value), count=1) for value in values)
        given = [later(EventKind.SUMMARY, 60, reauth_latencies=buckets)]
    (row,) = (row for row in table("latencies", given) if row["kind"] == kind)
    assert row["count"] == 500
    for name, share in (("p50_us", 0.5), ("p95_us", 0.95), ("p99_us", 0.99)):
        exact = values[math.ceil(share * len(values)) - 1]
        assert row[name] == pytest.approx(exact, rel=0.0101)


def test_a_latency_that_nothing_can_have_is_bounded() -> None:
    """A double has no number for its bucket, and JSON has no infinity."""
    buckets = (LatencyBucket(bucket=99_999, count=3), LatencyBucket(bucket=5, count=-2))
    given = [later(EventKind.SUMMARY, 60, reauth_latencies=buckets)]
    (row,) = table("latencies", given)
    assert row["count"] == 3
    assert row["p99_us"] == pytest.approx(1e16, rel=0.02)


BY_DAY = {
    "repaired": (
        [
            login(**TOLD),
            later(EventKind.WOULD_BE_KILLED, 16, **TOLD),
            later(EventKind.REAUTHENTICATED, 17, authentications=2, sequence=2, **TOLD),
            later(EventKind.REAUTHENTICATED, 1440, authentications=3, sequence=3, **TOLD),
            later(EventKind.CHECKPOINT, 2880, authentications=3, sequence=4, **TOLD),
        ],
        ["failing", "ready", "ready"],
    ),
    # a use past the end is recorded once for each session, which may last for days
    "never renewed": (
        [
            login(**TOLD),
            later(EventKind.WOULD_BE_KILLED, 16, **TOLD),
            *(later(EventKind.CHECKPOINT, 1440 * n, sequence=1 + n, **TOLD) for n in (1, 2)),
        ],
        ["failing"] * 3,
    ),
    # neither what it did before nor the late renewal helps it
    "stuck past its end": (
        [
            login(**TOLD),
            later(EventKind.REAUTHENTICATED, 60, authentications=2, **TOLD),
            later(EventKind.REAUTHENTICATED, 1440, authentications=3, sequence=2, **TOLD),
            later(EventKind.WOULD_BE_KILLED, 1460, authentications=3, sequence=3, **TOLD),
            later(EventKind.CHECKPOINT, 2880, authentications=3, sequence=4, **TOLD),
            later(EventKind.CHECKPOINT, 4320, authentications=3, sequence=5, **TOLD),
            later(EventKind.REAUTHENTICATED, 5760, authentications=4, sequence=6, **TOLD),
            later(EventKind.REAUTHENTICATED, 7200, authentications=5, sequence=7, **TOLD),
        ],
        ["ready", *["failing"] * 4, "ready"],
    ),
}
"""Events of one client, and its state at the end of each day on which it was seen."""


@pytest.mark.parametrize("name", BY_DAY)
def test_a_failure_counts_until_a_later_day_with_a_renewal_in_time(name: str) -> None:
    given, states = BY_DAY[name]
    found = table("by_day", given)
    assert [[each for each in Verdict if row[each]] for row in found] == [[it] for it in states]


def test_a_kill_is_of_its_own_day_though_its_summary_row_is_of_the_next() -> None:
    """If only the summary row is left, that one's day is all that is known.

    The client re-authenticated in between, too late, which is no repair.
    """
    killed = later(EventKind.WOULD_BE_KILLED, 16, **TOLD)
    summed = later(EventKind.SUMMARY, 1440, sequence=2, authentications=2, would_be_kills=1, **TOLD)

    def failing(given: list[SessionEvent]) -> list[int]:
        found = table("by_day", given)
        return [row["failing"] for row in found]

    assert failing([login(**TOLD), killed, summed]) == [1, 1]
    assert failing([login(**TOLD), summed]) == [0, 1]


TOKENS = [
    (3_600_000, 3_000_000, False, None),
    (3_600_000, 3_700_000, True, 100_000),
    (30_000, 10_000, True, None),
    (None, 10**9, False, None),
    (3_600_000, None, False, None),
    (0, None, False, None),  # expired at the login, within the clock skew
]


def test_a_token_is_short_if_it_was_outlived_or_lives_less_than_a_minute() -> None:
    given = [
        login(
            connection_id=f"c-{number}",
            client_id=str(number),
            credential_lifetime_ms=token_ms,
            last_request_ms=None if used_ms is None else EPOCH_MS + used_ms,
        )
        for number, (token_ms, used_ms, _, _) in enumerate(TOKENS)
    ]
    found = {row["client_id"]: row["outlived_ms"] for row in table("short_tokens", given)}
    assert found == {
        str(number): outlived_ms
        for number, (_, _, listed, outlived_ms) in enumerate(TOKENS)
        if listed
    }


def test_lengths_fall_into_classes_that_double() -> None:
    given = [
        login(connection_id=str(number), last_request_ms=EPOCH_MS + ms)
        for number, ms in enumerate([0, 60_000, 60_001, 120_000, 900_000])
    ]
    given.append(login(connection_id="unused"))
    found = table("session_lengths", given)
    counted = {row["up_to_ms"]: row["connections"] for row in found}
    assert counted == {60_000: 2, 120_000: 2, 960_000: 1}


def test_failures_are_counted_by_reason() -> None:
    first = event(kind=EventKind.FAILED, authentications=0, failure_reason="bad_credentials")
    again = later(EventKind.FAILED, 14, failure_reason="expired")
    found = {
        (row["failure_reason"], row["reauthentication"])
        for row in table("failures", [first, again])
    }
    assert found == {("bad_credentials", False), ("expired", True)}


TABLES = (
    "sessions",
    "clients",
    "principals",
    "what_if",
    "storms",
    "latencies",
    "by_day",
    "short_tokens",
    "session_lengths",
    "failures",
)


def test_nothing_gives_nothing() -> None:
    empty = answers([])
    for name in TABLES:
        assert empty.table(name) == [], name
