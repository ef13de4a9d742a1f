"""The table of a topic: it neither loses nor doubles a line, whenever a run ends."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics.readiness import topic_table
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.topic_table import NAME, TopicTable

LINE = '{{"kind":"closed","connection_id":"{}","sequence":{}}}\n'


class Topic:
    """One partition of lines, three of which are given at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, count: int) -> None:
        numbers = range(len(self.lines), len(self.lines) + count)
        self.lines += [LINE.format("a", number) for number in numbers]

    def read(self, offsets: dict[int, int]) -> Iterator[bytes]:
        begin = offsets.get(0, 0)
        for at in range(begin, len(self.lines), 3):
            some = self.lines[at : at + 3]
            offsets[0] = at + len(some)
            yield "".join(some).encode()


def run(folder: Path, topic: Topic) -> None:
    """One run of a report with a state."""
    with DuckEngine() as engine:
        TopicTable(folder, "t").add(engine, topic.read)


def sequences(folder: Path) -> list[int]:
    """What a report reads."""
    with DuckEngine() as engine:
        engine.read(TopicTable(folder, "t").folder())
        return [row["sequence"] for row in engine.rows("SELECT sequence FROM log ORDER BY 1")]


def test_small_files_become_few(tmp_path: Path) -> None:
    """A report each hour makes thousands of files in a year."""
    topic, written = Topic(), 0
    for _ in range(40):
        topic.write(2)
        run(tmp_path, topic)
        files = {path.name: path for path in tmp_path.glob("*.parquet")}
        written += max(files.items())[1].stat().st_size
    assert len(files) == 1
    assert sequences(tmp_path) == list(range(80))
    assert written < 40 * 6 * 4 * 1024 + sum(each.stat().st_size for each in files.values()) * 6


def test_large_files_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "SMALL_BYTES", 1)
    topic = Topic()
    for _ in range(3):
        topic.write(1)
        run(tmp_path, topic)
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    assert sequences(tmp_path) == [0, 1, 2]


def test_whenever_a_run_is_killed_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files on disk at each step of runs that write several files and merge them."""
    folder, topic = tmp_path / "table", Topic()
    topic.write(4)
    run(folder, topic)
    seen: list[Path] = []

    def keep() -> None:
        kept = tmp_path / f"at-{len(seen)}"
        shutil.copytree(folder, kept)
        seen.append(kept)

    sync, unlink = topic_table._sync, Path.unlink

    def watched_sync(path: Path) -> None:
        keep()
        sync(path)
        keep()

    def watched_unlink(path: Path, missing_ok: bool = False) -> None:
        keep()
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(topic_table, "_sync", watched_sync)
        patched.setattr(Path, "unlink", watched_unlink)
        patched.setattr(topic_table, "BATCH_BYTES", 200)
        topic.write(11)
        run(folder, topic)
    assert len(list(folder.glob("*.parquet"))) == 1, "it merged several"
    topic.write(2)
    for each in seen:
        run(each, topic)
        assert sequences(each) == list(range(17)), each
        files = json.loads((each / NAME).read_text())["files"]
        assert len(list(each.glob("*.parquet"))) == len(files)
        assert not list(each.glob("*.jsonl"))


def test_a_portion_of_hostile_lines_that_a_killed_run_left_goes(tmp_path: Path) -> None:
    """Each may be of 128 MiB, beside a state that is kept for years."""
    topic = Topic()
    topic.write(3)
    run(tmp_path, topic)
    left = tmp_path / "events-0000001.portion.jsonl"
    left.write_text("half a port")
    run(tmp_path, topic)
    assert not left.exists()
    assert sequences(tmp_path) == [0, 1, 2]


def test_files_of_many_elements_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of few bytes in Parquet may take much memory when it is merged."""
    monkeypatch.setattr(topic_table, "PORTION_COMMAS", 250)
    topic = Topic()
    line = '{"kind":"closed","connection_id":"a","sequence":%d,"intervals":[%s]}\n'
    for number in range(3):
        topic.lines.append(line % (number, ",".join(["{}"] * 100)))
        run(tmp_path, topic)
    files = sorted(tmp_path.glob("*.parquet"))
    assert len(files) == 2
    with DuckEngine() as engine:
        assert engine.elements(files) == 3 * (
            100 + 3
        )  # and a value for each list that is not there
    assert sequences(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("content", ["", "[]", '{"version":1}', "[" * 100_000])
def test_a_damaged_table_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(ReportError, match="damaged"):
        TopicTable(tmp_path, "t")
