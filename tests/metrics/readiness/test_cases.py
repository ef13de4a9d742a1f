"""Small logs of one client each, with the verdict that the report must give.

Each case of `VERDICTS` is read as it is and once for each of its lines doubled: all in one log, the
client of each copy under a name of its own.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from metrics.event_schema import AuthInterval
from metrics.events import EventKind
from tests.support.metrics import EPOCH_MS
from tests.support.readiness import MINUTE_MS, Row, answers, later, login

CASES = Path(__file__).with_name("cases")

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}


def lines_of(case: str) -> list[str]:
    return (CASES / f"{case}.jsonl").read_text().splitlines()


def day(number: int) -> int:
    """The day since 1970 of a day of June 2026, of which the logs are."""
    return (datetime(2026, 6, number, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days


VERDICTS: dict[str, dict[str, Any]] = {
    # used past its end on 1 and 3 June, while another connection re-authenticates on 2 June
    "one_of_two": {"verdict": "failing", "failed_on": day(3), "ready_since": None},
    # used past its end before midnight, re-authenticated after it: too late
    "midnight": {"verdict": "failing", "failed_on": day(1), "would_be_kills": 1},
    # fails on 1 and 3 June
    "ready_since": {"verdict": "ready", "failed_on": day(3), "ready_since": day(4)},
    "ready_since_failing": {"verdict": "failing", "failed_on": day(3), "ready_since": None},
    # 3 h of a session of 4 h, then 20 min of one of 15 min
    "past_end": {"verdict": "failing", "past_end_ms": 5 * MINUTE_MS},
    "mid_lost": {"verdict": "failing", "would_be_kills": 1, "past_end_ms": 2 * MINUTE_MS},
    "lost_kill": {"verdict": "not_capable", "killed": 1},
    "lost_failed": {"verdict": "failing", "reauth_failures": 1},
    "fail_without_lifetime": {"verdict": "unproven", "reauth_failures": 1},
    # re-authenticates milliseconds after the login, on each connection
    "kafkajs": {"verdict": "failing", "hasty_ms": 5_000, "ready_from_ms": None},
}


def copies(case: str) -> Iterator[str]:
    lines = lines_of(case)
    for copy in range(len(lines) + 1):
        for line in lines + lines[copy : copy + 1]:
            event = json.loads(line)
            event["connection_id"] = f"{case}-{copy}-{event['connection_id']}"
            event["client_id"] = f"{case} {event['client_id']}"
            event["principal"] = f"{event['principal']}-{copy}"
            yield json.dumps(event)


@pytest.fixture(scope="module")
def clients() -> dict[str, list[Row]]:
    lines = [line for case in VERDICTS for line in copies(case)]
    rows = answers(lines).table("clients")
    mine = ("User:a-", "User:kjs-")
    return {
        case: [
            row
            for row in rows
            if row["client_id"].split()[0] == case and row["principal"].startswith(mine)
        ]
        for case in VERDICTS
    }


@pytest.mark.parametrize("case", VERDICTS)
def test_a_client_has_its_verdict_whichever_line_is_doubled(
    clients: dict[str, list[Row]], case: str
) -> None:
    found, expected = clients[case], VERDICTS[case]
    assert len(found) == len(lines_of(case)) + 1
    assert [{name: row[name] for name in expected} for row in found] == [expected] * len(found)


def test_a_later_connection_in_time_clears_no_open_session_of_an_unknown_use() -> None:
    """An older proxy did not count the uses of an expired session, whose end is not recorded."""

    def verdict(**first: Any) -> str:
        good = [
            login(connection_id="c-2", **TOLD),
            later(EventKind.REAUTHENTICATED, 1500, connection_id="c-2", authentications=2, **TOLD),
        ]
        past = later(EventKind.WOULD_BE_KILLED, 16, **TOLD, **first)
        found = answers([login(**TOLD, **first), past, *good])
        return str(found.only("clients")["verdict"])

    assert verdict() == "unknown"
    assert verdict(expired_requests=0) == "ready"


def test_uses_of_an_expired_session_are_counted_where_its_beginning_is_lost() -> None:
    late = later(
        EventKind.REAUTHENTICATED, 1500, authentications=2, sequence=2, expired_requests=7, **TOLD
    )
    found = answers([late]).only("clients")
    assert (found["verdict"], found["would_be_kills"]) == ("failing", 1)


def test_a_throttle_beyond_the_end_of_a_session_is_named_and_no_library() -> None:
    quota = "producer_byte_rate of user=alice"
    named = {"client_software_name": "librdkafka", "client_software_version": "2.0"}
    past = later(
        EventKind.EXPIRED_KILLED, 16, throttled_ms=90_000, throttled_by=quota, **TOLD, **named
    )
    found = answers([login(**TOLD, **named), past])
    client = found.only("clients")
    assert (client["verdict"], client["throttled_by"]) == ("failing", quota)
    assert found.shown["upgrades"] == []


def test_a_client_that_is_hasty_with_short_lifetimes_is_ready_from_longer_ones() -> None:
    given = []
    for number, (told, gap) in enumerate([(5_000, 0.001)] * 3 + [(30_000, 0.3)]):
        name = f"c-{number}"
        lifetime = {"session_lifetime_ms": told, "announced_lifetime_ms": told}
        given += [
            login(connection_id=name, **lifetime),
            later(
                EventKind.REAUTHENTICATED, gap, connection_id=name, authentications=2, **lifetime
            ),
        ]
    row = answers(given).only("clients")
    assert (row["verdict"], row["hasty_ms"], row["ready_from_ms"]) == ("ready", 5_000, 30_000)
    assert answers(given[:6]).only("clients")["verdict"] == "failing"


def test_a_library_named_on_one_connection_is_that_of_the_client() -> None:
    named = login(
        connection_id="c-2", client_software_name="kgo", client_software_version="v1.21.4"
    )
    old = login(connection_id="c-3", authenticate_version=0)  # of another version of SASL
    found = answers([login(), named, old]).table("clients", "client_software_name")
    assert [(row["client_software_name"], row["connections"]) for row in found] == [
        ("kgo", 2),
        (None, 1),
    ]


def tail(end: Callable[[int], list[str]]) -> Row:
    """What a lifetime of 5 min does to a connection that is used each hour, and then ends."""

    def used(age_ms: int) -> AuthInterval:
        return AuthInterval(
            number=1,
            authenticated_ms=EPOCH_MS,
            session_lifetime_ms=0,
            announced_lifetime_ms=0,
            requests=1,
            last_request_since_auth_ms=age_ms,
        )

    head = [
        login(authenticate_version=0, announced_lifetime_ms=0),
        *(
            later(
                EventKind.SUMMARY,
                60 * hour,
                sequence=hour,
                authenticate_version=0,
                last_request_ms=EPOCH_MS + (60 * hour - 30) * MINUTE_MS,
                active_from_ms=EPOCH_MS + 60 * (hour - 1) * MINUTE_MS,
                active_minutes=1 << 30,
                intervals=(used((60 * hour - 30) * MINUTE_MS),),
            )
            for hour in range(1, 25)
        ),
    ]
    return answers([*head, *end(25)], lifetimes_ms=(5 * MINUTE_MS,)).only("what_if")


def test_an_open_connection_may_have_been_killed_within_its_last_hour_only() -> None:
    def used(sequence: int) -> list[Any]:
        at = {"last_request_ms": EPOCH_MS + (24 * 60 + 5) * MINUTE_MS}
        return [
            later(
                EventKind.CHECKPOINT, 24 * 60 + 10, sequence=sequence, authenticate_version=0, **at
            )
        ]

    assert tail(lambda _: [])["kills_most"] == 24
    assert tail(used)["kills_most"] == 24 + 35 // 5 + 1


def test_a_minute_before_since_is_no_storm() -> None:
    since_ms = int(datetime(2026, 6, 1, 10, tzinfo=UTC).timestamp() * 1000)
    found = answers(lines_of("since_storms"), since_ms=since_ms)
    assert found.table("storms") == []


def test_events_before_since_are_not_missing() -> None:
    since = datetime(2026, 6, 1, 3, tzinfo=UTC)
    lines = lines_of("since_missing")
    lost = lines[:12] + lines[13:]  # within the window

    def missing(given: list[str], **more: Any) -> int:
        return answers(given, **more).lines["missing"]

    since_ms = int(since.timestamp() * 1000)
    assert (missing(lines, since_ms=since_ms), missing(lost, since_ms=since_ms)) == (0, 1)
    assert missing(lines[3:]) == 3


def test_a_lifetime_that_is_not_judged_has_no_numbers() -> None:
    found = answers(lines_of("ready_since_failing"), lifetimes_ms=(MINUTE_MS, 10**9))
    judged, unjudged = found.table("what_if", "lifetime_ms")
    assert judged["killed_connections"] == 2
    assert {name for name, value in unjudged.items() if value is not None} == {
        "lifetime_ms",
        "connections",
        "observed_ms",
    }


def test_the_lines_of_a_log_are_valid_or_not() -> None:
    found = answers(lines_of("engines_differ"), as_of_ms=EPOCH_MS)
    assert (found.lines["lines"], found.lines["unreadable"]) == (14, 2)
    assert found.only("clients")["connections"] == 9
