from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.events.generate import Size, clients_of, simulated, truth
from metrics.events import EventKind, SessionEvent
from metrics.spark.clients import clients
from metrics.spark.readiness import (
    breaking_software,
    by_their_clients,
    client_readiness,
    principals,
    rank,
)
from tests.support.metrics import event
from tests.support.spark import MINUTE_MS, frame, later, login, only, rows, sessions_of

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}


def verdicts(spark: SparkSession, *given: SessionEvent | str) -> DataFrame:
    found = frame(spark, given).transform(sessions_of)
    return found.transform(clients).transform(client_readiness)


def test_every_client_of_known_behaviour_gets_the_verdict_it_deserves(spark: SparkSession) -> None:
    size = Size(connections=60, principals=10, clients=30, days=0.3, seed=11)
    drawn = clients_of(size)
    found = verdicts(spark, *simulated(size, drawn))
    judged = {row["client_id"]: row["verdict"] for row in rows(found)}
    assert judged == {name: behaviour.value for name, behaviour in truth(drawn).items()}


def test_one_old_connection_makes_a_client_not_capable(spark: SparkSession) -> None:
    ready = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    old = login(connection_id="old", authenticate_version=0)
    row = only(verdicts(spark, *ready, old))
    assert row["verdict"] == "not_capable"
    assert row["evidence"] == "SaslAuthenticate v0 on 1 of 2 connections"


def test_one_expired_session_outweighs_good_ones(spark: SparkSession) -> None:
    good = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    bad = login(connection_id="bad", **TOLD)
    late = later(EventKind.WOULD_BE_KILLED, 16, connection_id="bad", **TOLD)
    row = only(verdicts(spark, *good, bad, late))
    assert row["verdict"] == "failing"
    assert row["evidence"].startswith("used once past the end of a session")


def test_a_connection_that_shows_nothing_stands_as_ready_if_its_client_is(
    spark: SparkSession,
) -> None:
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
    session_rows = sessions_of(frame(spark, given))
    judged = session_rows.transform(clients).transform(client_readiness)
    found = rows(by_their_clients(session_rows, judged))
    assert {row["connection_id"]: row["standing"] for row in found} == {
        "c-1": "ready",
        "incomplete": "ready",
        "old": "not_capable",
        "other": "unproven",
        "nameless": "ready",
        "nameless-incomplete": "ready",
    }
    assert len(found) == 6
    assert by_their_clients(session_rows, judged).columns == session_rows.columns


def test_what_a_failing_client_has_not_shown_is_not_held_against_it(spark: SparkSession) -> None:
    failing = [login(**TOLD), later(EventKind.WOULD_BE_KILLED, 16, **TOLD)]
    session_rows = sessions_of(frame(spark, [*failing, login(connection_id="incomplete")]))
    judged = session_rows.transform(clients).transform(client_readiness)
    found = {row["connection_id"]: row for row in rows(by_their_clients(session_rows, judged))}
    assert found["incomplete"]["standing"] == "unproven"


def test_an_old_client_that_was_killed_is_not_capable_rather_than_failing(
    spark: SparkSession,
) -> None:
    killed = later(EventKind.EXPIRED_KILLED, 16, authenticate_version=0)
    row = only(verdicts(spark, login(authenticate_version=0), killed))
    assert row["verdict"] == "not_capable"


def test_another_version_of_a_library_is_another_client(spark: SparkSession) -> None:
    new = login(connection_id="new", client_software_name="kgo", client_software_version="v2")
    assert len(rows(verdicts(spark, login(), new))) == 2


def test_nobody_is_judged_by_nothing(spark: SparkSession) -> None:
    assert rows(verdicts(spark)) == []
    assert rows(verdicts(spark).transform(principals)) == []


def test_a_principal_is_as_ready_as_its_worst_client(spark: SparkSession) -> None:
    good = [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)]
    unproven = login(connection_id="c-2", client_id="other")
    alone = only(verdicts(spark, *good).transform(principals))
    both = only(verdicts(spark, *good, unproven).transform(principals))
    assert (alone["verdict"], alone["enforceable"]) == ("ready", True)
    assert (both["verdict"], both["enforceable"]) == ("unproven", False)


def test_what_breaks_comes_first_and_unknown_clients_last(spark: SparkSession) -> None:
    """So that a limit on the rows leaves out those of whom there is least to say."""
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
    found = rows(verdicts(spark, *given).orderBy(rank()))
    assert [row["client_id"] for row in found] == ["failing", "old", "unproven", "ready", None]


def test_software_that_breaks_is_counted_with_all_its_principals(spark: SparkSession) -> None:
    old = {"client_software_name": "librdkafka", "client_software_version": "1.9.2"}
    given = [
        login(connection_id=f"c-{number}", principal=name, authenticate_version=0, **old)
        for number, name in enumerate(["User:b", "User:a"])
    ]
    given.append(login(connection_id="nameless", client_id="x", authenticate_version=None))
    given.append(login(connection_id="fine", client_id="y"))
    found = rows(breaking_software(verdicts(spark, *given)))
    assert [tuple(row.values()) for row in found] == [
        ("librdkafka", "1.9.2", 2, ["User:a", "User:b"], 2),
        (None, None, 1, ["User:alice"], 1),
    ]


@pytest.mark.parametrize("mechanism", [None, "X-NEW"])
def test_a_failed_login_is_nobody(spark: SparkSession, mechanism: str | None) -> None:
    """A client that only claims a name does not make that principal unready."""
    failed = event(kind=EventKind.FAILED, authentications=0, mechanism=mechanism)
    found = verdicts(spark, failed)
    assert only(found)["verdict"] == "unknown"
    assert rows(found.transform(principals)) == []
