"""Tables of a report: their columns, the questions of docs/report-tables.md, and their history."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.events.generate import EPOCH, Size, generate
from metrics.events import EventKind
from metrics.readiness import job
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.output import prune_history
from metrics.readiness.published import RUN, TABLES, as_text, published
from metrics.readiness.settings import Settings
from tests.support.metrics import EPOCH_MS, to_json_line
from tests.support.readiness import later, login

ONE_DENIAL = """SELECT 'User:a' AS principal, 'TOPIC' AS resource_type, 't' AS resource_name,
    'READ' AS operation, 1 AS denied, 0 AS would_be_denied, ['10.0.0.1'] AS hosts,
    CAST({time} AS BIGINT) AS first_ms, CAST({time} AS BIGINT) AS last_ms"""
PAGE = Path(__file__).parents[3] / "docs" / "report-tables.md"
QUESTIONS = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
DAY_MS = 86_400_000
SIZE = Size(connections=40, principals=8, clients=20, days=1, seed=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    generate(SIZE, folder / "events", parquet=False)
    make_old(next((folder / "events").glob("*.jsonl")))
    as_of_ms = round((EPOCH + SIZE.days * 86_400) * 1000)
    run(folder, as_of_ms)
    run(folder, as_of_ms + DAY_MS)
    return folder


def run(folder: Path, as_of_ms: int) -> None:
    settings = Settings(
        events=str(folder / "events"),
        out=str(folder / "report"),
        as_of_ms=as_of_ms,
        history=folder / "history",
    )
    job.run(settings, lambda _: None)


def make_old(file: Path) -> None:
    """Add a version that Kafka 4.0 dropped to the first connection, and a group to its client."""
    first, *others = file.read_text().splitlines(keepends=True)
    event = json.loads(first)
    assert event["kind"] == "authenticated"
    event |= {"dropped_versions": [{"api": "Produce", "version": 2}], "groups": ["Group:analysts"]}
    file.write_text("".join((json.dumps(event) + "\n", *others)))


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_question_of_the_page_has_an_answer(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert len(duckdb.connect().sql(QUESTIONS[number])) > 0


def test_there_are_eight() -> None:
    assert len(QUESTIONS) == 8


def test_the_notebook_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    cells = json.loads((PAGE.parent / "report.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    exec("\n".join(code), {})  # noqa: S102 - of this checkout
    assert "would be disconnected by 15 minutes" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_has_the_columns_that_are_documented(folder: Path, name: str) -> None:
    """Also one without rows, `denials` here; the files describe their columns."""
    query = f"DESCRIBE FROM '{folder}/report/tables/{name}/*.parquet'"
    found = duckdb.connect().execute(query).fetchall()
    columns = (*TABLES[name].columns, *RUN)
    documented = [(each.name, each.type) for each in columns]
    assert [(column, kind) for column, kind, *_ in found] == documented
    metadata = f"FROM parquet_kv_metadata('{folder}/report/tables/{name}/*.parquet')"
    said = {key: value for _, key, value in duckdb.connect().execute(metadata).fetchall()}
    assert json.loads(said[b"columns"]) == {each.name: each.meaning for each in columns}


def test_the_json_follows_its_schema(folder: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")  # comes with kubernetes-validate
    schema = json.loads(PAGE.with_name("report.schema.json").read_text())
    facts = json.loads((folder / "report" / "report.json").read_text())
    jsonschema.validate(facts, schema, format_checker=jsonschema.FormatChecker())
    changes: tuple[dict[str, Any], ...] = ({"more": 1}, {"schema_version": 1}, {"clients": [{}]})
    for changed in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(facts | changed, schema)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_is_also_csv(folder: Path, name: str) -> None:
    with (folder / f"report/csv/{name}.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == [each.name for each in (*TABLES[name].columns, *RUN)]
    count = f"SELECT count(*) FROM '{folder}/report/tables/{name}/*.parquet'"
    assert duckdb.connect().execute(count).fetchall() == [(len(rows),)]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"], ids=ascii)
def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, start: str) -> None:
    """Clients choose names, and a spreadsheet would run them."""
    with DuckEngine() as engine:
        name = f"concat(chr({ord(start)}), 'cmd')"
        denial = f"SELECT * REPLACE ({name} AS resource_name, [{name}] AS hosts)"
        engine.keep("denials", f"{denial} FROM ({ONE_DENIAL.format(time=0)})")
        query = as_text("denials", published("denials", "run", 0))
        engine.write_csv(query, str(tmp_path / "denials.csv"))
    with (tmp_path / "denials.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["resource_name"], row["hosts"]) == (f"'{start}cmd",) * 2
    assert row["principal"] == "User:a"


def test_the_kills_of_clients_add_up(folder: Path) -> None:
    """By their keys, which name one client each."""
    tables = f"{folder}/report/tables"
    found = duckdb.connect().execute(
        f"""SELECT count(*) > 0, sum(kills_least) = (SELECT sum(kills_least) FROM
                '{tables}/what_if/*.parquet') FROM '{tables}/kills_by_client/*.parquet'
            SEMI JOIN '{tables}/clients/*.parquet' USING (client_key)
            UNION ALL SELECT count(DISTINCT client_key) = count(*), true
            FROM '{tables}/clients/*.parquet'"""
    )
    assert found.fetchall() == [(True, True)] * 2


@pytest.mark.parametrize(
    ("epoch_ms", "time"),
    [
        (0, "1970-01-01 00:00:00+00"),
        (1_748_736_000_123, "2025-06-01 00:00:00.123+00"),
        (140_000_000_000_999, "6406-06-04 08:53:20.999+00"),
        (None, ""),
    ],
)
def test_times_are_instants(epoch_ms: int | None, time: str, tmp_path: Path) -> None:
    """To the millisecond, up to where the log's times end, in CSV as in Parquet."""
    known = "NULL" if epoch_ms is None else str(epoch_ms)
    file = tmp_path / "denials.csv"
    with DuckEngine() as engine:
        engine.keep("denials", ONE_DENIAL.format(time=known))
        query = published("denials", "run", 0)
        engine.write(query, tmp_path / "table")
        engine.write_csv(query, file)
    made = f"'{tmp_path}/table/part-00000.parquet'"
    found = duckdb.connect().execute(f"SELECT epoch_ms(first_at), epoch_ms(as_of) FROM {made}")
    assert found.fetchall() == [(epoch_ms, 0)]
    schema = f"""SELECT DISTINCT logical_type LIKE '%isAdjustedToUTC=1%' FROM
        parquet_schema({made}) WHERE name IN ('first_at', 'last_at', 'as_of')"""
    assert duckdb.connect().execute(schema).fetchall() == [(True,)]
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert (row["first_at"], row["as_of"]) == (time, "1970-01-01 00:00:00+00")


def test_a_report_is_the_same_in_any_time_zone(tmp_path: Path) -> None:
    """In the hour that New York has twice, asked for by times without a zone."""
    # 2026-11-01T06:00Z is the end of daylight saving time there
    then_ms = round(datetime(2026, 11, 1, 5, 10, tzinfo=UTC).timestamp() * 1000) - EPOCH_MS
    given = [
        login(),
        later(EventKind.REAUTHENTICATED, 30, authentications=2),
        later(EventKind.CLOSED, 75, authentications=2, sequence=2),
    ]
    times = ("timestamp_ms", "connected_ms", "authenticated_ms", "last_request_ms")
    events = tmp_path / "events"
    events.mkdir()
    with (events / "events-p-0-1.jsonl").open("w") as file:
        for each in given:
            fields = json.loads(to_json_line(each))
            moved = {name: fields[name] + then_ms for name in times if name in fields}
            file.write(json.dumps(fields | moved) + "\n")
    command = [sys.executable, "-m", "proxy", "report"]
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    found = []
    for zone in ("UTC", "America/New_York"):
        out = tmp_path / zone.replace("/", "-")
        options = ["--since", "2026-11-01", "--until", "2026-11-01T06:20", "--as-of", "2026-11-02"]
        subprocess.run(
            [*command, "--events", events, "--out", out, *options],
            env=os.environ | {"TZ": zone},
            check=True,
        )
        facts = json.loads((out / "report.json").read_text())
        assert facts.pop("lines")["outside"] == 1
        csv_text = (out / "csv" / "storms.csv").read_text().replace(facts.pop("run_id"), "")
        storms = sorted(csv_text.splitlines())
        query = "SELECT CAST(COLUMNS(* EXCLUDE run_id) AS VARCHAR) FROM '{}/*.parquet' ORDER BY ALL"
        tables = {
            table.name: database.execute(query.format(table)).fetchall()
            for table in (out / "tables").iterdir()
            if table.is_dir()
        }
        found.append((facts, tables, storms))
    assert found[0] == found[1]
    assert [row[0] for row in found[0][1]["storms"]] == [
        "2026-11-01 05:10:00+00",
        "2026-11-01 05:40:00+00",
    ]


def test_the_history_has_each_run_once(folder: Path) -> None:
    files = sorted((folder / "history" / "clients").rglob("*.parquet"))
    assert [file.parent.name for file in files] == ["run_day=2026-06-02", "run_day=2026-06-03"]
    last = (folder / "report" / "tables" / "_RUN").read_text().strip()
    assert files[1].name == f"{last}-00000.parquet"
    kept = {path.name for path in (folder / "history").iterdir()}
    assert kept == {*TABLES} - {"sessions", "used_by_day", "rollout"}


def test_days_before_the_last_ones_are_removed_from_a_history(tmp_path: Path) -> None:
    """A folder's name is its day, because the history may be a copy; other files are left alone."""
    days = ("2026-05-31", "2026-06-01", "2026-06-02", "2026-06-03")
    for table in ("clients", "of_an_earlier_version"):
        for day in (*days, "oldest"):
            (tmp_path / table / f"run_day={day}").mkdir(parents=True)
            (tmp_path / table / f"run_day={day}" / "run.parquet").touch()
    as_of = datetime(2026, 6, 3, 23, 59, tzinfo=UTC)
    prune_history(tmp_path, 2, round(as_of.timestamp() * 1000))
    for table in ("clients", "of_an_earlier_version"):
        left = sorted(path.name.partition("=")[2] for path in (tmp_path / table).iterdir())
        assert left == ["2026-06-02", "2026-06-03", "oldest"]


def test_a_run_keeps_its_history_for_as_many_days_as_wanted(folder: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    (history / "clients/run_day=2026-05-01").mkdir(parents=True)
    settings = Settings(
        events=str(folder / "events"),
        out=str(tmp_path / "report"),
        as_of_ms=round((EPOCH + SIZE.days * 86_400) * 1000),
        history=history,
        history_days=1,
    )
    job.run(settings, lambda _: None)
    assert [path.name for path in (history / "clients").iterdir()] == ["run_day=2026-06-02"]
    with pytest.raises(ReportError, match="--history-days requires --history"):
        replace(settings, history=None).check()


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ("events/history", "--history is within --events"),
        ("report/tables/history", "--history is within the tables of --out"),
        ("s3a://bucket/history", "--history must be a local folder"),
    ],
)
def test_a_history_in_a_wrong_place_is_refused(folder: Path, history: str, problem: str) -> None:
    place = Path(history) if "://" in history else folder / history
    settings = Settings(
        events=str(folder / "events"), out=str(folder / "report"), as_of_ms=0, history=place
    )
    with pytest.raises(ReportError, match=problem):
        settings.check()
    assert not place.exists()
