"""Events answer alike in DuckDB and in Spark: one text in SQL."""

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.events.generate import Size, bad_lines, clients_of, simulated
from metrics.events import EventKind
from metrics.readiness import usage
from metrics.readiness.analysis import Analysis, Events, Question
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.published import TABLES, published
from metrics.rollout import Stage
from metrics.spark.job import SparkEvents
from metrics.spark.lines import parsed
from tests.support.metrics import EPOCH_MS, to_json_line
from tests.support.readiness import (
    IN_GROUPS,
    LINES,
    STANDINGS,
    USES,
    USES_OF_DROPPED,
    Row,
    comparable,
    duckdb_log,
    later,
    login,
)
from tests.support.rollout import replayed, rollout_log

KEPT = (
    "connections",
    "uses",
    "client_days",
    "standing",
    "authentication_counts",
    "kills",
    "regressed",
    "dropped_uses",
    "evidence",
    "memberships",
)
"""Relations behind the published tables."""
CASES = Path(__file__).parents[1] / "readiness" / "cases"
YEAR_MS = 365 * 86_400_000
ROLLOUT = rollout_log(0)
AS_OF_MS = EPOCH_MS + 30 * 86_400_000


def population(seed: int, **more: Any) -> list[str]:
    size = Size(connections=24, principals=6, clients=12, days=0.3, seed=seed, **more)
    return list(simulated(size, clients_of(size)))


def amiss(seed: int) -> Iterator[str]:
    """Lines that are lost, doubled, bad, or of clocks that are decades behind or ahead."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    lines = population(seed, skew_seconds=240)
    years: dict[str, int] = {}
    for line in lines:
        event = json.loads(line)
        off = years.setdefault(event["connection_id"], rng.choice([0] * 9 + [-26]))
        for name, value in event.items():
            if name.endswith("_ms") and isinstance(value, int) and value > YEAR_MS * 40:
                event[name] = value + off * YEAR_MS
        if rng.random() > 0.05:
            yield json.dumps(event)
        if rng.random() < 0.02:
            yield json.dumps(event)
    yield from bad_lines(lines[0], EPOCH_MS)


def cases() -> list[str]:
    """The connections of other tests, and denials."""
    given = [replace(each, connection_id=name) for name, events, _ in STANDINGS for each in events]
    reported = {"session_lifetime_ms": 900_000, "announced_lifetime_ms": 900_000}
    given += [
        login(connection_id="repaired", **reported),
        later(EventKind.WOULD_BE_KILLED, 16, connection_id="repaired", **reported),
        later(EventKind.REAUTHENTICATED, 1500, connection_id="repaired", authentications=2,
              sequence=2, **reported),
        later(EventKind.DENIED, 3, operation="READ", resource_type="TOPIC", resource_name="a"),
        *(replace(each, connection_id=f"dropped-{each.connection_id}") for each in USES_OF_DROPPED),
        *(replace(each, connection_id=f"grouped-{each.connection_id}") for each in IN_GROUPS),
        *USES,
        *ROLLOUT,
    ]  # fmt: skip
    logs = (line for log in sorted(CASES.iterdir()) for line in log.read_text().splitlines())
    return [*map(to_json_line, given), *(line for line, _ in LINES), *logs]


def collided(seed: int) -> list[str]:
    """Give lines of two proxies that gave the same ids."""
    mine, others = f"{seed:016x}", f"{seed + 1:016x}"
    return [*population(seed), *(line.replace(others, mine) for line in population(seed + 1))]


def only_summaries(seed: int) -> list[str]:
    return [line for line in population(seed) if '"kind":"summary"' in line]


def with_gaps(seed: int) -> list[str]:
    """Lose every 40th line, except ends."""
    lines = enumerate(population(seed), start=1)
    return [line for at, line in lines if at % 40 or '"kind":"closed"' in line or "final" in line]


LOGS: dict[str, Callable[[], list[str]]] = {
    "as it is": lambda: population(3),
    "amiss": lambda: list(amiss(4)),
    "summaries": lambda: only_summaries(5),
    "no logins": lambda: [line for line in population(6) if '"kind":"authenticated"' not in line],
    "open": lambda: [line for line in population(7) if '"kind":"closed"' not in line][:-60],
    "same ids": lambda: collided(8),
    "cases": cases,
    "bounded": lambda: with_gaps(9),
    "nothing": list,
}


def rows(found: list[Row]) -> list[Any]:
    """Return rows without the hashes of identities, which differ between engines."""
    return sorted((comparable(_without_hashes(row)) for row in found), key=str)


def _without_hashes(row: Row) -> Row:
    names = {
        name: re.sub(r"^(alike-(?:[12]-)?)-?\d+|^-?\d+$", r"\1", str(row[name]))
        for name in ("connection_id", "member")
        if name in row
    }
    return row | names | ({"identity_id": None} if "identity_id" in row else {})


@pytest.mark.parametrize(
    "name",
    [each if each == "cases" else pytest.param(each, marks=pytest.mark.slow) for each in LOGS],
)
def test_engines_say_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lines = LOGS[name]()
    if name == "bounded":
        monkeypatch.setattr(usage, "KEPT", 1)
        monkeypatch.setattr(usage, "KEPT_UNSURE", 1)
    text = spark.createDataFrame([(line,) for line in lines], "value STRING")
    log = parsed(text).localCheckpoint()
    # an address in one case: what both need is uploaded and downloaded then
    shared = (tmp_path / "shared").as_uri() if name == "amiss" else str(tmp_path / "shared")
    with (
        duckdb_log(lines) as duckdb,
        DuckEngine(tmp_path) as here,
        closing(SparkEvents(spark, here, shared, tmp_path)) as on_spark,
    ):
        on_spark.read(log)
        expected = analysed(duckdb, duckdb)
        assert_same(expected, duckdb, analysed(on_spark, here), here)
        if name == "cases":
            found = {
                (row["principal"], row["day"]): row["stage"]
                for row in here.rows("FROM rollout WHERE principal LIKE 'User:auto-%'")
            }
            assert found == {key: stage for key, stage in replayed(ROLLOUT).items() if key in found}
            assert set(found.values()) == set(map(str, Stage))
        (observed,) = expected.rows["observed"]
        assert (observed["left_out"] > 0) == (name == "bounded")


def analysed(log: Events, engine: DuckEngine) -> Analysis:
    question = Question(as_of_ms=AS_OF_MS, principals=["User:alice", "Group:a"])
    analysis = Analysis(log, engine, question, lambda _: None)
    analysis.run()
    return analysis


def assert_same(
    expected: Analysis, duckdb: DuckEngine, found: Analysis, engine: DuckEngine
) -> None:
    for table in KEPT:
        query = f"SELECT * FROM {table}"
        assert rows(duckdb.rows(query)) == rows(engine.rows(query)), table
    for table in TABLES:
        query = f"SELECT to_json(r) AS line FROM ({published(table, 'run', AS_OF_MS)}) AS r"
        found_rows, expected_rows = (_parsed(each.rows(query)) for each in (engine, duckdb))
        assert found_rows == expected_rows, table
    assert expected.lines == found.lines
    assert expected.rows.keys() == found.rows.keys()
    for shown, given in expected.rows.items():
        assert rows(given) == rows(found.rows[shown]), shown


def _parsed(found: list[Row]) -> list[Any]:
    """Rows of a published table; DuckDB's Python lacks a type for its times."""
    return rows([json.loads(row["line"]) for row in found])


@pytest.mark.parametrize("lost", [1, 2])
def test_what_executors_wrote_elsewhere_is_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """On other machines, in folders of that name there: a report of the rest would be wrong."""
    write = SparkEvents._write

    def elsewhere(events: SparkEvents, name: str, query: str, path: str) -> int:
        written = write(events, name, query, path)
        for file in sorted(Path(path).glob("*.parquet"))[:lost]:
            file.unlink()
        return written

    monkeypatch.setattr(SparkEvents, "_write", elsewhere)
    with (
        DuckEngine(tmp_path) as here,
        closing(SparkEvents(spark, here, str(tmp_path), tmp_path)) as log,
    ):
        log.read(spark.range(4).repartition(2))
        with pytest.raises(ReportError, match="--out must be an address, or a folder"):
            log.keep("kept", "SELECT * FROM log")
