from collections.abc import Iterable
from typing import Any

import pytest

from metrics.events import MAX_INT64
from metrics.history import Timeline
from metrics.readiness.events import CLOCK_TOLERANCE_MS, classified
from metrics.usage import UsageLog, Use
from tests.support.metrics import EPOCH, EPOCH_MS, to_json_line
from tests.support.readiness import GOOD, LINES, Answers, answers, duckdb_log, login


@pytest.fixture(scope="module")
def problems() -> list[str | None]:
    engine = duckdb_log(line for line, _ in LINES)
    return [row["problem"] for row in engine.rows(classified("log", as_of_ms=MAX_INT64 // 2))]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_a_line_is_judged_by_what_it_says(problems: list[str | None], number: int) -> None:
    assert problems[number] == LINES[number][1]


def test_every_line_is_counted_once_and_an_empty_one_not_at_all() -> None:
    counts = dict(clean([line for line, _ in LINES] + ["", "  "]).lines)
    good = sum(problem is None for _, problem in LINES)
    assert counts.pop("lines") == len(LINES)
    # the two good ones are one event
    assert counts.pop("duplicate") == good - 1
    assert counts.pop("missing") == 0
    assert sum(counts.values()) == len(LINES) - good


def test_a_token_that_lives_for_ever_is_bounded_and_an_absent_one_stays_null() -> None:
    found = clean(
        map(to_json_line, [login(credential_lifetime_ms=MAX_INT64), login(connection_id="c-2")])
    )
    rows = found.table("events", "connection_id")
    assert [row["credential_lifetime_ms"] for row in rows] == [10**13, None]


def test_clocks_may_be_ahead_by_minutes_but_not_by_more() -> None:
    at_the_edge = EPOCH_MS + CLOCK_TOLERANCE_MS
    found = clean(to_json_line(login(timestamp_ms=at_the_edge + ms)) for ms in (0, 1))
    assert [row["timestamp_ms"] for row in found.table("events")] == [at_the_edge]
    (ahead,) = found.shown["ahead"]
    assert (ahead["events"], ahead["first_ms"]) == (1, at_the_edge + 1)


@pytest.mark.parametrize("bounds", [(0, 1), (1, 2), (None, 1), (0, None)])
def test_what_is_outside_the_time_asked_for_is_left_out_and_counted(
    bounds: tuple[int | None, int | None],
) -> None:
    since, until = (None if minutes is None else EPOCH_MS + minutes for minutes in bounds)
    lines = [
        to_json_line(login(connection_id=f"c-{ms}", timestamp_ms=EPOCH_MS + ms))
        for ms in (-1, 0, 1, 2)
    ]
    found = clean(lines, since_ms=since, until_ms=until)
    kept = [row["timestamp_ms"] - EPOCH_MS for row in found.table("events", "timestamp_ms")]
    least, most = bounds[0] if bounds[0] is not None else -1, bounds[1] or 3
    assert kept == [ms for ms in (-1, 0, 1, 2) if least <= ms < most]
    assert found.lines["outside"] == 4 - len(kept)


NUMBERS = [
    ([0, 1, 2], 0, 0),
    ([2, 0, 1], 0, 0),
    ([0, 0, 1], 1, 0),
    ([0, 1, 1, 1, 2, 2], 3, 0),
    ([0, 3], 0, 2),
    ([2, 3], 0, 2),
    ([0, 1, 1, 3], 1, 1),
    ([62, 63, 64, 127, 128], 0, 124),
    ([63, 63, 127], 1, 126),
    ([0, 64, 128, 64], 1, 126),
    ([3_000_000_000, 3_000_000_000], 1, 3_000_000_000),
]


def test_duplicates_and_gaps_are_counted_exactly() -> None:
    given = [
        to_json_line(login(sequence=sequence, connection_id=f"c-{number}"))
        for number, (numbers, _, _) in enumerate(NUMBERS)
        for sequence in numbers
    ]
    found = clean(given)
    assert found.lines["duplicate"] == sum(duplicate for _, duplicate, _ in NUMBERS)
    assert found.lines["missing"] == sum(missing for _, _, missing in NUMBERS)
    kept = sorted((row["connection_id"], row["sequence"]) for row in found.table("events"))
    assert kept == sorted(
        (f"c-{number}", sequence)
        for number, (numbers, _, _) in enumerate(NUMBERS)
        for sequence in set(numbers)
    )


def test_nothing_amiss_is_nothing_counted() -> None:
    """Records of use belong to no session, and are not read."""
    usage = UsageLog("run-1", "proxy", 0, Timeline(wall=EPOCH, now=0.0))
    usage.add(Use("User:alice", "app", "10.0.0.7", "READ", "TOPIC", "a"), 1, 1, 0.0, 0.0)
    found = clean([GOOD, *usage.lines(0.0)])
    assert found.lines["lines"] == sum(found.lines.values()) == 1
    assert [row["connection_id"] for row in found.table("events")] == ["c-1"]


def clean(given: Iterable[str], **more: Any) -> Answers:
    return answers(given, as_of_ms=EPOCH_MS, **more)
