"""Report at an address of an object store, as Spark's job leaves it, and how it is read there."""

import json
import re
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from proxy.delivery.objects import open_store
from proxy.report import objects, whole
from proxy.report.address import place_of
from proxy.report.place import PIECE_BYTES, OpenFile, UnusableReportError
from proxy.report.watcher import Watcher
from proxy.report.whole import open_table, read_whole
from tests.support.kafka.objects import SECRET
from tests.support.report import RUNS, put_copy, put_report

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("object_store")]

TABLE = "clients/part-00000.parquet"


def upload(folder: Path, prefix: str, run_id: str = RUNS[0]) -> None:
    """Put a report there in the order of `metrics.spark.remote_output`."""
    put_report(folder, run_id)
    store = S3Store("events", prefix=prefix)
    for file in sorted((folder / "tables").rglob("*.parquet")):
        obstore.put(store, f"runs/{run_id}/{file.relative_to(folder)}", file.read_bytes())
    for place in (f"runs/{run_id}/", ""):
        for name in ("report.json", "index.html"):
            obstore.put(store, f"{place}{name}", (folder / name).read_bytes())


def content(file: OpenFile) -> bytes:
    found = b""
    while len(found) < file.size:
        found += file.read(len(found))
    file.close()
    return found


def test_a_report_in_a_bucket_is_read_whole(tmp_path: Path) -> None:
    upload(tmp_path, "fleet/report")
    place = place_of("s3a://events/fleet/report/")
    report = read_whole(place)
    assert (report.run_id, report.folder) == (RUNS[0], f"runs/{RUNS[0]}/tables")
    assert list(report.tables) == [TABLE, "sessions/day=2026-06-01/part-00000.parquet"]
    assert content(open_table(place, report, TABLE)) == RUNS[0].encode()


def test_the_next_run_shows_at_the_next_look(tmp_path: Path) -> None:
    watcher = Watcher(place_of("s3a://events/next"))
    watcher.stop()  # no pauses
    watcher.look()
    assert watcher.state().problem == "there is no report: report.json is not there"
    upload(tmp_path, "next")
    watcher.look()
    first = watcher.state()
    watcher.look()
    assert watcher.state() is first
    upload(tmp_path, "next", RUNS[1])
    watcher.look()
    report = watcher.state().report
    assert report is not None
    assert report.run_id == RUNS[1]


def test_tables_of_a_run_stay_beside_those_of_the_next(tmp_path: Path) -> None:
    upload(tmp_path, "beside")
    place = place_of("s3a://events/beside")
    report = read_whole(place)
    upload(tmp_path, "beside", RUNS[1])
    assert content(open_table(place, report, TABLE)) == RUNS[0].encode()


def test_a_run_that_only_began_is_refused(tmp_path: Path) -> None:
    upload(tmp_path, "begun")
    store = S3Store("events", prefix="begun")
    facts = json.loads((tmp_path / "report.json").read_text())
    obstore.put(store, "report.json", json.dumps(facts | {"run_id": RUNS[1]}).encode())
    with pytest.raises(UnusableReportError, match="not of the same run"):
        read_whole(place_of("s3a://events/begun"))


def test_what_is_huge_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(tmp_path, "huge")
    monkeypatch.setattr(whole, "MAX_JSON_BYTES", 100)
    with pytest.raises(UnusableReportError, match=r"report\.json is larger than"):
        read_whole(place_of("s3a://events/huge"))


def test_a_table_that_is_replaced_is_never_read_as_a_mixture(tmp_path: Path) -> None:
    """As by somebody who copies a folder there anew, which has no folder for each run."""
    put_copy(tmp_path)
    store = S3Store("events", prefix="copied")
    for path in (each for each in tmp_path.rglob("*") if each.is_file()):
        obstore.put(store, str(path.relative_to(tmp_path)), path.read_bytes())
    old, new = b"a" * (2 * PIECE_BYTES), b"b" * (2 * PIECE_BYTES)
    obstore.put(store, f"tables/{TABLE}", old)
    place = place_of("s3a://events/copied")
    report = read_whole(place)
    file = open_table(place, report, TABLE)
    assert file.read(0) == old[:PIECE_BYTES]
    obstore.put(store, f"tables/{TABLE}", new)
    with pytest.raises(OSError, match="Precondition"):
        file.read(PIECE_BYTES)
    with pytest.raises(UnusableReportError, match="was replaced since the report was read"):
        open_table(place, report, TABLE)
    assert content(open_table(place, read_whole(place), TABLE)) == new


def test_one_store_is_kept_until_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_server: str
) -> None:
    """A new one at each look would log in and connect anew every two seconds."""
    made: list[str] = []

    def counted(bucket: str, prefix: str) -> S3Store:
        made.append(f"{bucket}/{prefix}")
        return open_store(bucket, prefix)

    monkeypatch.setattr(objects, "open_store", counted)
    upload(tmp_path, "kept")
    watcher = Watcher(place_of("s3a://events/kept"))
    watcher.stop()  # no pauses
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    watcher.look()
    assert watcher.state().report is None
    failed = len(made)
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server)
    for run_id in RUNS[1:4]:
        upload(tmp_path, "kept", run_id)
        watcher.look()
        report = watcher.state().report
        assert report is not None
        assert report.run_id == run_id
    assert len(made) == failed + 1


@pytest.mark.parametrize(
    ("variable", "value", "bucket"),
    [
        ("AWS_ACCESS_KEY_ID", "stranger", "events"),
        ("AWS_ACCESS_KEY_ID", "writer", "missing"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "events"),
        ("AWS_ENDPOINT_URL", "no address", "events"),
    ],
)
def test_a_store_that_refuses_is_a_sentence(
    variable: str, value: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    watcher = Watcher(place_of(f"s3a://{bucket}/report"))
    watcher.stop()
    watcher.look()
    state = watcher.state()
    assert state.report is None
    assert re.fullmatch("[ -~]{20,400}", str(state.problem))
    assert SECRET not in str(state.problem)
