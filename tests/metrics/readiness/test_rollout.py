"""Funnel of `reauth.enforcement: auto` from the event log."""

import random
from collections import Counter

import pytest

from metrics.event_schema import SessionEvent
from metrics.events import EventKind
from metrics.readiness import usage
from metrics.rollout import Stage
from tests.support.readiness import answers
from tests.support.rollout import Stages, replayed, rollout_log


def reported(events: list[SessionEvent]) -> Stages:
    found = answers(events).table("rollout")
    return {(row["principal"], row["day"]): row["stage"] for row in found}


@pytest.mark.parametrize("seed", range(2))
def test_the_report_and_the_proxy_judge_the_same_log_alike(seed: int) -> None:
    events = rollout_log(seed)
    found = answers(events)
    stages = {(row["principal"], row["day"]): row["stage"] for row in found.table("rollout")}
    assert stages == replayed(events)
    assert set(stages.values()) == set(map(str, Stage))
    for row in found.shown["funnel"]:
        counted = Counter(stage for (_, day), stage in stages.items() if day == row["day"])
        assert {name: count for name, count in row.items() if count and name != "day"} == counted
    last = max(day for _, day in stages)
    at_the_end = {row["principal"]: row["stage"] for row in found.shown["rollout"]}
    assert at_the_end == {name: stage for (name, day), stage in stages.items() if day == last}


def test_missing_events_make_no_principal_ready() -> None:
    """After a gap in a connection's events, re-authentications count from 0 again."""
    events = rollout_log(2)
    rng = random.Random(2)  # noqa: S311 - not for secrets
    decided = {EventKind.PROMOTED, EventKind.DEMOTED}
    kept = [each for each in events if each.kind in decided or rng.random() > 0.05]
    whole, lossy = reported(events), reported(kept)

    def ready(stages: Stages) -> set[tuple[str, int]]:
        return {key for key, stage in stages.items() if stage == Stage.READY}

    assert ready(lossy) <= ready(whole)
    assert set(lossy.values()) == set(map(str, Stage))


def test_a_principal_with_connections_left_out_is_never_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their late re-authentications are unknown."""
    monkeypatch.setattr(usage, "KEPT_UNSURE", 0)
    found = answers(rollout_log(2))
    left_out = {
        each["principal"] for each in found.table("clients") if each["left_out_connections"]
    }
    stages = {(row["principal"], row["stage"]) for row in found.table("rollout")}
    assert left_out
    assert not {name for name, stage in stages if stage in {Stage.READY, Stage.CAPABLE}} & left_out
