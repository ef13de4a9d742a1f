from dataclasses import replace

import pytest

from benchmarks.events.generate import Size, clients_of, simulated
from metrics.event_schema import SessionEvent
from metrics.events import EventKind
from metrics.report.evidence import evidence
from tests.support.metrics import event
from tests.support.readiness import MINUTE_MS, Row, answers, later, login

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}


def verdicts(*given: SessionEvent | str) -> list[Row]:
    return answers(given).table("clients")


def verdict(*given: SessionEvent | str) -> Row:
    (row,) = verdicts(*given)
    return row


def standings(*given: SessionEvent) -> dict[str, str]:
    return {row["connection_id"]: row["standing"] for row in answers(given).table("standing")}


def test_failed_logins_and_denials_of_many_connections_are_added_up() -> None:
    """A client without a password may retry for days; `sessions` would outgrow the driver."""
    tried = event(kind=EventKind.FAILED, authentications=0, principal=None)
    denied = [
        login(),
        later(EventKind.DENIED, 1, operation="READ", resource_type="TOPIC", resource_name="a"),
        later(EventKind.CLOSED, 2, sequence=2),
    ]
    each_time = [tried, replace(tried, kind=EventKind.CLOSED, sequence=1)]
    outage = [replace(tried, failure_reason="broker_unavailable"), each_time[1]]
    found = answers(
        replace(one, connection_id=f"{name}-{number}")
        for number in range(5)
        for name, events in (("tried", each_time), ("denied", denied), ("outage", outage))
        for one in events
    )
    assert [row["alike"] for row in found.table("sessions")] == [5, 5]
    never, alice = found.table("clients", "principal NULLS FIRST")
    assert (never["connections"], never["login_failures"], never["verdict"]) == (5, 5, "unknown")
    assert (alice["connections"], alice["login_failures"], alice["verdict"]) == (5, 0, "unproven")
    assert found.only("denials")["denied"] == 5


def test_a_refused_reauthentication_is_evidence() -> None:
    """Error 34, at the broker: the client re-authenticated within a second of the last time."""
    refused = later(EventKind.FAILED, 14, failure_reason="illegal_state", **TOLD)
    row = verdict(login(**TOLD), refused)
    assert row["verdict"] == "failing"
    assert "1 re-authentication failed, 1 of them refused as too early (error 34)" in evidence(row)
    other = verdict(login(**TOLD), replace(refused, failure_reason="expired"))
    assert (other["verdict"], other["reauth_refusals"]) == ("failing", 0)


def test_one_old_connection_makes_a_client_not_capable() -> None:
    ready = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    old = login(connection_id="old", authenticate_version=0)
    row = verdict(*ready, old)
    assert row["verdict"] == "not_capable"
    assert evidence(row) == "SaslAuthenticate v0 on 1 of 2 connections"


def test_a_connection_that_shows_nothing_stands_as_ready_if_its_client_is() -> None:
    """Joined by client, and a client may have no software, client id or mechanism."""
    ready = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    given = [
        *ready,
        login(connection_id="incomplete"),
        login(connection_id="old", client_id="old", authenticate_version=0),
        login(connection_id="other", client_id="other"),
        *(replace(each, connection_id="nameless", client_id=None) for each in ready),
        login(connection_id="nameless-incomplete", client_id=None),
    ]
    assert standings(*given) == {
        "c-1": "ready",
        "incomplete": "ready",
        "old": "not_capable",
        "other": "unproven",
        "nameless": "ready",
        "nameless-incomplete": "ready",
    }


def test_what_a_failing_client_has_not_shown_is_not_held_against_it() -> None:
    failing = [login(**TOLD), later(EventKind.WOULD_BE_KILLED, 16, **TOLD)]
    found = standings(*failing, login(connection_id="incomplete"))
    assert found["incomplete"] == "unproven"


def test_a_client_that_was_ready_and_fails_is_regressed_until_it_is_ready_again() -> None:
    day = 1440
    good = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    nameless = [replace(each, connection_id="n", client_id=None) for each in good]
    failed = later(EventKind.FAILED, day, sequence=2, authentications=2, **TOLD)
    never = [
        login(connection_id="x", client_id="x"),
        later(EventKind.WOULD_BE_KILLED, 16, connection_id="x", client_id="x", **TOLD),
    ]
    old = login(connection_id="o", client_id=None, authenticate_version=0)
    old = replace(old, timestamp_ms=old.timestamp_ms + 2 * day * MINUTE_MS)
    found = answers([*good, failed, *nameless, old, *never]).table("regressed", "client_id")
    first = min(each.timestamp_ms for each in good) // (day * MINUTE_MS)
    assert {row["client_id"]: (row["verdict"], row["ready_until"] - first) for row in found} == {
        "app": ("failing", 0),
        None: ("not_capable", 0),
    }
    again = later(EventKind.REAUTHENTICATED, 2 * day + 20, connection_id="c-2", authentications=2)
    repaired = [replace(login(**TOLD), connection_id="c-2"), again]
    assert answers([*good, failed, *repaired]).table("regressed") == []


def test_what_cannot_be_told_a_lifetime_does_not_learn_it() -> None:
    """For example by another program of that name: enforcement would break the old one."""
    old = login(connection_id="old", authenticate_version=0)
    tomorrow = later(EventKind.REAUTHENTICATED, 1440, authentications=2, **TOLD)
    assert verdict(old, login(**TOLD), tomorrow)["verdict"] == "not_capable"


def test_the_last_day_of_the_trend_says_what_the_verdicts_say() -> None:
    size = Size(connections=60, principals=10, clients=30, days=3, seed=12)
    found = answers(simulated(size, clients_of(size)))
    states = found.query(
        """SELECT count(*) AS others FROM clients AS c JOIN client_days AS d
        ON c.client_id = d.client_id AND c.last_seen_ms // 86400000 = d.day
        WHERE c.verdict <> d.state"""
    )
    assert states == [{"others": 0}]
    assert sum(row["clients"] for row in found.table("by_day")) > 60


def test_another_version_of_a_library_is_another_client() -> None:
    old, new = (
        login(connection_id=each, client_software_name="kgo", client_software_version=each)
        for each in ("v1", "v2")
    )
    assert len(verdicts(old, new)) == 2


def test_a_principal_is_as_ready_as_its_worst_client() -> None:
    good = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    unproven = login(connection_id="c-2", client_id="other")
    alone = answers(good).only("principals")
    both = answers([*good, unproven]).only("principals")
    assert (alone["verdict"], alone["enforceable"]) == ("ready", True)
    assert (both["verdict"], both["enforceable"]) == ("unproven", False)


def test_what_breaks_comes_first_and_unknown_clients_last() -> None:
    """A limit on the rows leaves out the clients with the least evidence."""
    given = [
        event(kind=EventKind.FAILED, authentications=0, connection_id="unknown"),
        *(
            replace(each, connection_id="ready", client_id="ready")
            for each in (
                login(**TOLD),
                later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD),
            )
        ),
        login(connection_id="unproven", client_id="unproven"),
        login(connection_id="old", client_id="old", authenticate_version=0),
        *(
            replace(each, connection_id="failing", client_id="failing")
            for each in (login(**TOLD), later(EventKind.WOULD_BE_KILLED, 16, **TOLD))
        ),
    ]
    found = answers(given).shown["clients"]
    assert [row["client_id"] for row in found] == ["failing", "old", "unproven", "ready", None]


def test_software_that_breaks_is_counted_with_all_its_principals() -> None:
    old = {"client_software_name": "librdkafka", "client_software_version": "1.9.2"}
    given = [
        login(connection_id=f"c-{number}", principal=name, authenticate_version=0, **old)
        for number, name in enumerate(["User:b", "User:a"])
    ]
    given.append(login(connection_id="nameless", client_id="x", authenticate_version=None))
    given.append(login(connection_id="fine", client_id="y"))
    found = answers(given).shown["upgrades"]
    assert [tuple(row.values()) for row in found] == [
        ("librdkafka", "1.9.2", 2, ["User:a", "User:b"], 2),
        (None, None, 1, ["User:alice"], 1),
    ]


@pytest.mark.parametrize("mechanism", [None, "X-NEW"])
def test_a_failed_login_is_nobody(mechanism: str | None) -> None:
    """A client that only claims a name does not make that principal unready."""
    failed = event(kind=EventKind.FAILED, authentications=0, mechanism=mechanism)
    found = answers([failed])
    assert found.only("clients")["verdict"] == "unknown"
    assert found.table("principals") == []
