"""From a folder to a report; in one go or in several, the answer is the same."""

import fcntl
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.events.generate import EPOCH, Size, generate
from metrics.readiness import analysis, job
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import event_files
from metrics.readiness.settings import EngineName, Settings
from metrics.report.requirements import requirement
from metrics.spark import job as on_spark
from metrics.spark.files import HadoopFiles
from metrics.spark.lines import ALL_FILES, event_rows, holds_parquet, lines
from proxy.cli import app
from proxy.cli import report as command
from tests.support.metrics import to_json_line
from tests.support.readiness import comparable, login

PATIENCE = 600.0
"""Seconds for a process to begin, or to end: beyond, it hangs."""

SIZE = Size(connections=24, principals=6, clients=12, days=0.2, seed=3, skew_seconds=200, bad=True)
PUBLISHED = {"index.html", "report.json", "report.prom", "tables", "csv"}
AS_OF_MS = round((EPOCH + SIZE.days * 86_400) * 1000)


def settings(events: Path | str, out: Path | str, **more: Any) -> Settings:
    return Settings(events=str(events), out=str(out), as_of_ms=AS_OF_MS, **more)


def run(given: Settings) -> tuple[dict[str, Any], list[str]]:
    return command.run(given, lambda _: None)


def main(options: list[str]) -> int:
    """Run the command; return its exit status."""
    found = CliRunner().invoke(app, ["report", *options])
    sys.stderr.write(found.stderr)
    return found.exit_code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    generate(SIZE, folder, parquet=False)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """By DuckDB; the same by Spark is below."""
    out = tmp_path_factory.mktemp("report")
    facts, unmet = run(
        settings(
            folder,
            out,
            requirements=(requirement("99%"), requirement("User:ready-0")),
            principals=["User:ready-0"],
        )
    )
    assert unmet == [f"99% ({facts['requirements'][0]['found']})"]
    return out, facts


def test_every_bad_line_is_set_aside_and_counted(report: tuple[Path, dict[str, Any]]) -> None:
    lines = dict(report[1]["lines"])
    assert lines.pop("lines") > 300
    assert lines == {
        "unreadable": 2,
        "unknown_version": 1,
        "unknown_kind": 1,
        "impossible": 1,
        "future": 1,
        "outside": 0,
        "implausible": 0,
        "duplicate": 1,
        "missing": 0,
    }


def test_the_verdicts_are_those_that_the_clients_deserve(
    folder: Path, report: tuple[Path, dict[str, Any]]
) -> None:
    """Clocks of the proxies are apart by minutes here, and lines are bad."""
    truth = json.loads((folder / "truth.json").read_text())
    assert {row["client_id"]: row["verdict"] for row in report[1]["clients"]} == truth


def test_the_report_is_whole(report: tuple[Path, dict[str, Any]]) -> None:
    out, facts = report
    assert facts["engine"] == "duckdb"
    assert json.loads((out / "report.json").read_text()) == facts
    assert (out / "index.html").read_text().startswith("<!doctype html>")
    with DuckEngine() as engine:
        found = engine.rows(f"SELECT count(*) AS n FROM '{out}/tables/clients/*.parquet'")
    assert found == [{"n": len(facts["clients"])}]
    assert {path.name for path in out.iterdir()} == {*PUBLISHED, "runs"}


def test_beyond_what_is_collected_principals_count_and_the_worst_are_kept(
    folder: Path,
    report: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "MAX_ROWS", 5)
    best = report[1]["principals"][-1]["principal"]
    facts, unmet = run(
        settings(folder, tmp_path, requirements=(requirement(best),), principals=[best])
    )
    assert best not in {row["principal"] for row in facts["principals"]}
    assert unmet == []
    all_told = report[1]
    assert facts["principals_by_verdict"] == all_told["principals_by_verdict"]
    assert sum(facts["principals_by_verdict"].values()) > 5
    assert facts["principals"] == all_told["principals"][:5]
    assert facts["clients"] == all_told["clients"][:5]
    assert facts["enforceable_principals"] == all_told["enforceable_principals"][:5]


def same(facts: dict[str, Any], other: dict[str, Any]) -> None:
    for key in set(facts) - {"source", "requirements", "lines", "run_id", "engine"}:
        assert comparable(facts[key]) == comparable(other[key]), key


def files(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_page_tables_and_json_are_of_one_run(report: tuple[Path, dict[str, Any]]) -> None:
    out, facts = report
    assert facts["run_id"].startswith("20260601T044800Z-")
    assert (out / "tables" / "_RUN").read_text() == f"{facts['run_id']}\n"
    assert facts["run_id"] in (out / "index.html").read_text()


@pytest.mark.parametrize("fault", ["events", "disk"])
def test_a_run_that_fails_leaves_the_last_report_whole(
    folder: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, out = tmp_path / "events", tmp_path / "out"
    shutil.copytree(folder, events)
    run(settings(events, out))
    before = files(out)
    assert len(before) > 10
    if fault == "events":
        (events / "events-p.parquet").write_bytes(b"beside lines")
    else:
        monkeypatch.setattr(job, "write_report", full_disk)
    assert main(["--events", str(events), "--out", str(out)]) == 2
    assert files(out) == before


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device", "report.json")


def test_what_a_killed_run_left_goes_with_the_next(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".half-1" / "scratch").mkdir(parents=True)
    (tmp_path / ".old-1").mkdir()
    run(settings(folder, tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {*PUBLISHED, "runs"}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_report_at_an_address_is_that_of_a_folder(
    folder: Path,
    report: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is of the last whole run, whose tables are kept, and those of the one before."""
    out = tmp_path / "bucket" / "report"
    given = settings(folder, out.as_uri())
    of_another = out / "runs" / "0"
    of_another.mkdir(parents=True)
    runs = []
    for is_whole in (True, True, False, True):
        if not is_whole:
            with monkeypatch.context() as patched:
                patched.setattr(job, "write_report", full_disk)
                with pytest.raises(OSError, match="No space"):
                    run(given)
        else:
            facts, _ = run(given)
            same(facts, report[1])
            runs.append(facts["run_id"])
        assert json.loads((out / "report.json").read_text()) == facts
    assert {path.name for path in (out / "runs").iterdir()} == {of_another.name, *runs[1:]}
    for name in runs[1:]:
        tables = out / "runs" / name / "tables"
        assert {path.name for path in tables.iterdir()} == tables_of(report[0])
        assert not (out / "runs" / name / "scratch").exists()
    assert runs[-1] in (out / "index.html").read_text()


def tables_of(out: Path) -> set[str]:
    return {path.name for path in (out / "tables").iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    ("events", "out", "is_refused"),
    [
        ("s3a://fleet/events", "s3a://fleet/events/report", True),
        ("s3a://fleet/events/", "s3a://fleet/events", True),
        ("s3a://fleet/events", "s3a://fleet/events-report", False),
        ("s3a://fleet/events", "/srv/report", False),
    ],
)
def test_no_address_of_a_report_is_among_the_events(
    events: str, out: str, is_refused: bool
) -> None:
    given = Settings(events=events, out=out, as_of_ms=AS_OF_MS)
    if is_refused:
        with pytest.raises(ReportError, match="--out is within --events"):
            given.check()
    else:
        given.check()


@pytest.mark.usefixtures("spark")
def test_two_runs_on_one_state_exclude_each_other(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    options = ["--events", str(folder), "--out", str(tmp_path / "out"), "--state", str(state)]
    with (state / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(options) == 2
    assert "another run uses this --state" in capsys.readouterr().err


def test_parquet_has_no_state(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "events"))
    options = ["--events", str(tmp_path / "events"), "--out", str(tmp_path / "out")]
    assert main([*options, "--state", str(tmp_path / "state")]) == 2
    assert "--state takes lines" in capsys.readouterr().err


@pytest.mark.usefixtures("spark")
def test_the_report_says_what_answered_it_whatever_was_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    facts, _ = run(settings(folder, tmp_path, engine=EngineName.SPARK))
    assert facts["engine"] == "duckdb"


@pytest.mark.parametrize("option", [["--state", "state"], ["--master", "local[1]"]])
def test_duckdb_is_not_asked_for_what_it_cannot_do(
    folder: Path, tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--events", str(folder), "--out", str(tmp_path / "out"), "--engine", "duckdb"]
    assert main([*options, *option]) == 2
    assert "--engine spark" in capsys.readouterr().err


@pytest.mark.slow
def test_in_portions_out_of_order_and_doubled_the_report_is_the_same(
    spark: SparkSession, folder: Path, report: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The last lines come first, and a third of them twice, as Kafka may deliver them."""
    (file,) = folder.glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    third = len(lines) // 3
    events, state = tmp_path / "events", str(tmp_path / "state")
    events.mkdir()
    portions = (lines[third * 2 :], lines[third : third * 2 + 50], lines[: third * 2])
    for number, portion in enumerate(portions):
        (events / f"events-p-0-{number}.jsonl").write_text("".join(portion))
        event_rows(spark, settings(events, tmp_path, state=state))
    facts, _ = run(settings(events, tmp_path / "report", state=state))
    assert facts["engine"] == "spark+duckdb"
    assert (
        "DuckDB, of what Spark made of the events"
        in (tmp_path / "report" / "index.html").read_text()
    )
    same(facts, report[1])
    assert facts["lines"]["duplicate"] == 1 + third + 50
    assert facts["lines"]["missing"] == 0
    assert facts["lines"]["lines"] == sum(map(len, portions))


def test_a_file_that_comes_late_is_read_however_old_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Copied by `rsync -a` from a machine that was away for a fortnight, say."""
    events = tmp_path / "events"
    events.mkdir()
    given = settings(events, tmp_path, state=str(tmp_path / "state"))
    for number, days_ago in enumerate((0, 14)):
        file = events / f"events-p-0-{number}.jsonl"
        file.write_text(to_json_line(login(connection_id=f"c-{number}")))
        then = file.stat().st_mtime - days_ago * 86_400
        os.utime(file, (then, then))
        rows = event_rows(spark, given)
    assert rows.count() == 2


@pytest.mark.slow
def test_parquet_says_what_lines_say(
    spark: SparkSession, folder: Path, report: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    event_rows(spark, settings(folder, tmp_path)).write.parquet(str(table))
    for engine in (EngineName.DUCKDB, EngineName.SPARK):
        facts, _ = run(settings(table, tmp_path / "report", engine=engine))
        assert facts["engine"] == "duckdb"  # whatever was asked for
        same(facts, report[1])


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["lines", "parquet"])
@pytest.mark.parametrize("answered_by", ["duckdb", "spark+duckdb"])
def test_the_events_of_an_address_give_the_report_of_the_folder(
    folder: Path,
    report: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: str,
    answered_by: str,
) -> None:
    """From DuckDB on files that Hadoop fetched, and from both as on a cluster; neither leaves
    anything behind."""
    monkeypatch.setattr(on_spark, "is_one_machine", lambda _: answered_by == "duckdb")
    events = folder
    if kind == "parquet":
        events = tmp_path / "events"
        (events / "_temporary").mkdir(parents=True)
        (events / "_temporary" / "half.parquet").write_bytes(b"half")
        with DuckEngine() as engine:
            engine.pack(event_files(str(folder)).files, lambda number: events / f"{number}.parquet")
    out = tmp_path / "report [1]"
    facts, _ = run(settings(events.as_uri(), out))
    same(facts, report[1])
    assert facts["engine"] == answered_by
    assert facts["lines"] == report[1]["lines"]
    left = {path.name for path in out.iterdir()} - {"spark.log"}
    assert left == {*PUBLISHED, "runs"}


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_told_to_end_it_leaves_nothing_that_it_kept_in_between(
    folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "proxy", "report", "--master", "local[1]"]
    process = subprocess.Popen(
        [*command, "--events", str(folder), "--out", str(tmp_path)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob(".half-*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(PATIENCE) == 2
    assert list(tmp_path.glob(".half-*")) == []


@pytest.mark.usefixtures("spark")
def test_a_state_of_an_earlier_version_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its position in the events would be taken over, and its events would not."""
    (tmp_path / "state" / "counts").mkdir(parents=True)
    options = ["--events", str(folder), "--out", str(tmp_path / "out")]
    assert main([*options, "--state", str(tmp_path / "state")]) == 2
    assert "is a --state of an earlier version" in capsys.readouterr().err


def test_a_growing_file_is_read_up_to_its_last_whole_line(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("report")
    (tmp_path / "events-p-0-1.jsonl.open").write_text('{"schema_version":1,"kind":"che')
    facts, _ = run(settings(tmp_path, out))
    assert facts["lines"]["unreadable"] == 1
    assert facts["observed"]["connections"] == 0
    assert "nothing to judge" in (out / "index.html").read_text()


def test_a_folder_without_events_is_one_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--events", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.strip().endswith("in this folder")
    assert main(["--events", str(tmp_path / "no"), "--out", str(tmp_path / "out")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_lines_and_parquet_in_one_folder_are_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two would be passed over without a word."""
    events = tmp_path / "events"
    spark.range(1).write.parquet(str(events / "table"))
    (events / "events-p-0-1.jsonl").write_text("{}")
    assert main(["--events", str(events), "--out", str(tmp_path / "out")]) == 2
    assert "holds both" in capsys.readouterr().err
    with pytest.raises(ReportError, match="holds both"):
        holds_parquet(spark, events.as_uri())


@pytest.mark.parametrize("option", ["--out", "--state"])
def test_what_is_written_does_not_become_events(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events-p-0-1.jsonl").write_text("{}")
    outside = str(tmp_path.with_name("elsewhere"))
    given = {"--events": str(tmp_path), "--out": outside, option: str(tmp_path / "below")}
    assert main([word for pair in given.items() for word in pair]) == 2
    assert f"{option} is within --events" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["events-p-0-1.jsonl"]


@pytest.mark.usefixtures("spark")
def test_a_state_to_which_nothing_came_yet_is_one_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (events / "events-p-0-1.jsonl.open").write_text(to_json_line(login()))
    options = ["--events", str(events), "--out", str(tmp_path / "out")]
    assert main([*options, "--state", str(tmp_path / "state")]) == 2
    assert "nothing to report on yet" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("name", "content"),
    [("events-p.jsonl.gz", gzip.compress(b"{}" * 9)[:-9]), ("events-p.jsonl.zst", b"{}")],
    ids=["cut off", "false"],
)
def test_a_file_that_cannot_be_unpacked_is_named(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (events / name).write_bytes(content)
    options = ["--events", str(events), "--out", str(tmp_path / "out"), "--engine", "spark"]
    assert main(options) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{events / name}: it is cut off" in said


def test_spark_is_not_given_what_is_no_regular_file(spark: SparkSession, tmp_path: Path) -> None:
    """It would follow the link, and wait at a pipe forever."""
    (tmp_path / "a.jsonl").write_text("{}")
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(
        ReportError, match=r"b\.jsonl: it is a symbolic link, or not a regular file"
    ):
        holds_parquet(spark, str(tmp_path))


@pytest.mark.parametrize("name", ["events[1]", "a{b,c}", "all*", "why?", "back\\slash"])
def test_a_folder_is_no_pattern(spark: SparkSession, name: str, tmp_path: Path) -> None:
    events = tmp_path / name
    events.mkdir()
    (events / "events-p-0-1.jsonl").write_text("{}")
    assert lines(spark.read, settings(events, tmp_path), ALL_FILES).count() == 1


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything: be somebody else."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.mark.parametrize("closed", ["folder", "folder/below", "folder/events-p-0-1.jsonl", "."])
def test_what_may_not_be_read_is_one_clear_sentence(
    closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder itself, one in it, a file in it, the one that it is in."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        events = root / "folder"
        (events / "below").mkdir(parents=True)
        (events / "events-p-0-1.jsonl").write_text("{}")
        (root / closed).chmod(0o000)
        with nobody():
            status = main(["--events", str(events), "--out", str(root / "out")])
        (root / closed).chmod(0o755)
    said = capsys.readouterr().err
    assert status == 2
    assert said.count("\n") == 1
    assert "permission" in said.split("; ")[-1]


@pytest.mark.parametrize("kind", ["lines", "parquet"])
def test_an_address_is_read_by_hadoop_and_not_by_this_process(
    spark: SparkSession, folder: Path, tmp_path: Path, kind: str
) -> None:
    """`file:` stands for `s3a:` here: the same way is taken for any address with a scheme."""
    if kind == "parquet":
        folder = tmp_path / "table"
        spark.range(1).write.parquet(str(folder))
    assert holds_parquet(spark, folder.as_uri()) == (kind == "parquet")


@pytest.mark.parametrize("name", ["part-00000-c000.json", "events-p-0-1.jsonl", "events.parquet"])
def test_what_is_fetched_from_an_address_are_event_files_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    events, fetched = tmp_path / "events", tmp_path / "fetched"
    (events / "day=1").mkdir(parents=True)
    (events / "day=1" / name).write_text("")
    (events / "_SUCCESS").write_text("")
    HadoopFiles(spark, events.as_uri()).download(events.as_uri(), fetched)
    assert len(event_files(str(fetched)).files) == 1


@pytest.mark.parametrize("pattern", ["*.jsonl", "day=[12]/*", "{day=1,day=2}", "*"])
def test_an_address_may_be_a_pattern(spark: SparkSession, tmp_path: Path, pattern: str) -> None:
    """Read by Spark itself, and fetched for DuckDB."""
    events, fetched = tmp_path / "events", tmp_path / "fetched"
    for name in ("a.jsonl", "day=1/b.jsonl", "day=2/c.jsonl"):
        (events / name).parent.mkdir(parents=True, exist_ok=True)
        (events / name).write_text(to_json_line(login(connection_id=name)) + "\n")
    address = f"{events.as_uri()}/{pattern}"
    assert not holds_parquet(spark, address)
    found = lines(spark.read, settings(address, tmp_path), ALL_FILES).collect()
    read = sorted(row.value for row in found)
    HadoopFiles(spark, address).download(address, fetched)
    assert sorted(file.read_text().strip() for file in fetched.iterdir()) == read
    assert len(read) == {"*.jsonl": 1, "*": 3}.get(pattern, 2)


@pytest.mark.usefixtures("spark")
def test_no_pattern_of_events_has_the_report_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events-p-0-1.jsonl").write_text(to_json_line(login()))
    out = (tmp_path / "b" / "out").as_uri()
    assert main(["--events", f"{tmp_path.as_uri()}/*", "--out", out]) == 2
    assert "--out is within --events" in capsys.readouterr().err


@pytest.mark.usefixtures("spark")
def test_events_for_which_the_disk_has_no_room_are_not_fetched(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert main(["--events", folder.as_uri(), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "GB of events are fetched to" in said
    assert "has 0.0 GB left; make room there" in said


def test_an_address_without_events_is_one_clear_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no events")
    with pytest.raises(ReportError, match="in this folder"):
        holds_parquet(spark, tmp_path.as_uri())
    with pytest.raises(ReportError, match="there is no such folder"):
        holds_parquet(spark, (tmp_path / "no").as_uri())


@pytest.mark.usefixtures("spark")
def test_what_is_wrong_with_an_address_is_known_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--events", str(folder), "--out", "s3a://bucket/report"]) == 2
    said = capsys.readouterr().err
    assert "Spark has no jar for such addresses" in said
    assert "applying lifetimes" not in said


@pytest.mark.usefixtures("spark")
def test_kafka_without_a_broker_is_one_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--events", "kafka:events", "--out", str(tmp_path)]) == 2
    assert "--bootstrap-server" in capsys.readouterr().err


@pytest.mark.usefixtures("spark")
def test_a_spark_without_the_connector_is_one_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--events", "kafka:events", "--bootstrap-server", "127.0.0.1:1", "--engine", "spark"]
    assert main([*options, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("reauth-proxy: Spark has no connector for Kafka")
