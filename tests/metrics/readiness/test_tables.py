"""The questions of docs/readiness.md, asked of a report's tables; and what one machine answers."""

import json
import re
from pathlib import Path

import duckdb
import pytest

from benchmarks.events.generate import EPOCH, Size, generate
from metrics.readiness import job
from metrics.readiness.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "readiness.md"
QUESTIONS = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SIZE = Size(connections=40, principals=8, clients=20, days=1, seed=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    generate(SIZE, folder / "events", parquet=False)
    make_old(next((folder / "events").glob("*.jsonl")))
    as_of_ms = round((EPOCH + SIZE.days * 86_400) * 1000)
    settings = Settings(events=str(folder / "events"), out=folder / "report", as_of_ms=as_of_ms)
    job.run(settings, lambda _: None)
    return folder


def make_old(file: Path) -> None:
    """Have the first connection use a version that Kafka 4.0 dropped."""
    first, *others = file.read_text().splitlines(keepends=True)
    dropped = {"dropped_versions": [{"api": "Produce", "version": 2}]}
    file.write_text("".join((json.dumps(json.loads(first) | dropped) + "\n", *others)))


@pytest.mark.parametrize("number", range(6))
def test_a_question_of_the_page_has_an_answer(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert len(duckdb.connect().execute(QUESTIONS[number]).fetchall()) > 0


def test_there_are_six() -> None:
    assert len(QUESTIONS) == 6
