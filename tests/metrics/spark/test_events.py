import json

import pytest
from pyspark.sql import SparkSession

from metrics.events import MAX_INT64, to_json_line
from metrics.spark import events as log
from metrics.spark.events import CLOCK_TOLERANCE_MS, Problem
from tests.metrics.given import EPOCH_MS
from tests.metrics.spark.given import frame, lines, login, only, rows

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
    return [row["problem"] for row in log.classified(log.parsed(given)).collect()]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_a_line_is_judged_by_what_it_says(problems: list[str | None], number: int) -> None:
    assert problems[number] == LINES[number][1]


def test_every_line_is_counted_once_and_an_empty_one_not_at_all(spark: SparkSession) -> None:
    given = lines(spark, [line for line, _ in LINES] + ["", "  "])
    counts = only(log.classified(log.parsed(given)).agg(*log.problem_counts()))
    good = sum(problem is None for _, problem in LINES)
    assert counts.pop("lines") == len(LINES)
    assert sum(counts.values()) == len(LINES) - good


def test_no_lines_give_no_events_and_no_problems(spark: SparkSession) -> None:
    empty = log.classified(log.parsed(lines(spark, [])))
    assert rows(log.valid_events(empty)) == []
    assert set(only(empty.agg(*log.problem_counts())).values()) == {0}


def test_a_token_that_lives_for_ever_is_bounded_and_an_absent_one_stays_null(
    spark: SparkSession,
) -> None:
    given = frame(spark, [login(credential_lifetime_ms=MAX_INT64), login(connection_id="c-2")])
    assert [row["credential_lifetime_ms"] for row in rows(given)] == [10**13, None]


def test_clocks_may_be_ahead_by_minutes_but_not_by_more(spark: SparkSession) -> None:
    at_the_edge = EPOCH_MS + CLOCK_TOLERANCE_MS
    given = frame(spark, [login(timestamp_ms=at_the_edge), login(timestamp_ms=at_the_edge + 1)])
    kept = given.where(~log.is_future(EPOCH_MS))
    assert [row["timestamp_ms"] for row in rows(kept)] == [at_the_edge]


@pytest.mark.parametrize(
    ("numbers", "duplicate", "missing"),
    [
        ([0, 1, 2], 0, 0),
        ([2, 0, 1], 0, 0),
        ([0, 0, 1], 1, 0),
        ([0, 1, 1, 1, 2, 2], 3, 0),
        ([0, 3], 0, 2),
        ([0, 1, 1, 3], 1, 1),
        ([3_000_000_000, 3_000_000_000], 1, 3_000_000_000),
    ],
)
def test_duplicates_and_gaps_are_counted_exactly(
    spark: SparkSession, numbers: list[int], duplicate: int, missing: int
) -> None:
    given = frame(spark, [login(sequence=number) for number in numbers])
    suspects = log.sequence_totals(given).where("suspect")
    assert only(log.duplicates(given, suspects)) == {"duplicate": duplicate, "missing": missing}
    kept = sorted(row["sequence"] for row in rows(log.without_duplicates(given, suspects)))
    assert kept == sorted(set(numbers))
