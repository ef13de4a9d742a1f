"""Lines made to exhaust the report's memory are set aside, and those around them are read."""

import gzip
from pathlib import Path

import pytest

from metrics.readiness import duckdb_engine
from metrics.readiness.duckdb_engine import MAX_LINE_BYTES, DuckEngine, portions
from metrics.readiness.errors import ReportError
from metrics.readiness.events import MAX_ELEMENTS
from metrics.readiness.folder import event_files

EVENT = b'{"schema_version":1,"kind":"closed","connection_id":"a","sequence":0'
HOSTILE = {
    "many elements in few bytes": b"," + b'"intervals":[' + b"{}," * 10_000_000 + b"{}]}",
    "many empty texts": b"," + b'"groups":[' + b'"",' * 10_000_000 + b'""]}',
    "a line longer than DuckDB reads": b',"client_id":"' + b"x" * 40_000_000 + b'"}',
}


@pytest.mark.parametrize("name", ["events-a.jsonl", "events-a.jsonl.gz"])
@pytest.mark.parametrize("end", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_costs_one_line(tmp_path: Path, name: str, end: bytes) -> None:
    """A user with write access to a folder cannot prevent the report."""
    around = (EVENT + b"}\n") * 3
    content = around + EVENT + end + b"\n" + around
    if name.endswith(".gz"):
        content = gzip.compress(content, 1)
    (tmp_path / name).write_bytes(content)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with DuckEngine(scratch) as engine:
        engine.read(event_files(str(tmp_path / name)))
        found = engine.rows("SELECT count(*) AS lines, count(kind) AS events FROM log")
    assert found == [{"lines": 7, "events": 6}]
    assert not list(scratch.glob("*.jsonl"))


def test_packed_lines_that_take_too_much_memory_are_named(tmp_path: Path) -> None:
    """Python before 3.14 does not unpack Zstandard."""
    file = tmp_path / "events-a.jsonl.zst"
    with pytest.raises(ReportError, match="unpack it"):
        list(portions([file], tmp_path / "portion"))


def test_portions_are_bounded_and_lose_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "PORTION_BYTES", 100)
    monkeypatch.setattr(duckdb_engine, "PORTION_COMMAS", 6)
    lines = [b"1,2,3,4\n", b"1,2,3,4\n", b"5\n", b"x" * 97 + b"\n", b"\n", b"cut"]
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(b"".join(lines))
    second.write_bytes(b"x" * (MAX_LINE_BYTES + 1) + b"\n" + b"," * (MAX_ELEMENTS + 1) + b"\nlast")
    place = tmp_path / "portion"
    found: list[bytes] = []
    for number in portions([first, second], place):
        assert number == len(found)
        found.append(place.read_bytes())
    assert found == [b"1,2,3,4\n1,2,3,4\n", b"5\n" + b"x" * 97 + b"\n", b"\ncut\n{}\n{}\nlast\n"]
    assert not place.exists()


@pytest.mark.parametrize("over", [0, 1, MAX_LINE_BYTES, 2 * MAX_LINE_BYTES])
def test_the_longest_line_that_may_be_an_event(tmp_path: Path, over: int) -> None:
    """For every position of the line's end in a read."""
    longest = b"x" * (MAX_LINE_BYTES - 1 + over)
    (tmp_path / "a").write_bytes(longest + b"\nnext\n")
    place = tmp_path / "portion"
    (found,) = (place.read_bytes() for _ in portions([tmp_path / "a"], place))
    assert found == (b"{}" if over else longest) + b"\nnext\n"
