"""Files of a folder, whatever their names are."""

import gzip
import os
from pathlib import Path

import pytest

from metrics.readiness import duckdb_engine, job
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import event_files
from metrics.readiness.settings import Settings
from tests.support.metrics import EPOCH_MS, to_json_line
from tests.support.readiness import SEEN_FILES, hidden_among_others, login

LINE = '{"kind":"closed","connection_id":"NAME","sequence":1}\n'


def test_names_are_no_patterns_and_folders_no_fields(tmp_path: Path) -> None:
    """Each file is read once, and says itself of what kind its events are."""
    names = ["a[1].jsonl", "a1.jsonl", "*.jsonl", "b?.jsonl", "kind=opened/day=2026-01-01/c.jsonl"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LINE.replace("NAME", name))
    packed = tmp_path / "kind=packed"
    packed.mkdir()
    with DuckEngine() as engine:
        files = event_files(str(tmp_path)).files
        (made,) = engine.pack(files, lambda number: packed / f"{number}.parquet")
        engine.merge([made], packed / "merged.parquet")
        engine.view_parquet("packed", packed)
        found = engine.rows("SELECT connection_id, kind FROM packed")
    assert sorted(row["connection_id"] for row in found) == sorted(2 * names)
    assert {row["kind"] for row in found} == {"closed"}


def test_parquet_files_may_have_different_columns(tmp_path: Path) -> None:
    """A column may be missing, be elsewhere, or have a wider type than in the first file."""
    with DuckEngine() as engine:
        for number, columns in enumerate(
            ("'a' AS kind, 1 AS sequence", "3000000000 AS sequence, 'b' AS kind", "'c' AS kind")
        ):
            engine.write(f"SELECT {columns}", tmp_path / f"[{number}]")
        engine.read(event_files(str(tmp_path)))
        found = engine.rows("SELECT kind, sequence FROM log ORDER BY kind")
    assert [tuple(row.values()) for row in found] == [("a", 1), ("b", 3_000_000_000), ("c", None)]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text(LINE)
    with pytest.raises(ReportError, match="is not UTF-8; rename it"):
        event_files(str(tmp_path))


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    """As Spark does it: `test_hidden_files_are_the_same_to_spark`."""
    hidden_among_others(tmp_path)
    files = event_files(str(tmp_path)).files
    assert {str(file.relative_to(tmp_path)) for file in files} == SEEN_FILES


LOG = "".join(f"{to_json_line(login(connection_id=name))}\n" for name in "abc").encode()


def parquet(path: Path, lines: bytes) -> bytes:
    (path / "lines.jsonl").write_bytes(lines * 2_000)
    with DuckEngine() as engine:
        (made,) = engine.pack([path / "lines.jsonl"], lambda number: path / f"{number}.parquet")
    return made.read_bytes()


def broken_pages(content: bytes) -> bytes:
    """The footer is whole: what is broken shows when a column is read."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:4] + b"\xff" * (footer - 4) + content[footer:]


@pytest.mark.parametrize("kind", ["lines", "parquet"])
def test_a_damaged_file_costs_that_file(tmp_path: Path, kind: str) -> None:
    """It is named in the report, on the page and in its JSON."""
    events, spare = tmp_path / "events", tmp_path / "spare"
    events.mkdir()
    spare.mkdir()
    if kind == "parquet":
        whole = parquet(spare, LOG)
        damaged = {"cut": whole[: len(whole) // 2], "false": b"none", "pages": broken_pages(whole)}
        damaged = {f"{name}.parquet": content for name, content in damaged.items()}
        (events / "a.parquet").write_bytes(whole)
    else:
        whole = gzip.compress(LOG)
        damaged = {"cut.jsonl.gz": whole[: len(whole) // 2]}
        damaged |= {f"false.jsonl.{name}": b"none" for name in ("gz", "zst")}
        (events / "a.jsonl").write_bytes(LOG)
    for name, content in damaged.items():
        (events / name).write_bytes(content)
    facts, _ = job.run(settings(events, tmp_path / "out"), lambda _: None)
    assert facts["observed"]["connections"] == 3
    reason = "it is cut off, or is not what its name says"
    files = [{"file": str(events / name), "reason": reason} for name in sorted(damaged)]
    assert facts["files_set_aside"] == {"file_count": 3, "files": files}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "3 files were not read" in page
    assert reason in page


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Opening a pipe blocks, and a link may lead to any file of the machine."""
    events = tmp_path / "events"
    events.mkdir()
    (events / "a.jsonl").write_bytes(LOG)
    (tmp_path / "secret").write_bytes(LOG)
    os.mkfifo(events / "b.jsonl")
    (events / "c.jsonl").symlink_to(tmp_path / "secret")
    (events / "d.jsonl").symlink_to(tmp_path / "nowhere")
    folder = event_files(str(events))
    assert folder.files == [events / "a.jsonl"]
    assert {file.name for file in folder.aside} == {"b.jsonl", "c.jsonl", "d.jsonl"}
    facts, _ = job.run(settings(events, tmp_path / "out"), lambda _: None)
    assert facts["files_set_aside"]["file_count"] == 3


def test_a_file_that_takes_too_long_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "FILE_SECONDS", 0.02)
    slow = tmp_path / "a.jsonl.gz"
    slow.write_bytes(gzip.compress(b"{}\n" * 20_000_000, 1))  # some seconds
    with DuckEngine() as engine:
        engine.folder = event_files(str(tmp_path))
        assert engine.broken() == {slow: "it takes too long to read"}


def settings(events: Path, out: Path) -> Settings:
    return Settings(events=str(events), out=str(out), as_of_ms=EPOCH_MS + 60_000)
