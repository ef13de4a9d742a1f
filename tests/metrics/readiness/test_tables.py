"""The questions of docs/readiness.md, asked of a report's tables; and what one machine answers."""

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
    as_of_ms = round((EPOCH + SIZE.days * 86_400) * 1000)
    settings = Settings(events=str(folder / "events"), out=folder / "report", as_of_ms=as_of_ms)
    job.run(settings, lambda _: None)
    return folder


@pytest.mark.parametrize("number", range(5))
def test_a_question_of_the_page_has_an_answer(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert len(duckdb.connect().execute(QUESTIONS[number]).fetchall()) > 0


def test_there_are_five() -> None:
    assert len(QUESTIONS) == 5
