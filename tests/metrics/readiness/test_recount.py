"""The report against a recount, with clocks that are decades off."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from benchmarks.events.generate import EPOCH, Size, bad_lines, clients_of, simulated
from metrics.events import EventKind
from metrics.readiness.what_if import DEFAULT_LIFETIMES_MS
from tests.metrics.readiness.recount import NAMES, recount
from tests.support.metrics import EPOCH_MS, to_json_line
from tests.support.readiness import answers, later, login

COVERED = ("authenticated", "reauthenticated", "checkpoint", "would-be-killed", "no-reauth")
"""Kinds of events whose data is also in the next summary row of the connection."""
YEAR_MS = 365 * 86_400_000
DAYS = 3
AS_OF_MS = (EPOCH + DAYS * 86_400) * 1000


def moved(line: str, ms: int) -> str:
    """The same by a clock that is off."""
    event = json.loads(line)
    lists = [event, *(event.get("intervals") or ())]
    for fields in lists:
        for name, value in fields.items():
            if name.endswith("_ms") and isinstance(value, int) and value > 40 * YEAR_MS:
                fields[name] = value + ms
    return json.dumps(event)


def log(seed: int) -> list[str]:
    """A log in which some connections' proxies have clocks that are years behind, or ahead."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    size = Size(connections=30, principals=6, clients=12, days=DAYS, seed=seed, skew_seconds=300)
    lines = list(simulated(size, clients_of(size)))
    share = rng.choice([0.03, 0.1, 0.5])
    off: dict[str, int] = {}
    given = []
    for line in lines:
        name = json.loads(line)["connection_id"]
        if name not in off:
            years = rng.choice([-26, -56, 24]) if rng.random() < share else 0
            off[name] = years * YEAR_MS
        given.append(moved(line, off[name]) if off[name] else line)
    given += rng.sample(given, 20)
    rng.shuffle(given)
    return [*given, *bad_lines(lines[0], AS_OF_MS)]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))]
)
def test_the_report_says_what_a_recount_says(seed: int) -> None:
    lines = log(seed)
    expected = recount(lines, as_of_ms=AS_OF_MS, lifetimes_ms=DEFAULT_LIFETIMES_MS)
    found = answers(lines, as_of_ms=AS_OF_MS)
    assert +Counter({**found.lines, "missing": 0}) == +expected.lines
    assert found.lines["implausible"] + found.lines["future"] > 0
    sessions = found.query("SELECT * FROM sessions WHERE connection_id NOT LIKE 'alike-%'")
    named = {row["connection_id"]: row["standing"] for row in sessions}
    rest = Counter(
        (*each.client, each.standing)
        for name, each in expected.connections.items()
        if named.get(name) != each.standing
    )
    never = (None, "unknown")
    proved = {name for name in rest if name[-1] not in ("unproven", "not_capable")}
    assert all((name[0], name[-1]) == never for name in proved)
    plain = found.query("SELECT * FROM sessions WHERE connection_id LIKE 'alike-%'")
    added: Counter[Any] = Counter()
    for row in plain:
        added[(*(row[name] for name in NAMES), row["standing"])] += row["alike"]
    assert added == rest
    used = {row["connection_id"]: row["used_ms"] for row in sessions}
    for name in used:
        each = expected.connections[name]
        # a summary row rounds at the other end
        assert (used[name] is None) == (each.used_ms is None)
        assert used[name] is None or abs(used[name] - (each.used_ms or 0)) <= 1
    verdicts = {
        tuple(row[name] for name in NAMES): row["verdict"] for row in found.table("clients")
    }
    assert verdicts == expected.verdicts
    for row in found.table("by_day"):
        states = {name: row[name] for name in ("ready", "unproven", "not_capable", "failing")}
        assert +Counter(states) == expected.by_day.pop(row["day"])
    assert not expected.by_day
    for row in found.table("what_if", "lifetime_ms"):
        counts = {
            name: amount
            for name, amount in row.items()
            if name.startswith(("killed", "unproven", "cut_short")) and "principals" not in name
        }
        assert +Counter(counts) == expected.what_if[row["lifetime_ms"]]
        assert row["observed_ms"] == expected.covered_ms
        if row["kills_per_day_most"]:
            days = expected.covered_ms / 86_400_000
            assert row["kills_per_day_most"] == pytest.approx(row["kills_most"] / days)
    storms = {
        (row["minute_ms"], row["mechanism"]): row["authentications"]
        for row in found.table("storms")
    }
    assert storms == expected.storms
    failures = {
        (row["mechanism"], row["failure_reason"], row["reauthentication"]): row["count"]
        for row in found.table("failures")
    }
    assert failures == expected.failures


def damaged(lines: list[str], rng: random.Random) -> list[str]:
    """Lose lines that a summary row covers, and double others."""
    events = [json.loads(line) for line in lines]
    covered = {each["connection_id"]: each["sequence"] for each in events if is_summary(each)}
    kept = []
    for line, each in zip(lines, events, strict=True):
        is_covered = each["sequence"] < covered.get(each["connection_id"], 0)
        if not (is_covered and each["kind"] in COVERED and rng.random() < 0.15):
            kept += [line] * (1 + (rng.random() < 0.03))
    rng.shuffle(kept)
    return kept


def is_summary(event: dict[str, Any]) -> bool:
    return bool(event["kind"] == EventKind.SUMMARY)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))]
)
def test_lost_lines_that_summary_rows_cover_change_nothing(seed: int) -> None:
    """The report of the rest equals the recount of the whole log."""
    size = Size(connections=30, principals=6, clients=12, days=DAYS, seed=seed, skew_seconds=300)
    lines = list(simulated(size, clients_of(size)))
    expected = recount(lines, as_of_ms=AS_OF_MS, lifetimes_ms=DEFAULT_LIFETIMES_MS)
    rest = damaged(lines, random.Random(seed))  # noqa: S311 - not for secrets
    found = answers(rest, as_of_ms=AS_OF_MS)
    verdicts = {
        tuple(row[name] for name in NAMES): row["verdict"] for row in found.table("clients")
    }
    assert verdicts == expected.verdicts
    storms = {
        (row["minute_ms"], row["mechanism"]): row["authentications"]
        for row in found.table("storms")
    }
    assert storms == expected.storms
    assert found.lines["missing"] == len(lines) - len(set(rest)) > 0
    assert found.lines["duplicate"] == len(rest) - len(set(rest)) > 0


@pytest.mark.parametrize("minutes", [14, 16])
def test_a_late_repair_is_none_to_either(minutes: int) -> None:
    told = {"session_lifetime_ms": 900_000, "announced_lifetime_ms": 900_000}
    used = {"last_request_ms": EPOCH_MS + minutes * 60_000 - 1000}
    given = [
        login(**told),
        later(EventKind.REAUTHENTICATED, minutes, authentications=2, **used, **told),
        later(EventKind.CLOSED, 2000, sequence=2, authentications=2, **told),
    ]
    lines = [to_json_line(each) for each in given]
    expected = recount(lines, as_of_ms=2**47, lifetimes_ms=DEFAULT_LIFETIMES_MS)
    verdict = answers(lines).only("clients")["verdict"]
    assert [verdict] == list(expected.verdicts.values())
    assert verdict == ("ready" if minutes == 14 else "failing")
