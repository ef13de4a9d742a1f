"""Files of a folder, whatever their names are."""

import os
from pathlib import Path

import pytest

from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import event_files
from tests.support.readiness import SEEN_FILES, hidden_among_others

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


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text(LINE)
    with pytest.raises(ReportError, match="is not UTF-8; rename it"):
        event_files(str(tmp_path))


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    """As Spark does it: `test_hidden_files_are_the_same_to_spark`."""
    hidden_among_others(tmp_path)
    files = event_files(str(tmp_path)).files
    assert {str(file.relative_to(tmp_path)) for file in files} == SEEN_FILES
