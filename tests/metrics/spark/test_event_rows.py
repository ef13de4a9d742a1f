import json

import pytest
from pyspark.sql import DataFrame, SparkSession

from metrics.events import MAX_INT64
from metrics.spark import event_rows
from metrics.spark.cleaning import Cleaned, Rows, cleaned
from metrics.spark.event_rows import CLOCK_TOLERANCE_MS, Problem
from tests.support.metrics import EPOCH_MS, to_json_line
from tests.support.spark import frame, lines, login, only, rows

GOOD = to_json_line(login())


def changed(**fields: object) -> str:
    return json.dumps(json.loads(GOOD) | fields)


LINES = [
    (GOOD, None),
    (changed(a_later_field={"x": 1}), None),
    (GOOD[:40], Problem.UNREADABLE),
    ("null", Problem.UNREADABLE),
    ("[]", Problem.UNREADABLE),
    ("{}", Problem.UNREADABLE),
    ("\x00\x00", Problem.UNREADABLE),
    (changed(sequence="three"), Problem.UNREADABLE),
    (changed(sequence=2**70), Problem.UNREADABLE),
    (changed(connection_id=None), Problem.UNREADABLE),
    (changed(schema_version=2), Problem.UNKNOWN_VERSION),
    ('{"schema_version":2,"anything":"else"}', Problem.UNKNOWN_VERSION),
    (changed(kind="levitated"), Problem.UNKNOWN_KIND),
    (changed(sequence=-1), Problem.IMPOSSIBLE),
    (changed(timestamp_ms=MAX_INT64), Problem.IMPOSSIBLE),
    (changed(last_request_ms=-5), Problem.IMPOSSIBLE),
    (changed(since_auth_ms=-MAX_INT64), Problem.IMPOSSIBLE),
]


@pytest.fixture(scope="module")
def problems(spark: SparkSession) -> list[str | None]:
    given = lines(spark, (line for line, _ in LINES))
    return [row["problem"] for row in event_rows.classified(event_rows.parsed(given)).collect()]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_a_line_is_judged_by_what_it_says(problems: list[str | None], number: int) -> None:
    assert problems[number] == LINES[number][1]


def test_every_line_is_counted_once_and_an_empty_one_not_at_all(spark: SparkSession) -> None:
    given = lines(spark, [line for line, _ in LINES] + ["", "  "])
    counts = only(event_rows.classified(event_rows.parsed(given)).agg(*event_rows.problem_counts()))
    good = sum(problem is None for _, problem in LINES)
    assert counts.pop("lines") == len(LINES)
    assert sum(counts.values()) == len(LINES) - good


def test_no_lines_give_no_events_and_no_problems(spark: SparkSession) -> None:
    empty = event_rows.classified(event_rows.parsed(lines(spark, [])))
    assert rows(event_rows.valid_events(empty)) == []
    assert set(only(empty.agg(*event_rows.problem_counts())).values()) == {0}


def test_a_token_that_lives_for_ever_is_bounded_and_an_absent_one_stays_null(
    spark: SparkSession,
) -> None:
    given = frame(spark, [login(credential_lifetime_ms=MAX_INT64), login(connection_id="c-2")])
    assert [row["credential_lifetime_ms"] for row in rows(given)] == [10**13, None]


def test_clocks_may_be_ahead_by_minutes_but_not_by_more(spark: SparkSession) -> None:
    at_the_edge = EPOCH_MS + CLOCK_TOLERANCE_MS
    given = frame(spark, [login(timestamp_ms=at_the_edge), login(timestamp_ms=at_the_edge + 1)])
    kept = given.where(~event_rows.is_future(EPOCH_MS))
    assert [row["timestamp_ms"] for row in rows(kept)] == [at_the_edge]


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


def test_duplicates_and_gaps_are_counted_exactly(spark: SparkSession) -> None:
    given = [
        to_json_line(login(sequence=sequence, connection_id=f"c-{number}"))
        for number, (numbers, _, _) in enumerate(NUMBERS)
        for sequence in numbers
    ]
    found = clean(spark, given)
    assert found.lines["duplicate"] == sum(duplicate for _, duplicate, _ in NUMBERS)
    assert found.lines["missing"] == sum(missing for _, _, missing in NUMBERS)
    kept = sorted((row["connection_id"], row["sequence"]) for row in rows(found.events))
    assert kept == sorted(
        (f"c-{number}", sequence)
        for number, (numbers, _, _) in enumerate(NUMBERS)
        for sequence in set(numbers)
    )


def test_what_is_set_aside_is_counted_and_not_used(spark: SparkSession) -> None:
    """One pass is enough if nothing is amiss; here something is."""
    tomorrow = login(connection_id="f", timestamp_ms=EPOCH_MS + 86_400_000)
    found = clean(spark, [GOOD, GOOD[:40], changed(kind="levitated"), to_json_line(tomorrow)])
    assert found.lines == {
        "lines": 4,
        "unreadable": 1,
        "unknown_version": 0,
        "unknown_kind": 1,
        "impossible": 0,
        "future": 1,
        "duplicate": 0,
        "missing": 0,
    }
    assert [row["connection_id"] for row in rows(found.events)] == ["c-1"]


def test_nothing_amiss_is_nothing_counted(spark: SparkSession) -> None:
    found = clean(spark, [GOOD])
    assert found.lines["lines"] == sum(found.lines.values()) == 1
    assert found.incomplete is None


def test_only_connections_with_duplicates_are_written_anew(spark: SparkSession) -> None:
    """Where only summary rows are left, events are missing of every connection."""
    kept = []

    def keep(name: str, frame: DataFrame) -> DataFrame:
        kept.append(name)
        return frame

    gap = [to_json_line(login(sequence=sequence)) for sequence in (0, 2)]
    read = Rows(classified=event_rows.classified(event_rows.parsed(lines(spark, gap))))
    found = cleaned(read, as_of_ms=EPOCH_MS, keep=keep)
    assert (found.lines["missing"], found.lines["duplicate"]) == (1, 0)
    assert "exact" not in kept


def clean(spark: SparkSession, given: list[str]) -> Cleaned:
    read = Rows(classified=event_rows.classified(event_rows.parsed(lines(spark, given))))
    return cleaned(read, as_of_ms=EPOCH_MS, keep=lambda _, frame: frame)
