"""Connections beyond the bounds of their client: added up if they are complete, else left out."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from benchmarks.events.generate import Size, clients_of, simulated
from metrics.event_schema import SessionEvent
from metrics.events import EventKind
from metrics.readiness import usage
from metrics.report.requirements import judged, requirement
from tests.support.readiness import TOLD, Answers, answers, later, login

MINUTE_MS = 60_000


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two connections of a client are single rows, of either kind."""
    monkeypatch.setattr(usage, "KEPT", 2)
    monkeypatch.setattr(usage, "KEPT_UNSURE", 2)


def used_for_ten_minutes(number: int, **more: Any) -> list[SessionEvent]:
    """A complete connection of a client to which no lifetime can be announced."""
    own = {"connection_id": f"c-{number}", "authenticate_version": 0, **more}
    last_request_ms = login().timestamp_ms + 10 * MINUTE_MS
    return [login(**own), later(EventKind.CLOSED, 10, last_request_ms=last_request_ms, **own)]


def renewed(number: int, **more: Any) -> list[SessionEvent]:
    """An open connection that re-authenticated in time."""
    own = {"connection_id": f"c-{number}", **TOLD, **more}
    return [login(**own), later(EventKind.REAUTHENTICATED, 13, authentications=2, **own)]


def rows_of(found: Answers) -> Counter[bool]:
    """Number of rows of several connections (True) and of one."""
    names = [row["connection_id"] for row in found.table("connections")]
    return Counter(name.startswith(usage.ADDED) for name in names)


@pytest.mark.usefixtures("bounds")
def test_complete_connections_are_added_up() -> None:
    given = [each for number in range(5) for each in used_for_ten_minutes(number)]
    found = answers(given, lifetimes_ms=(5 * MINUTE_MS, 20 * MINUTE_MS))
    assert rows_of(found) == {False: 2, True: 1}
    client = found.only("clients")
    assert (client["verdict"], client["connections"]) == ("not_capable", 5)
    assert client["left_out_connections"] == 0
    five, twenty = found.table("what_if")
    assert (five["killed_connections"], five["kills_least"], five["kills_most"]) == (5, 5, 5)
    assert twenty["killed_connections"] in (0, None)
    assert found.only("kills_by_client")["connections"] == 5
    assert found.lines["missing"] == 0


@pytest.mark.usefixtures("bounds")
def test_with_connections_left_out_a_client_is_unknown() -> None:
    """Their number is known; the page and the requirements mind it."""
    given = [each for number in range(5) for each in renewed(number)]
    few, found = answers(given[:4]), answers(given)
    assert few.only("clients")["verdict"] == "ready"
    client = found.only("clients")
    assert (client["verdict"], client["principal"]) == ("unknown", "User:alice")
    assert (client["connections"], client["left_out_connections"]) == (5, 3)
    assert found.only("observed")["left_out"] == 3
    assert found.only("principals")["enforceable"] is False
    assert {row["unproven_connections"] for row in found.table("what_if")} == {3}


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("kind", [EventKind.EXPIRED_KILLED, EventKind.FAILED])
def test_a_failure_that_is_left_out_is_one(kind: EventKind) -> None:
    given = [each for number in range(3) for each in renewed(number)]
    failure = later(kind, 16, connection_id="c-9", **TOLD)
    found = answers([*given, login(connection_id="c-9", **TOLD), failure])
    assert found.only("clients")["left_out_connections"] == 2
    assert found.only("clients")["verdict"] == "failing"


@pytest.mark.usefixtures("bounds")
def test_groups_of_added_connections_are_known() -> None:
    given = [
        each for number in range(5) for each in used_for_ten_minutes(number, groups=("Group:a",))
    ]
    found = answers(given)
    assert [row["group"] for row in found.table("client_groups")] == ["Group:a"]


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4))]
)
def test_bounds_change_no_verdict_but_to_unknown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lost and doubled events, and connections without an end."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    size = Size(connections=40, principals=3, clients=6, days=2, seed=seed)
    lines = [line for line in simulated(size, clients_of(size)) if rng.random() > 0.002]
    lines += rng.sample(lines, 5)
    lines = [line for line in lines if not _ends(line) or rng.random() > 0.3]
    expected = {row["client_id"]: row for row in answers(lines).table("clients")}
    monkeypatch.setattr(usage, "KEPT", 1)
    monkeypatch.setattr(usage, "KEPT_UNSURE", 1)
    found = answers(lines)
    for row in found.table("clients"):
        whole = expected.pop(row["client_id"])
        assert row["connections"] == whole["connections"]
        assert row["open_connections"] == whole["open_connections"]
        left_out = row["left_out_connections"] > 0
        assert row["verdict"] == whole["verdict"] or (left_out and row["verdict"] == "unknown")
        assert not (left_out and row["verdict"] == "ready")
    assert not expected


def _ends(line: str) -> bool:
    event = json.loads(line)
    return event["kind"] == "closed" or bool(event.get("final"))


@pytest.mark.usefixtures("bounds")
def test_no_requirement_is_met_by_what_is_left_out() -> None:
    given = [each for number in range(5) for each in renewed(number)]
    found = answers(given, principals=["User:alice"])
    facts = {"what_if": found.shown["what_if"], "clients_by_verdict": {}}
    asked = (requirement("User:alice"), requirement("no-kills@5m"))
    results = judged(asked, facts, found.shown["asked_for"])
    assert [each["met"] for each in results] == [False, False]
